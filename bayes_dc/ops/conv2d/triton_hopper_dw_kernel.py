"""Weight gradient of a masked convolution on Hopper's tensor cores.

    out[n, kh, kw, c] = s · Σ_b D[b, n, (kh, kw, c)] · Σ_(i, j) gy[b, i, j, n] · x[b, i', j', c]
    i' = i · stride + kh · d − p,   j' = j · stride + kw · d − p

Shapes      gy [P, B, OH, OW, N] and x [images, H / stride, stride, W / stride, stride · C], by TMA,
            16 bits; out [splits, N, KH, KW, C] contiguous.
Mask        words of rng/SPEC.md v1, applied to the products of a group as they are added. A group
            is an image, or (SHARED) the program's run of images in a pass.
Tile        UNITS = TAPS · NB results [64 channels of a tap, BN outputs] share the copies of gy and
            x: TAPS rows of the kernel, NB blocks of outputs. Positions are a box of images, rows
            and columns; the box of x is shifted by the tap. What lies outside reads as zeros, so
            padding is free, and zeros in gy drop the positions that are none of the image's.
Grid        cdiv(C, 64) (fastest) · KW · cdiv(N, NB · BN) · cdiv(KH, TAPS) · splits programs.
Precision   bfloat16 or float16 products, float32 sums; s once, at the end.
Order       a program adds its run of images in ascending order, positions ascending in an image.
Cost        2 operations for each position, weight and group; for each weight and group 1.5
            instructions to mask and add, and 1/128 Philox call.
Limits      compute capability 9.0; N < 2**29, others < 2**31; offsets of out are int64. Zeros in gy
            meet values of x: where these are inf or NaN, their neighbours' taps become NaN too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.ops.conv2d.triton_hopper_dw_steps import (
    CHUNK,
    arrived,
    fetch,
    load_ids,
    make_words,
    multiply,
    wait,
    with_item,
)
from bayes_dc.ops.conv2d.triton_hopper_kept import add_kept, gather_bits, spread_layout


@gluon.jit(do_not_specialize=["P", "B", "chunk", "per_pass", "stride_sample", "stride_pass"])
def conv_dw_kernel(
    gy_desc,
    x_desc,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    P,
    B,
    OH,
    OW,
    N,
    C,
    chunk,
    per_pass,
    stride_sample,
    stride_pass,
    stride_oz,
    KEEP: gl.constexpr,
    BITS: gl.constexpr,
    SCALE: gl.constexpr,
    KH: gl.constexpr,
    KW: gl.constexpr,
    SH: gl.constexpr,
    SW: gl.constexpr,
    PH: gl.constexpr,
    PW: gl.constexpr,
    DH: gl.constexpr,
    DW: gl.constexpr,
    TAPS: gl.constexpr,
    NB: gl.constexpr,
    RUN: gl.constexpr,
    STAGES: gl.constexpr,
):
    """UNITS results over a run of ``chunk`` boxes of images, in each pass if SHARED.

    RUN: SHARED; whether there is one pass, one box for an image, one column of boxes.

    The products of a group are added while those of the next are made, unit by unit: a unit's sums
    are there when the next but one is started. All are waited for at the end of an iteration;
    with products on their way across it ptxas would wait for every single one.
    """
    SHARED: gl.constexpr = RUN[0]
    UNITS: gl.constexpr = TAPS * NB
    WARPS: gl.constexpr = gl.num_warps()
    ELEMENT: gl.constexpr = gy_desc.dtype
    IMAGES: gl.constexpr = gy_desc.block_type.shape[1]
    BH: gl.constexpr = gy_desc.block_type.shape[2]
    BW: gl.constexpr = gy_desc.block_type.shape[3]
    BN: gl.constexpr = gy_desc.block_type.shape[4]
    ROWS: gl.constexpr = IMAGES * BH * BW
    PARTS: gl.constexpr = 1 if SHARED else IMAGES
    # Groups of an iteration: with one step each, as many as have their words made at once.
    GROUPS: gl.constexpr = CHUNK if RUN[2] and not SHARED else 1
    W32: gl.constexpr = BN // 32
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, WARPS // 4], [16, BN * 4 // WARPS, 16]
    )
    SPREAD: gl.constexpr = spread_layout(BN, WARPS)
    GY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BN], ELEMENT)
    X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 64], ELEMENT)

    c_tiles = gl.cdiv(C, 64)
    n_tiles = gl.cdiv(N, NB * BN)
    ROW_GROUPS: gl.constexpr = (KH + TAPS - 1) // TAPS
    pid = gl.program_id(0)
    c0 = pid % c_tiles * 64
    pid = pid // c_tiles
    kw = pid % KW
    pid = pid // KW
    n0 = pid % n_tiles * (NB * BN)
    pid = pid // n_tiles
    kh0 = pid % ROW_GROUPS * TAPS
    z = pid // ROW_GROUPS

    # Memory of its own for each copy and each unit: the compiler sees that they do not meet.
    gy_tiles = ()
    gy_rows = ()
    for _ in gl.static_range(NB):
        tile = gl.allocate_shared_memory(ELEMENT, [STAGES, 1, IMAGES, BH, BW, BN], gy_desc.layout)
        gy_tiles = gy_tiles + (tile,)
        gy_rows = gy_rows + (tile._reinterpret(ELEMENT, [STAGES, ROWS, BN], GY),)
    x_tiles = ()
    x_rows = ()
    heights = ()
    phases = ()
    for tap in gl.static_range(TAPS):
        tile = gl.allocate_shared_memory(ELEMENT, [STAGES, IMAGES, BH, 1, BW, 64], x_desc.layout)
        x_tiles = x_tiles + (tile,)
        x_rows = x_rows + (tile._reinterpret(ELEMENT, [STAGES, ROWS, 64], X),)
        # Where the tap meets output 0, divided by the stride: rounded down, so made positive first.
        down = (kh0 + tap) * DH + PH * (SH - 1)
        heights = heights + (down // SH - PH,)
        phases = phases + (down % SH,)
    right = kw * DW + PW * (SW - 1)
    taps = (heights, phases, right // SW - PW, right % SW * C + c0)
    shared_words = ()
    words = ()
    for _ in gl.static_range(UNITS):
        entries = gl.allocate_shared_memory(
            gl.uint32, [CHUNK, W32, 64], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        )
        shared_words = shared_words + (entries,)
        entries = entries._reinterpret(
            gl.uint32, [CHUNK, W32, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
        words = words + (entries,)
    ready = ()
    for _ in gl.static_range(NB + TAPS):
        barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(STAGES):
            mbarrier.init(barriers.index(i), count=1)
        ready = ready + (barriers,)
    fence_async_shared()

    columns = gl.cdiv(OW, BW)
    per_image = gl.cdiv(OH, BH) * columns
    first = z * chunk
    if SHARED:
        packs = chunk
        count = P
        per_group = chunk * per_image
        steps = P * per_group
    else:
        packs = gl.cdiv(B, IMAGES)
        mine = gl.maximum(gl.minimum(chunk, P * packs - first), 0)
        count = mine * PARTS
        per_group = per_image
        steps = mine * per_image
    run = (first, packs, per_image, columns, per_pass, n0)
    k0 = gl.load(key_ptr).to(gl.uint32)
    k1 = gl.load(key_ptr + 1).to(gl.uint32)
    k4 = ((kh0 * KW + kw) * C + c0) // 4
    next_k4 = KW * C // 4
    n = gl.arange(0, BN, gl.SliceLayout(0, MMA))[None, :]
    shift = (n & 6).to(gl.uint32)

    block_barrier()
    for ahead in gl.static_range(STAGES - 1):
        fetch(
            gy_desc, x_desc, gy_tiles, x_tiles, ready, run, taps, ahead, steps, RUN, STAGES
        )  # fmt: skip
    sample, step = load_ids(
        0, count, first, packs, P, B, sample_ptr, pass_ptr, stride_sample, stride_pass, W32, PARTS,
        RUN,
    )  # fmt: skip
    accs = ()
    products = ()
    for _ in gl.static_range(UNITS):
        accs = accs + (gl.zeros([64, BN], gl.float32, MMA),)
        products = products + (gl.zeros([64, BN], gl.float32, MMA),)
    for j in range(0, count, GROUPS):
        for i in gl.static_range(GROUPS):
            now = j // PARTS + i // PARTS if GROUPS > 1 else j * per_group
            if i % PARTS == 0:
                arrived(ready, now, steps, STAGES)
            # Nothing is kept of what was multiplied after the last group.
            every = gl.where(j + i <= count, -1, 0)
            kept = ()
            for u in gl.static_range(UNITS):
                at = (j + i + CHUNK - 1) % CHUNK
                kept = kept + (gather_bits(words[u].index(at), shift, every, SPREAD),)
            new = ()
            for u in gl.static_range(UNITS):
                # Those of this unit and the group before are there, the unit's before may not be.
                products = wait(min(1, UNITS - 1), products)
                new = new + (add_kept(accs[u], products[u], kept[u]),)
                started = multiply(
                    gy_rows[u // TAPS], x_rows[u % TAPS], products[u], now % STAGES, i % PARTS,
                    PARTS, True,
                )  # fmt: skip
                products = with_item(products, u, started)
            accs = new
            if i % PARTS == 0:
                # Every warp has done with the stage before and the words of the chunk before.
                fetch(
                    gy_desc, x_desc, gy_tiles, x_tiles, ready, run, taps, now + STAGES - 1, steps,
                    RUN, STAGES,
                )  # fmt: skip
            if i == 0 and (GROUPS == CHUNK or j % CHUNK == 0):
                make_words(
                    shared_words, n0 // 32, k4, next_k4, k0, k1, sample, step, TAPS, KEEP, BITS
                )
                sample, step = load_ids(
                    j + CHUNK, count, first, packs, P, B, sample_ptr, pass_ptr, stride_sample,
                    stride_pass, W32, PARTS, RUN,
                )  # fmt: skip
        if GROUPS == 1:
            for at in range(j * per_group + 1, (j + 1) * per_group):
                arrived(ready, at, steps, STAGES)
                new = ()
                for u in gl.static_range(UNITS):
                    started = multiply(
                        gy_rows[u // TAPS], x_rows[u % TAPS], products[u], at % STAGES, 0, 1, False
                    )
                    new = new + (started,)
                products = wait(UNITS, new)
                fetch(
                    gy_desc, x_desc, gy_tiles, x_tiles, ready, run, taps, at + STAGES - 1, steps,
                    RUN, STAGES,
                )  # fmt: skip
        products = wait(0, products)
    block_barrier()
    # The group that was multiplied last, if it is one.
    last = gl.cdiv(count, GROUPS) * GROUPS - 1
    every = gl.where(last < count, -1, 0)
    c = c0 + gl.arange(0, 64, gl.SliceLayout(1, MMA))[:, None]
    for u in gl.static_range(UNITS):
        kh = kh0 + u % TAPS
        at_n = n0 + u // TAPS * BN + n
        kept = gather_bits(words[u].index((last + CHUNK) % CHUNK), shift, every, SPREAD)
        acc = add_kept(accs[u], products[u], kept)
        out = out_ptr + z.to(gl.int64) * stride_oz + (kh * KW + kw) * C + c
        gl.store(
            out + at_n.to(gl.int64) * (KH * KW * C),
            (acc * SCALE).to(out_ptr.dtype.element_ty),
            mask=(at_n < N) & (c < C) & (kh < KH),
        )
