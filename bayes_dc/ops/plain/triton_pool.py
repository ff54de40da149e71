"""Pooling without a buffer of indices: the maximum or the mean of a window, one window an output.

    out[b, c, i, j] = max or mean over (u, v) of x[b, c, i · sh − ph + u · dh, j · sw − pw + v · dw]
    adaptive        = mean over rows ⌊i · H / OH⌋ … ⌈(i + 1) · H / OH⌉ − 1, columns alike

Shapes      x [B, C, H, W], out [B, C, OH, OW], any strides; they may not overlap.
Tile        positions × channels. CHANNELS_LAST: rows are positions of all images, columns channels;
            else rows are channels of all images, columns positions of one.
Grid        tiles of columns (fastest) · tiles of rows.
Precision   float32 (float64 for float64): a sum over the window, then one division. Padding is
            outside of a maximum and 0 in a sum. A NaN in the window is the result.
Order       taps ascend, row by row: equal bits for every tile.
Cost        a load for each tap and output; neighbours' come from the cache.
Limits      fewer than 2**31 programs, columns and positions of an image; other offsets are int64.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.plain import triton_reduce
from bayes_dc.ops.plain._strided import power_of_two

_TILE = 1024
_COLUMNS = 256
_UNROLLED = 8
"""Most taps of a row whose loads are all under way at once."""

_RUNTIME = ("B", "C", "H", "W", "OH", "OW", "column_tiles", "divisor")


@triton.jit
def pool2d_kernel(
    x_ptr,
    out_ptr,
    B,
    C,
    H,
    W,
    OH,
    OW,
    column_tiles,
    divisor,
    stride_xb,
    stride_xc,
    stride_xh,
    stride_xw,
    stride_ob,
    stride_oc,
    stride_oh,
    stride_ow,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    MAXIMUM: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    WITH_PADDING: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    ACC: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BC columns of BR rows. ``divisor`` 0: as many as the window has, WITH_PADDING or without."""
    pid = tl.program_id(0)
    tile = pid // column_tiles
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    row = tile.to(kind) * BR + tl.arange(0, BR)
    column = (pid - tile * column_tiles) * BC + tl.arange(0, BC)
    area = OH * OW
    if CHANNELS_LAST:
        image = row // area
        position = (row - image * area).to(tl.int32)
        there = row < tl.cast(B, kind) * area
        channel = column.to(tl.int64)
        seen = there[:, None] & (column < C)[None, :]
        x_row = image * stride_xb
        x_column = channel * stride_xc
        image = image.to(tl.int64)
    else:
        image = (row // C).to(tl.int64)
        channel = row - image * C
        position = column
        there = column < area
        seen = (row < tl.cast(B, kind) * C)[:, None] & there[None, :]
        x_row = image * stride_xb + channel * stride_xc
        x_column = column.to(tl.int64) * 0
    x = x_ptr + x_row[:, None] + x_column[None, :]
    i = position // OW
    j = position - i * OW
    if ADAPTIVE:
        top = (i.to(tl.int64) * H // OH).to(tl.int32)
        left = (j.to(tl.int64) * W // OW).to(tl.int32)
        bottom = ((i.to(tl.int64) * H + H + OH - 1) // OH).to(tl.int32)
        right = ((j.to(tl.int64) * W + W + OW - 1) // OW).to(tl.int32)
    else:
        top = i * SH - PH
        left = j * SW - PW
        bottom = tl.minimum(top + KH * DH, H + PH)
        right = tl.minimum(left + KW * DW, W + PW)
    result = tl.full([BR, BC], -float("inf") if MAXIMUM else 0.0, ACC)
    for u in range(KH):
        y = top + u * DH
        there_y = there & (y >= 0) & (y < tl.minimum(bottom, H))
        line = y.to(tl.int64) * stride_xh
        if UNROLL:
            for v in tl.static_range(KW):
                result = _take(
                    result, x, seen, line, left + v * DW, there_y, right, W, stride_xw,
                    MAXIMUM, CHANNELS_LAST,
                )  # fmt: skip
        else:
            for v in range(KW):
                result = _take(
                    result, x, seen, line, left + v * DW, there_y, right, W, stride_xw,
                    MAXIMUM, CHANNELS_LAST,
                )  # fmt: skip
    if not MAXIMUM:
        count = divisor + i * 0
        if WITH_PADDING:
            size = (bottom - top) * (right - left)
        else:
            height = tl.minimum(bottom, H) - tl.maximum(top, 0)
            size = height * (tl.minimum(right, W) - tl.maximum(left, 0))
        # Windows of no output may be empty.
        count = tl.where(count == 0, tl.where(there, size, 1), count).to(ACC)
        count = count[:, None] if CHANNELS_LAST else count[None, :]
        result, count = tl.broadcast(result, count)
        result = result / count if ACC == tl.float64 else tl.div_rn(result, count)
    to = i.to(tl.int64) * stride_oh + j.to(tl.int64) * stride_ow
    if CHANNELS_LAST:
        to = (image * stride_ob + to)[:, None] + (channel * stride_oc)[None, :]
    else:
        to = (image * stride_ob + channel * stride_oc)[:, None] + to[None, :]
    tl.store(out_ptr + to, result.to(out_ptr.dtype.element_ty), mask=seen)


@triton.jit
def _take(
    result, x, seen, line, column, there, right, W, stride_w,
    MAXIMUM: tl.constexpr, CHANNELS_LAST: tl.constexpr,
):  # fmt: skip
    """``result`` with one tap more of every window."""
    there = there & (column >= 0) & (column < tl.minimum(right, W))
    at = line + column.to(tl.int64) * stride_w
    if CHANNELS_LAST:
        at = at[:, None]
        seen = seen & there[:, None]
    else:
        at = at[None, :]
        seen = seen & there[None, :]
    values = tl.load(x + at, mask=seen, other=-float("inf") if MAXIMUM else 0.0)
    values = values.to(result.dtype)
    if MAXIMUM:
        return tl.maximum(result, values, propagate_nan=tl.PropagateNan.ALL)
    return result + values


def launch_max_pool2d(
    x: Tensor,
    out: Tensor,
    *,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> None:
    """Write ``F.max_pool2d(x, …)`` into ``out``, whose size says whether windows overhang.

    Args:
        x: Images ``[B, C, H, W]``.
        out: Result ``[B, C, OH, OW]``.
        kernel_size: Taps along the height and the width.
        stride: Distance of windows.
        padding: Rows and columns around the image that are no candidates.
        dilation: Distance of taps.
    """
    taps = _taps(kernel_size, stride, padding, dilation)
    _launch_pool(x, out, taps, 0, MAXIMUM=True, ADAPTIVE=False, WITH_PADDING=False)


def launch_avg_pool2d(
    x: Tensor,
    out: Tensor,
    *,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int] = (0, 0),
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
    """Write ``F.avg_pool2d(x, …)`` into ``out``, whose size says whether windows overhang.

    Args:
        x: Images ``[B, C, H, W]``.
        out: Result ``[B, C, OH, OW]``.
        kernel_size: Taps along the height and the width.
        stride: Distance of windows.
        padding: Rows and columns of zeros around the image.
        count_include_pad: Whether a sum is divided by taps in the padding, too.
        divisor_override: What every sum is divided by instead.
    """
    taps = _taps(kernel_size, stride, padding, (1, 1))
    options = {"MAXIMUM": False, "ADAPTIVE": False, "WITH_PADDING": count_include_pad}
    _launch_pool(x, out, taps, divisor_override or 0, **options)


def launch_adaptive_avg_pool2d(x: Tensor, out: Tensor) -> None:
    """Write ``F.adaptive_avg_pool2d(x, out.shape[2:])`` into ``out``.

    Args:
        x: Images ``[B, C, H, W]``.
        out: Result ``[B, C, OH, OW]``.
    """
    if out.numel() == 0:
        return
    if out.shape[2:] == (1, 1) and not _channels_last(x, out):
        # One long window of neighbours: a row of a tile, rather than a loop of a thread.
        triton_reduce.launch_reduce(x, out[:, :, 0, 0], dims=2, kind="mean")
        return
    largest = tuple(
        max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
        for n, m in zip(x.shape[2:], out.shape[2:], strict=True)
    )
    taps = _taps(largest, (1, 1), (0, 0), (1, 1))
    _launch_pool(x, out, taps, 0, MAXIMUM=False, ADAPTIVE=True, WITH_PADDING=False)


def _taps(
    kernel_size: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> dict[str, int]:
    names = ("KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW")
    return dict(zip(names, (*kernel_size, *stride, *padding, *dilation), strict=True))


def _channels_last(x: Tensor, out: Tensor) -> bool:
    """Whether neighbours in memory are channels rather than columns."""
    one = out.shape[2:] == (1, 1) and x.stride(1) == 1
    return x.shape[1] > 1 and (x.stride(1) < x.stride(3) or one)


def _launch_pool(
    x: Tensor, out: Tensor, taps: dict[str, int], divisor: int, **options: Any
) -> None:
    if out.numel() == 0:
        return
    B, C, OH, OW = out.shape
    last = _channels_last(x, out)
    rows, columns = (B * OH * OW, C) if last else (B * C, OH * OW)
    bc = min(power_of_two(columns), _COLUMNS)
    br = max(1, min(power_of_two(rows), _TILE // bc))
    column_tiles = triton.cdiv(columns, bc)
    with _launch.on_device_of(out):
        pool2d_kernel[(column_tiles * triton.cdiv(rows, br),)](
            x,
            out,
            B,
            C,
            *x.shape[2:],
            OH,
            OW,
            column_tiles,
            divisor,
            *x.stride(),
            *out.stride(),
            **taps,
            **options,
            CHANNELS_LAST=last,
            ACC=_launch.accumulator(x.dtype),
            UNROLL=taps["KW"] <= _UNROLLED,
            WIDE=rows + br > 2**31 - 2**16,
            BR=br,
            BC=bc,
            num_warps=max(1, min(4, br * bc // 256)),
        )
