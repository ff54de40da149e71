"""The steps of the weight gradient's Hopper kernel: copies, products, ids and words."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.ops._wgmma import call_layout, store_words

CHUNK = gl.constexpr(4)
"""Groups whose words are made at once: one Philox call for each thread and unit."""


@gluon.jit
def wait(n: gl.constexpr, products):
    """Wait until at most ``n`` products are on their way."""
    if len(products) == 1:
        return (warpgroup_mma_wait(n, deps=products),)
    else:
        return warpgroup_mma_wait(n, deps=products)


@gluon.jit
def with_item(values, at: gl.constexpr, value):
    """The tuple with ``value`` in place ``at``."""
    new = ()
    for i in gl.static_range(len(values)):
        if i == at:
            new = new + (value,)
        else:
            new = new + (values[i],)
    return new


@gluon.jit
def place(pack, first, packs, RUN: gl.constexpr):
    """Pass of a box of images of the program's run, and its place in the pass.

    ``packs``: boxes of a pass; if SHARED those of the program, which begin with ``first`` in each.
    """
    SHARED: gl.constexpr = RUN[0]
    ONE_PASS: gl.constexpr = RUN[1]
    if ONE_PASS:
        return pack * 0, first + pack
    else:
        if SHARED:
            p = pack // packs
        else:
            p = (first + pack) // packs
        return p, first + pack - p * packs


@gluon.jit
def fetch(
    gy_desc, x_desc, gy_tiles, x_tiles, ready, run, taps, at, steps,
    RUN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start the copies of step ``at``, none from ``steps`` on; beyond the ends zeros arrive.

    Every copy has a barrier of its own, and all threads meet between arming and copying: with one
    barrier the compiler would have them meet before each copy.
    """
    first, packs, per_image, columns, per_pass, n0 = run
    heights, phases, across, channel = taps
    ONE_BOX: gl.constexpr = RUN[2]
    ONE_COLUMN: gl.constexpr = RUN[3]
    IMAGES: gl.constexpr = gy_desc.block_type.shape[1]
    BH: gl.constexpr = gy_desc.block_type.shape[2]
    BW: gl.constexpr = gy_desc.block_type.shape[3]
    BN: gl.constexpr = gy_desc.block_type.shape[4]
    NB: gl.constexpr = len(gy_tiles)
    stage = at % STAGES
    inside = at < steps
    for i in gl.static_range(NB):
        mbarrier.expect(ready[i].index(stage), gy_desc.block_type.nbytes, pred=inside)
    for tap in gl.static_range(len(x_tiles)):
        mbarrier.expect(ready[NB + tap].index(stage), x_desc.block_type.nbytes, pred=inside)
    block_barrier()
    if ONE_BOX:
        pack = at
        row = at * 0
        column = 0
    else:
        pack = at // per_image
        box = at - pack * per_image
        if ONE_COLUMN:
            row = box
            column = 0
        else:
            row = box // columns
            column = box - row * columns
    p, b = place(pack, first, packs, RUN)
    b = b * IMAGES
    h = row * BH
    w = column * BW
    for i in gl.static_range(NB):
        source = [p, b, h, w, n0 + i * BN]
        target = gy_tiles[i].index(stage)
        tma.async_copy_global_to_shared(gy_desc, source, ready[i].index(stage), target, pred=inside)
    for tap in gl.static_range(len(x_tiles)):
        source = [p * per_pass + b, h + heights[tap], phases[tap], w + across, channel]
        target = x_tiles[tap].index(stage)
        tma.async_copy_global_to_shared(
            x_desc, source, ready[NB + tap].index(stage), target, pred=inside
        )


@gluon.jit
def arrived(ready, at, steps, STAGES: gl.constexpr):
    """Wait for the copies of step ``at``; there are none from ``steps`` on."""
    for i in gl.static_range(len(ready)):
        mbarrier.wait(ready[i].index(at % STAGES), at // STAGES & 1, pred=at < steps)


@gluon.jit
def multiply(
    gy, x, products, stage, part: gl.constexpr, PARTS: gl.constexpr, FIRST: gl.constexpr
):  # fmt: skip
    """Start products + xᵀ · gy of one of PARTS images of a stage, without ``products`` if FIRST."""
    ROWS: gl.constexpr = x.shape[1] // PARTS
    x = x.index(stage)
    gy = gy.index(stage)
    if PARTS > 1:
        x = x.slice(part * ROWS, ROWS)
        gy = gy.slice(part * ROWS, ROWS)
    return warpgroup_mma(x.permute((1, 0)), gy, products, use_acc=not FIRST, is_async=True)


@gluon.jit
def load_ids(
    j, count, first, packs, P, B, sample_ptr, pass_ptr, stride_sample, stride_pass,
    W32: gl.constexpr, PARTS: gl.constexpr, RUN: gl.constexpr,
):  # fmt: skip
    """Sample and pass ids of the groups j … j + CHUNK − 1; any that exist beyond the last."""
    L: gl.constexpr = call_layout(W32, 16, gl.num_warps())
    group = j + gl.arange(0, CHUNK, gl.SliceLayout(1, gl.SliceLayout(2, L)))
    group = gl.minimum(group, count - 1)
    if RUN[0]:
        p = group
        b = group * 0
    else:
        p, pack = place(group // PARTS, first, packs, RUN)
        p = gl.minimum(p, P - 1)
        b = gl.minimum(pack * PARTS + group % PARTS, B - 1)
    sample = gl.load(sample_ptr + b.to(gl.int64) * stride_sample).to(gl.uint32)
    step = gl.load(pass_ptr + p.to(gl.int64) * stride_pass).to(gl.uint32)
    return sample, step


@gluon.jit
def make_words(
    tiles, n32, k4, next_k4, k0, k1, sample, step,
    TAPS: gl.constexpr, KEEP: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """Write the words of CHUNK groups, [CHUNK, outputs / 32, 64 channels] for every unit."""
    W32: gl.constexpr = tiles[0].shape[1]
    L: gl.constexpr = call_layout(W32, 16, gl.num_warps())
    word = gl.arange(0, W32, gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :, None]
    quad = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    sample = sample[:, None, None]
    zero = sample.to(gl.int32) * 0 + word * 0 + quad * 0
    for u in gl.static_range(len(tiles)):
        at_n = n32 + u // TAPS * W32 + word + zero
        at_k = k4 + u % TAPS * next_k4 + quad + zero
        store_words(tiles[u], at_n, at_k, k0, k1, sample, step[:, None, None], KEEP, BITS)
