"""What the Hopper convolution writes: sums of a box of positions, scaled, with bias, finished."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from bayes_dc.ops._wgmma import finish_rows, in_order


@gluon.constexpr_function
def sums_layout(BR, WARPS, SIZE, BY_WARP):
    """Layout of the sums of a part [BM, BR]."""
    if BY_WARP:
        return gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BR, 256 // SIZE])


@gluon.jit
def store_results(
    done, target, b_ptr, first, m0, images, OH, OW, M, stride_b, stride_ob, stride_oh, stride_ow,
    factors_ptr, summands_ptr, PARTS: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr,
    PHASES: gl.constexpr, SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, IN_ORDER: gl.constexpr,
    EPILOGUE: gl.constexpr, ELEMENT: gl.constexpr,
):  # fmt: skip
    """Write the products of all parts, images of BH × BW positions, from ``first`` on.

    IN_ORDER: the rows are, as those of ``as_operand``'s weights may not be.
    """
    BM: gl.constexpr = done[0].shape[0]
    BR: gl.constexpr = done[0].shape[1]
    EACH: gl.constexpr = BR // (BH * BW)
    VECTOR: gl.constexpr = 128 // ELEMENT.primitive_bitwidth
    LANES: gl.constexpr = min(32, BM // VECTOR)
    L: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0]
    )
    r = gl.arange(0, BR, gl.SliceLayout(1, L))
    m = m0 + gl.arange(0, BM, gl.SliceLayout(0, L))[None, :]
    i = first[0] + r // BW % BH * PHASES
    j = first[1] + r % BW * PHASES
    inside = (i < OH) & (j < OW)
    offset = r // (BH * BW) * stride_ob + i * stride_oh + j * stride_ow
    for part in gl.static_range(PARTS):
        y = in_order(done[part] * SCALE, IN_ORDER)
        if HAS_BIAS:
            n = m0 + gl.arange(0, BM, gl.SliceLayout(1, y.type.layout))
            bias = gl.load(b_ptr + n.to(gl.int64) * stride_b, mask=n < M, other=0)
            y += bias.to(gl.float32)[:, None]
        if EPILOGUE > 0:
            n = m0 + gl.arange(0, BM, gl.SliceLayout(1, y.type.layout))
            y = finish_rows(y, factors_ptr, summands_ptr, n, M, EPILOGUE)
        y = gl.convert_layout(gl.permute(y.to(ELEMENT), (1, 0)), L)
        here = inside & (part * EACH + r // (BH * BW) < images)
        gl.store(target + offset[:, None] + m, y, mask=here[:, None] & (m < M))
        target += stride_ob * EACH
