"""Masked product of few rows for each mask on Hopper: a tile of weights serves several groups.

    out[g, r, n] = s · Σ_k (D[g] ∘ W)[n, k] · x[g, r, k] + b[n]

Shapes      x [P, S, R, K], W [N, K], both by TMA: unit stride along k, 16-byte aligned (0 over P or
            S: shared, and then copied once for all parts); out [P, S, R, N], unit stride along n.
Mask        words of rng/SPEC.md v1 of all parts of a step (or of several steps), made by all
            threads, one Philox call each, and shared; a thread then reads those of its weights.
Tile        PARTS passes (BY_SAMPLE: samples), each with its own mask and sums: [BM, BR] +=
            W [BM, BC] · xᵀ [BC, BR]. W comes from the cache once for all of them, where otherwise
            every group reads all of it. wgmma multiplies one part, from registers, while the next
            is masked.
Grid        cdiv(N, BM) · cdiv(R, BR) · cdiv(parts, PARTS) · others programs, n fastest.
Precision   bfloat16, float16 or TensorFloat-32 products, float32 sums; s, b and the epilogue
            (_epilogue.py) once, at the end.
Order       k ascends inside one program: no atomics, no split; `out` repeats bit for bit, and has
            the bits of ``masked_gemm_kernel``.
Cost        for 2·BR operations 1.5 (16 bits) or 2.5 instructions, and 1/128 Philox call.
Limits      compute capability 9.0; N < 2**29, others < 2**31; offsets of out are int64.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.ops._wgmma import (
    as_operand,
    call_layout,
    finish_rows,
    in_order,
    mask_by,
    round_tile,
    rows_layout,
    spread_rows_layout,
    spread_words,
    steps_per_chunk,
    store_words,
)


@gluon.constexpr_function
def power_of_two(n):
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


@gluon.jit
def _expect(x_desc, w_desc, barriers, at, steps):
    """Say how many bytes the copies of step ``at`` will bring."""
    ready, here = barriers
    STAGES: gl.constexpr = ready.shape[0]
    mbarrier.expect(ready.index(at % STAGES), w_desc.block_type.nbytes, pred=at < steps)
    mbarrier.expect(here.index(at % STAGES), x_desc.block_type.nbytes, pred=at < steps)


@gluon.jit
def _fetch(x_desc, w_desc, tiles, rows, barriers, corner, at, steps):
    """Start the copies of step ``at``, none from ``steps`` on; beyond the ends zeros arrive.

    Weights and rows have barriers of their own: all threads would meet between two copies that the
    compiler sees touch the same.
    """
    ready, here = barriers
    p, s, r, m = corner
    STAGES: gl.constexpr = tiles.shape[0]
    BC: gl.constexpr = x_desc.block_type.shape[3]
    stage = at % STAGES
    tma.async_copy_global_to_shared(
        w_desc, [m, at * BC], ready.index(stage), tiles.index(stage), pred=at < steps
    )
    tma.async_copy_global_to_shared(
        x_desc, [p, s, r, at * BC], here.index(stage), rows.index(stage), pred=at < steps
    )


@gluon.jit
def _make(words, first, m, ids, KEEP: gl.constexpr, BITS: gl.constexpr, PADDED: gl.constexpr):
    """Write the words of all parts of the steps from ``first`` on."""
    k0, k1, sample, step = ids
    ENTRIES: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    QUADS: gl.constexpr = words.shape[2] // 4
    L: gl.constexpr = call_layout(WORDS, QUADS, gl.num_warps())
    entry = gl.arange(0, ENTRIES, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    word = gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    quad = gl.arange(0, QUADS, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    zero = entry * 0 + word * 0 + quad * 0
    n32 = m // 32 + word + zero
    k4 = (first + entry // PADDED) * QUADS + quad + zero
    store_words(words, n32, k4, k0, k1, sample[:, None, None], step[:, None, None], KEEP, BITS)


@gluon.jit
def _masked(w, word, shift, byte, A: gl.constexpr):
    """The weights, rounded, as the first operand of a product, where ``word`` keeps them."""
    return as_operand(mask_by(w, word, shift, byte, True), A, False)


@gluon.jit
def _store(
    done, out, b_ptr, m0, r0, M, R, count, stride_b, stride_or, stride_part, factors_ptr,
    summands_ptr, PARTS: gl.constexpr, SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    EPILOGUE: gl.constexpr, ELEMENT: gl.constexpr,
):  # fmt: skip
    """Write the sums of the first ``count`` parts, scaled, with bias, finished."""
    BM: gl.constexpr = done[0].shape[0]
    BR: gl.constexpr = done[0].shape[1]
    VECTOR: gl.constexpr = 128 // ELEMENT.primitive_bitwidth
    LANES: gl.constexpr = min(32, BM // VECTOR)
    L: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0]
    )
    r = r0 + gl.arange(0, BR, gl.SliceLayout(1, L))[:, None]
    m = m0 + gl.arange(0, BM, gl.SliceLayout(0, L))[None, :]
    offset = r.to(gl.int64) * stride_or + m
    inside = (r < R) & (m < M)
    for part in gl.static_range(PARTS):
        y = in_order(done[part] * SCALE, False)
        n = m0 + gl.arange(0, BM, gl.SliceLayout(1, y.type.layout))
        if HAS_BIAS:
            b = gl.load(b_ptr + n.to(gl.int64) * stride_b, mask=n < M, other=0)
            y += b.to(gl.float32)[:, None]
        if EPILOGUE > 0:
            y = finish_rows(y, factors_ptr, summands_ptr, n, M, EPILOGUE)
        y = gl.convert_layout(gl.permute(y.to(ELEMENT), (1, 0)), L)
        gl.store(out + offset, y, mask=inside & (part < count))
        out += stride_part


@gluon.jit(
    do_not_specialize=["P", "S", "one_p", "one_s", "stride_b", "stride_sample", "stride_pass"]
)
def masked_parts_kernel(
    x_desc,
    w_desc,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    P,
    S,
    R,
    M,
    C,
    one_p,
    one_s,
    stride_b,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    KEEP: gl.constexpr,
    BITS: gl.constexpr,
    SCALE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    BM: gl.constexpr,
    PARTS: gl.constexpr,
    BY_SAMPLE: gl.constexpr,
    STAGES: gl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: gl.constexpr = 0,
):
    """BM outputs of BR rows of PARTS groups.

    Loop invariant: before step i tiles i … i + STAGES − 2 are here or on their way, and the words
    of its chunk are shared; the weights of its first part are masked in registers.
    """
    WARPS: gl.constexpr = gl.num_warps()
    ELEMENT: gl.constexpr = x_desc.dtype
    SIZE: gl.constexpr = ELEMENT.primitive_bitwidth
    BR: gl.constexpr = x_desc.block_type.shape[2]
    BC: gl.constexpr = x_desc.block_type.shape[3]
    BOXES: gl.constexpr = x_desc.block_type.shape[0] * x_desc.block_type.shape[1]
    WORDS: gl.constexpr = BM // 32
    QUADS: gl.constexpr = BC // 4
    PADDED: gl.constexpr = power_of_two(PARTS)
    CHUNK: gl.constexpr = steps_per_chunk(WORDS * PADDED, QUADS, WARPS)
    ENTRIES: gl.constexpr = CHUNK * PADDED
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BR, 256 // SIZE])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 32 // SIZE)
    ROWS: gl.constexpr = rows_layout(BM, BC, WARPS, SIZE, False)
    SPREAD: gl.constexpr = spread_rows_layout(BM, BC, WARPS, SIZE, False)

    rows = gl.allocate_shared_memory(
        ELEMENT, [STAGES, x_desc.block_type.shape[0], x_desc.block_type.shape[1], BR, BC],
        x_desc.layout,
    )  # fmt: skip
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BR, BC], ELEMENT)
    right = rows._reinterpret(ELEMENT, [STAGES * BOXES, BR, BC], B)
    tiles = gl.allocate_shared_memory(ELEMENT, [STAGES, BM, BC], w_desc.layout)
    chunks = gl.allocate_shared_memory(
        gl.uint32, [2, ENTRIES, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    words = chunks._reinterpret(
        gl.uint32, [2 * ENTRIES, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(here.index(stage), count=1)
    fence_async_shared()

    m_tiles = gl.cdiv(M, BM)
    r_tiles = gl.cdiv(R, BR)
    pid = gl.program_id(0)
    m0 = pid % m_tiles * BM
    r0 = pid // m_tiles % r_tiles * BR
    g = pid // m_tiles // r_tiles
    E: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, call_layout(WORDS, QUADS, WARPS)))
    part_of = gl.arange(0, ENTRIES, E) % PADDED
    if BY_SAMPLE:
        runs = gl.cdiv(S, PARTS)
        p = g // runs
        s = (g - p * runs) * PARTS
        count = S - s
        corner = (p * one_p, s * one_s, r0, m0)
        part_s = gl.minimum(s + part_of, S - 1)
        part_p = p + part_of * 0
        stride_part = stride_os
    else:
        p = g // S
        s = g - p * S
        p = p * PARTS
        count = P - p
        corner = (p * one_p, s * one_s, r0, m0)
        part_s = s + part_of * 0
        part_p = gl.minimum(p + part_of, P - 1)
        stride_part = stride_op
    sample = gl.load(sample_ptr + part_s.to(gl.int64) * stride_sample).to(gl.uint32)
    step = gl.load(pass_ptr + part_p.to(gl.int64) * stride_pass).to(gl.uint32)
    ids = (
        gl.load(key_ptr).to(gl.uint32), gl.load(key_ptr + 1).to(gl.uint32), sample, step
    )  # fmt: skip
    steps = gl.cdiv(C, BC)
    n = gl.arange(0, BM, gl.SliceLayout(1, ROWS))[:, None]
    byte = n // 8 % 4
    shift = (7 - n % 8).to(gl.uint32)

    barriers = (ready, here)
    block_barrier()
    for at in gl.static_range(STAGES - 1):
        _expect(x_desc, w_desc, barriers, at, steps)
    block_barrier()
    for at in gl.static_range(STAGES - 1):
        _fetch(x_desc, w_desc, tiles, rows, barriers, corner, at, steps)
    _make(chunks.index(0), 0, m0, ids, KEEP, BITS, PADDED)
    block_barrier()
    accs = ()
    for _ in gl.static_range(PARTS):
        accs = accs + (gl.zeros([BM, BR], gl.float32, MMA),)
    mbarrier.wait(ready.index(0), 0)
    mbarrier.wait(here.index(0), 0)
    w = round_tile(tiles.index(0).load(ROWS))
    word = spread_words(words.index(0), ROWS, SPREAD, False)
    now = _masked(w, word, shift, byte, A)
    before = now
    for i in range(0, steps):
        new = ()
        for part in gl.static_range(PARTS):
            b = right.index(i % STAGES * BOXES + part % BOXES).permute((1, 0))
            acc = warpgroup_mma(now, b, accs[part], is_async=True)
            ahead = i + (part + 1) // PARTS
            entry = (ahead * PADDED + (part + 1) % PARTS) % (2 * ENTRIES)
            word = spread_words(words.index(entry), ROWS, SPREAD, False)
            # Whatever was multiplied before has been; its registers are free.
            acc, before = warpgroup_mma_wait(1, deps=[acc, before])
            new = new + (acc,)
            if part == 0:
                # Every warp has done with stage i − 1, the one to be filled, and with the
                # words before those of step i − 1.
                _expect(x_desc, w_desc, barriers, i + STAGES - 1, steps)
                block_barrier()
                _fetch(x_desc, w_desc, tiles, rows, barriers, corner, i + STAGES - 1, steps)
                if i % CHUNK == 0:
                    c = i // CHUNK + 1
                    _make(chunks.index(c % 2), c * CHUNK, m0, ids, KEEP, BITS, PADDED)
            if part == PARTS - 1:
                slot = ahead % STAGES
                mbarrier.wait(ready.index(slot), ahead // STAGES & 1, pred=ahead < steps)
                mbarrier.wait(here.index(slot), ahead // STAGES & 1, pred=ahead < steps)
            if part == PARTS - 1 or (part == 0 and SIZE == 16):
                # 16-bit weights kept from one iteration to the next cost registers twice.
                w = round_tile(tiles.index(ahead % STAGES).load(ROWS))
            later = _masked(w, word, shift, byte, A)
            before = now
            now = later
        accs = new
    done = warpgroup_mma_wait(0, deps=accs + (now, before))
    out = out_ptr + p.to(gl.int64) * stride_op + s.to(gl.int64) * stride_os
    _store(
        done, out, b_ptr, m0, r0, M, R, count, stride_b, stride_or, stride_part, factors_ptr,
        summands_ptr, PARTS, SCALE, HAS_BIAS, EPILOGUE, ELEMENT,
    )  # fmt: skip
