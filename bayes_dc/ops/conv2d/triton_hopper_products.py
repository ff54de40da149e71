"""Two simpler loops of the Hopper convolution: warp by warp, and without masks.

Where nothing is dropped both operands of wgmma come from shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from bayes_dc.ops._hopper import block_barrier
from bayes_dc.ops._wgmma import as_operand, mask_tile, round_tile
from bayes_dc.ops.conv2d.triton_hopper_walk import advance, load_weights, operand


@gluon.jit
def multiply_dense(
    accs, steps, tiles, right, descriptors, memory, barriers, corner, m, C, walk, stride_tap, ids,
    IMAGES: gl.constexpr, DOWN: gl.constexpr, CHUNK: gl.constexpr, TAPS: gl.constexpr,
):  # fmt: skip
    """Sums of all steps, of 16-bit weights and one part; tiles 0 … STAGES − 2 are on their way."""
    here, ready = barriers
    SLOTS: gl.constexpr = here.shape[0]
    STAGES: gl.constexpr = ready.shape[0]
    BR: gl.constexpr = accs[0].shape[1]
    LINES: gl.constexpr = right.shape[0] // SLOTS
    acc = accs[0]
    for i in range(0, steps):
        mbarrier.wait(here.index(i // DOWN % SLOTS), i // DOWN // SLOTS & 1)
        mbarrier.wait(ready.index(i % STAGES), i // STAGES & 1)
        b = operand(right, i, 0, LINES, 1, SLOTS, DOWN, BR, TAPS, False)
        acc = warpgroup_mma(tiles.index(i % STAGES), b, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        # Every warp has done with stage i − 1, the one to be filled.
        block_barrier()
        advance(
            i, steps, descriptors, memory, barriers, corner, m, C, walk, stride_tap, ids,
            IMAGES, 1, DOWN, CHUNK, TAPS, False, 1, 0,
        )  # fmt: skip
    return (warpgroup_mma_wait(0, deps=[acc]),)


@gluon.jit
def multiply_by_warp(
    accs, steps, tiles, right, words, shift, byte, descriptors, memory, barriers, corner,
    m, C, walk, stride_tap, ids, IMAGES: gl.constexpr, LINES: gl.constexpr, PARTS: gl.constexpr,
    DOWN: gl.constexpr, CHUNK: gl.constexpr, TAPS: gl.constexpr, TRANSPOSED: gl.constexpr,
    KEEP: gl.constexpr, BITS: gl.constexpr, A: gl.constexpr, ROWS: gl.constexpr,
    SPREAD: gl.constexpr,
):  # fmt: skip
    """Sums of all steps and parts by the instructions of a warp, for few positions."""
    here, ready = barriers
    SLOTS: gl.constexpr = here.shape[0]
    STAGES: gl.constexpr = ready.shape[0]
    BR: gl.constexpr = accs[0].shape[1]
    MMA: gl.constexpr = accs[0].type.layout
    BOP: gl.constexpr = gl.DotOperandLayout(1, MMA, 32 // descriptors[0].dtype.primitive_bitwidth)
    for i in range(0, steps):
        # Every warp has done with stage i − 1, the one to be filled, and its words.
        fence_async_shared()
        block_barrier()
        advance(
            i, steps, descriptors, memory, barriers, corner, m, C, walk, stride_tap, ids,
            IMAGES, PARTS, DOWN, CHUNK, TAPS, TRANSPOSED, KEEP, BITS,
        )  # fmt: skip
        mbarrier.wait(here.index(i // DOWN % SLOTS), i // DOWN // SLOTS & 1)
        mbarrier.wait(ready.index(i % STAGES), i // STAGES & 1)
        w = load_weights(tiles, i, ROWS, TRANSPOSED)
        new = ()
        for part in gl.static_range(PARTS):
            if BITS > 0:
                word = words.index((i * PARTS + part) % words.shape[0])
                kept = mask_tile(w, word, shift, byte, SPREAD, TRANSPOSED)
            else:
                kept = round_tile(w)
            a = as_operand(kept, A, TRANSPOSED)
            b = operand(right, i, part, IMAGES * LINES, PARTS, SLOTS, DOWN, BR, TAPS, TRANSPOSED)
            new = new + (mma_v2(a, b.load(BOP), accs[part]),)
        accs = new
    return accs
