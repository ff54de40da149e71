"""Masked convolution on Hopper's tensor cores, forward and input gradient, an implicit product.

    out[b, i, j, m] = s · Σ_(tap, c) (D ∘ W)[m, tap, c] · x[b, i · stride + tap · d − p, c] + b[m]
    out[b, i, j, m] = s · Σ_(tap, c) (D ∘ W)[c, tap, m] · gy[b, (i + p − tap · d) / stride, c]
                                                                        TRANSPOSED, the gradient

Shapes      source [images, H / stride, stride, W / stride, stride · C] (gy: stride 1) and W
            [N, taps, C], both by TMA; out [P, B, OH, OW, M], unit stride along m.
Mask        words of rng/SPEC.md v1, made by all threads, one Philox call each, and shared; a thread
            then reads the words of the weights it holds.
Tile        BM results of PARTS images with a mask of their own (or of one mask and several images),
            BR positions each: [BM, BR] += W [BM, 64] · sourceᵀ [64, BR]. W is read once for all
            parts and masked in registers. Positions are a box, shifted by a tap: what lies outside
            reads as zeros, so padding is free. wgmma multiplies one part while the next is masked;
            few positions leave most of it idle, there BY_WARP takes the instructions of a warp.
            BITS = 0: nothing is dropped, nothing of a mask made or read; 16-bit weights then stay
            in shared memory.
Grid        cdiv(M, BM) · boxes · PHASES² · P · cdiv(B, images) programs, m fastest.
Precision   bfloat16, float16 or TensorFloat-32 products, float32 sums; s, b and the epilogue
            (_epilogue.py) once, at the end.
Order       64 c after the other, all taps of each, in one program: no atomics, no split; `out`
            repeats bit for bit.
Cost        for 2·BR operations 1.25 to 1.5 instructions, and 1/128 Philox call. Integer units issue
            every second cycle: at 16 positions they are the limit, so shifts are multiplications.
Limits      compute capability 9.0; N < 2**29, others < 2**31; an image of out below 2**23 elements.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.ops._wgmma import (
    rows_layout,
    spread_rows_layout,
    steps_per_chunk,
)
from bayes_dc.ops.conv2d.triton_hopper_products import multiply_by_warp, multiply_dense
from bayes_dc.ops.conv2d.triton_hopper_store import store_results, sums_layout
from bayes_dc.ops.conv2d.triton_hopper_walk import (
    advance,
    expect_source,
    expect_weights,
    fetch_source,
    fetch_weights,
    load_ids,
    make_words,
    next_weights,
    operand,
)


@gluon.jit(do_not_specialize=["images", "stride_b", "stride_sample", "stride_pass", "P_images"])
def masked_conv_kernel(
    source_desc,
    edge_desc,
    w_desc,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    images,
    P_images,
    OH,
    OW,
    M,
    C,
    stride_tap,
    stride_b,
    stride_sample,
    stride_pass,
    stride_op,
    stride_ob,
    stride_oh,
    stride_ow,
    KEEP: gl.constexpr,
    BITS: gl.constexpr,
    SCALE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    TRANSPOSED: gl.constexpr,
    TAPS: gl.constexpr,
    KH: gl.constexpr,
    BM: gl.constexpr,
    IMAGES: gl.constexpr,
    PARTS: gl.constexpr,
    DOWN: gl.constexpr,
    SLOTS: gl.constexpr,
    STAGES: gl.constexpr,
    BY_WARP: gl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: gl.constexpr = 0,
):
    """BM results of every position of a box.

    Loop invariant: before step i tiles i … i + STAGES − 2 are here or on their way, and the words
    of its chunk are shared; for wgmma the weights of its first part are masked in registers.
    """
    KW: gl.constexpr = TAPS[0]
    STRIDE: gl.constexpr = TAPS[1]
    PH: gl.constexpr = TAPS[2]
    PW: gl.constexpr = TAPS[3]
    WARPS: gl.constexpr = gl.num_warps()
    ELEMENT: gl.constexpr = source_desc.dtype
    SIZE: gl.constexpr = ELEMENT.primitive_bitwidth
    BH: gl.constexpr = source_desc.block_type.shape[1]
    BW: gl.constexpr = source_desc.block_type.shape[3]
    BC: gl.constexpr = source_desc.block_type.shape[4]
    BR: gl.constexpr = IMAGES * BH * BW // PARTS
    WORDS: gl.constexpr = (BC if TRANSPOSED else BM) // 32
    QUADS: gl.constexpr = (BM if TRANSPOSED else BC) // 4
    CHUNK: gl.constexpr = steps_per_chunk(WORDS * PARTS, QUADS, WARPS)
    ENTRIES: gl.constexpr = CHUNK * PARTS
    MMA: gl.constexpr = sums_layout(BR, WARPS, SIZE, BY_WARP)
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 32 // SIZE)
    ROWS: gl.constexpr = rows_layout(BM, BC, WARPS, SIZE, TRANSPOSED)
    SPREAD: gl.constexpr = spread_rows_layout(BM, BC, WARPS, SIZE, TRANSPOSED)
    PHASES: gl.constexpr = STRIDE if TRANSPOSED else 1
    DENSE: gl.constexpr = BITS == 0 and SIZE == 16 and not (TRANSPOSED or BY_WARP)

    LINES: gl.constexpr = BH + (edge_desc.block_type.shape[1] if DOWN > 1 else 0)
    B: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BR, BC], ELEMENT)
    if DOWN == 1:
        source = gl.allocate_shared_memory(
            ELEMENT, [SLOTS, IMAGES, BH, 1, BW, BC], source_desc.layout
        )
        right = source._reinterpret(ELEMENT, [SLOTS * PARTS, BR, BC], B)
    else:
        source = gl.allocate_shared_memory(ELEMENT, [SLOTS * IMAGES * LINES, BW, BC], B)
        right = source
    here = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(here.index(slot), count=1)
    stored = gl.allocate_shared_memory(
        ELEMENT, [STAGES, BC, 1, BM] if TRANSPOSED else [STAGES, BM, 1, BC], w_desc.layout
    )
    W2: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BC, BM] if TRANSPOSED else [BM, BC], ELEMENT
    )
    tiles = stored._reinterpret(ELEMENT, [STAGES, BC, BM] if TRANSPOSED else [STAGES, BM, BC], W2)
    chunks_of_words = gl.allocate_shared_memory(
        gl.uint32, [2, ENTRIES, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    words = chunks_of_words._reinterpret(
        gl.uint32, [2 * ENTRIES, WORDS, 4 * QUADS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()

    # The gradient's results of one phase, and how many taps meet them.
    m_tiles = gl.cdiv(M, BM)
    rows = gl.cdiv(OH, PHASES * BH)
    columns = gl.cdiv(OW, PHASES * BW)
    pid = gl.program_id(0)
    m0 = pid % m_tiles * BM
    pid = pid // m_tiles
    j0 = pid % columns * BW
    pid = pid // columns
    i0 = pid % rows * BH
    pid = pid // rows
    aw = pid % PHASES
    pid = pid // PHASES
    ah = pid % PHASES
    pid = pid // PHASES
    groups = gl.cdiv(images, IMAGES)
    p = pid // groups
    image0 = (pid - p * groups) * IMAGES
    if PHASES > 1:
        across = (KW - (aw + PW) % STRIDE + STRIDE - 1) // STRIDE
        along = (KH - (ah + PH) % STRIDE + STRIDE - 1) // STRIDE
        steps = gl.cdiv(C, BC) * along * across
        # A phase that no tap meets is 0.
        along = gl.maximum(along, 1)
        taps = along * gl.maximum(across, 1)
    else:
        along = KH
        taps = KH * KW
        steps = gl.cdiv(C, BC) * taps

    ids = load_ids(
        key_ptr, sample_ptr, pass_ptr, p, image0, images, stride_sample, stride_pass,
        ENTRIES, PARTS, WORDS, QUADS, BITS,
    )  # fmt: skip
    if TRANSPOSED:
        n = gl.arange(0, BC, gl.SliceLayout(0, ROWS))[None, :]
    else:
        n = gl.arange(0, BM, gl.SliceLayout(1, ROWS))[:, None]
    byte = n // 8 % 4
    shift = (7 - n % 8).to(gl.uint32)

    corner = (p * P_images + image0, i0, j0)
    walk = (ah, aw, along, taps)
    descriptors = (source_desc, edge_desc, w_desc)
    memory = (source, stored, chunks_of_words)
    barriers = (here, ready)
    block_barrier()
    for at in gl.static_range(SLOTS - 1):
        expect_source(source_desc, edge_desc, here, at * DOWN, steps, IMAGES, DOWN)
        fetch_source(
            source_desc, edge_desc, source, here, corner, C, walk, at * DOWN, steps, IMAGES, DOWN,
            TAPS, TRANSPOSED,
        )  # fmt: skip
    for at in gl.static_range(STAGES - 1):
        expect_weights(w_desc, ready, at, steps)
        fetch_weights(w_desc, stored, ready, m0, walk, at, steps, TAPS, TRANSPOSED)
    if BITS > 0:
        make_words(
            chunks_of_words.index(0), 0, m0, walk, stride_tap, ids[0], ids[1], ids[2],
            ids[3], PARTS, BC, TAPS, TRANSPOSED, KEEP, BITS,
        )  # fmt: skip
    block_barrier()
    accs = ()
    for _ in gl.static_range(PARTS):
        accs = accs + (gl.zeros([BM, BR], gl.float32, MMA),)
    if DENSE:
        done = multiply_dense(
            accs, steps, tiles, right, descriptors, memory, barriers, corner, m0, C, walk,
            stride_tap, ids, IMAGES, DOWN, CHUNK, TAPS,
        )  # fmt: skip
    elif BY_WARP:
        done = multiply_by_warp(
            accs, steps, tiles, right, words, shift, byte, descriptors, memory, barriers, corner,
            m0, C, walk, stride_tap, ids, IMAGES, LINES, PARTS, DOWN, CHUNK, TAPS, TRANSPOSED,
            KEEP, BITS, A, ROWS, SPREAD,
        )  # fmt: skip
    else:
        w = gl.zeros([BM, BC], ELEMENT, ROWS)
        w, now = next_weights(
            w,
            tiles,
            ready,
            words,
            shift,
            byte,
            0,
            steps,
            0,
            PARTS,
            A,
            ROWS,
            SPREAD,
            TRANSPOSED,
            BITS,
        )
        before = now
        UNROLL: gl.constexpr = 2 if PARTS == 1 else 1
        for first in range(0, steps // UNROLL * UNROLL, UNROLL):
            for unrolled in gl.static_range(UNROLL):
                i = first + unrolled
                new = ()
                for part in gl.static_range(PARTS):
                    if part == 0:
                        mbarrier.wait(here.index(i // DOWN % SLOTS), i // DOWN // SLOTS & 1)
                    b = operand(
                        right, i, part, IMAGES * LINES, PARTS, SLOTS, DOWN, BR, TAPS, TRANSPOSED
                    )
                    acc = warpgroup_mma(now, b, accs[part], is_async=True)
                    # Whatever was multiplied before has been; its registers are free.
                    acc, before = warpgroup_mma_wait(1, deps=[acc, before])
                    new = new + (acc,)
                    if part == 0:
                        # Every warp has done with stage i − 1, the one to be filled, and with the
                        # words before those of step i − 1.
                        fence_async_shared()
                        block_barrier()
                        advance(
                            i, steps, descriptors, memory, barriers, corner, m0, C, walk,
                            stride_tap, ids, IMAGES, PARTS, DOWN, CHUNK, TAPS, TRANSPOSED, KEEP,
                            BITS,
                        )  # fmt: skip
                    w, later = next_weights(
                        w, tiles, ready, words, shift, byte, i + (part + 1) // PARTS, steps,
                        (part + 1) % PARTS, PARTS, A, ROWS, SPREAD, TRANSPOSED, BITS,
                    )  # fmt: skip
                    before = now
                    now = later
                accs = new
        done = warpgroup_mma_wait(0, deps=accs + (now, before))
        if PARTS == 1:
            acc = done[0]
            if steps % 2 == 1:
                last = steps - 1
                mbarrier.wait(here.index(last // DOWN % SLOTS), last // DOWN // SLOTS & 1)
                b = operand(
                    right, last, 0, IMAGES * LINES, PARTS, SLOTS, DOWN, BR, TAPS, TRANSPOSED
                )
                acc = warpgroup_mma(done[1], b, acc)
            done = (acc,)

    target = out_ptr + p.to(gl.int64) * stride_op + image0.to(gl.int64) * stride_ob
    store_results(
        done, target, b_ptr, (i0 * PHASES + ah, j0 * PHASES + aw), m0, images - image0, OH, OW, M,
        stride_b, stride_ob, stride_oh, stride_ow, factors_ptr, summands_ptr, PARTS, BH, BW,
        PHASES, SCALE, HAS_BIAS, TRANSPOSED or DENSE, EPILOGUE, ELEMENT,
    )  # fmt: skip
