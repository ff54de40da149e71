"""Convolutions without masks."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bayes_dc.mc.lowering.context import Context, Epilogue
from bayes_dc.mc.lowering.conv_cpu import Geometry, by_patches, by_pixels, by_taps
from bayes_dc.mc.lowering.conv_cuda import by_cudnn, launched
from bayes_dc.mc.lowering.linear import check_types, scaled_weights
from bayes_dc.mc.lowering.pieces import PIECE_BYTES, rows_together, scratch_of_piece
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.sizes import bare, is_dense, pair
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
Size = int | Sequence[int]
_FORM = (
    "its input has not the form [rows, channels, {places}] with the inputs first",
    "Give one input its first dimension: x[None].",
)
_WEIGHT = (
    "its weight depends on the input",
    "Use a weight that is a parameter or a buffer.",
)
_UNEVEN = (
    "padding='same' needs one zero more at the end than at the beginning",
    "Pad with F.pad first, or choose an odd kernel.",
)


@lowering(aten.conv2d.default)
def conv2d(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Value:
    """W * x + b, with the BatchNorm that follows in W and b."""
    if x.ndim != 4 or x.rows_dim != 0:
        c.refuse(_FORM[0].format(places="height, width"), _FORM[1])
    _check_weight(c, w, bias)
    size = (w.shape[2], w.shape[3])
    at = Geometry(size, pair(stride), pair(padding), pair(dilation), groups)  # type: ignore[arg-type]
    after = c.epilogue()
    out = c.out()
    _convolved(c, x, w, bias, out, at, after)
    return out


@lowering(aten.conv2d.padding)
def conv2d_padding(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: str = "valid",
    dilation: Size = 1,
    groups: int = 1,
) -> Value:
    """W * x + b with the padding by name."""
    pads = (0, 0)
    if padding == "same":
        gaps = pair(dilation)
        total = [gap * (k - 1) for gap, k in zip(gaps, w.shape[2:], strict=True)]  # type: ignore[operator]
        if total[0] % 2 or total[1] % 2:
            c.refuse(*_UNEVEN)
        pads = (total[0] // 2, total[1] // 2)
    return conv2d(c, x, w, bias, stride, pads, dilation, groups)


@lowering(aten.conv1d.default)
def conv1d(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Value:
    """A convolution of signals, as that of images one pixel high."""
    if x.ndim != 3 or x.rows_dim != 0:
        c.refuse(_FORM[0].format(places="length"), _FORM[1])
    _check_weight(c, w, bias)
    step, pad, gap = pair(stride)[1], pair(padding)[1], pair(dilation)[1]
    at = Geometry((1, w.shape[2]), (1, step), (0, pad), (1, gap), groups)  # type: ignore[arg-type]
    after = c.epilogue()
    out = c.out()
    flat = [
        c.view(v, lambda t, b, p: t.unsqueeze(2), (*v.shape[:2], 1, v.shape[2]))
        for v in (x, w, out)
    ]
    _convolved(c, flat[0], flat[1], bias, flat[2], at, after)
    return out


def _check_weight(c: Context, w: Value, bias: Value | None) -> None:
    if not w.constant or (bias is not None and not bias.constant):
        c.refuse(*_WEIGHT)


def _convolved(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    out: Value,
    at: Geometry,
    after: Epilogue,
) -> None:
    """Steps of a convolution, and of ReLU after it."""
    if after.scale is not None:
        w, bias = scaled_weights(c, w, bias, after.scale, after.shift)
    if c.device == "cuda":
        if c.mode == "workspace":
            by_cudnn(c, x, w, bias, out, at, relu=after.relu)
        else:
            launched(c, x, w, bias, out, at, relu=after.relu)
        return
    if c.mode == "workspace":
        _by_onednn(c, x, w, bias, out, at)
    else:
        _by_products(c, x, w, bias, out, at)
    if after.relu:
        c.step(lambda bind: [(torch.relu_, (bind(out),), {})], [out], [out])


def _by_onednn(
    c: Context, x: Value, w: Value, bias: Value | None, out: Value, at: Geometry
) -> None:
    """A step of torch's convolution and a copy: oneDNN writes into memory of its own only."""

    def convolve(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor) -> None:
        out.copy_(F.conv2d(x, w, bias, at.stride, at.padding, at.dilation, at.groups))

    def emit(bind: Bind) -> list[Call]:
        added = None if bias is None else bind(bias)
        return [(convolve, (bind(x), bind(w), added, bind(out)), {})]

    c.step(emit, [x], [out], library_workspace=True)


def _by_products(
    c: Context, x: Value, w: Value, bias: Value | None, out: Value, at: Geometry
) -> None:
    """A step of matrix products, or of sums over the taps."""
    check_types(c, out.dtype)
    weights = c.constant(lambda t: t.contiguous(), w) if not _is_contiguous(w) else w
    if at.groups == x.shape[1] == w.shape[0] and not at.is_pointwise:
        c.step(
            lambda bind: by_taps(bind(x), bind(weights), _bound(bind, bias), bind(out), at),
            [x],
            [out],
        )
        return
    first, last = (is_dense(x, last=f) and is_dense(out, last=f) for f in (False, True))
    if at.is_pointwise and (first or (last and at.groups == 1)):
        c.step(
            lambda bind: by_pixels(
                bind(x), bind(weights), _bound(bind, bias), bind(out), at.groups
            ),
            [x],
            [out],
        )
        return
    _in_pieces(c, x, weights, bias, out, at)


def _in_pieces(
    c: Context, x: Value, w: Value, bias: Value | None, out: Value, at: Geometry
) -> None:
    """A step of products with patches that are written piece by piece."""
    _, channels, height, width = x.shape
    _, _, rows, columns = out.shape
    assert isinstance(channels, int)
    assert isinstance(height, int)
    assert isinstance(width, int)
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    item = x.dtype.itemsize
    taps = channels * at.kernel[0] * at.kernel[1]
    row_bytes = taps * columns * item
    together = rows_together(row_bytes * rows)
    # Rows before and after those of a piece that are computed with it and left out.
    extra = 2 * -(-at.padding[0] // at.stride[0])
    at_once = rows
    if row_bytes * rows > PIECE_BYTES:
        at_once = max(1, min(rows, PIECE_BYTES // row_bytes - extra))
    cut = at_once < rows
    most = min(rows, at_once + extra) if cut else rows
    patches = scratch_of_piece(c, x.shape[0], together, (taps, most * columns), x.dtype, "patches")
    scratch = [patches]
    if cut or not is_dense(x, last=False):
        reach = at.dilation[0] * (at.kernel[0] - 1) + 1
        taken = min(height, (most - 1) * at.stride[0] + reach) if cut else height
        shape = (channels, taken, width)
        scratch.append(scratch_of_piece(c, x.shape[0], together, shape, x.dtype, "packed"))

    def emit(bind: Bind) -> list[Call]:
        columns, *packed = (bind(v) for v in scratch)
        room = packed[0] if packed else None
        size = (together, at_once)
        added = _bound(bind, bias)
        return by_patches(bind(x), bind(w), added, bind(out), room, columns, at, size)

    c.step(emit, [x], [out], scratch)


def _is_contiguous(w: Value) -> bool:
    return bare(w, 1, 1).is_contiguous()


def _bound(bind: Bind, value: Value | None) -> Tensor | None:
    return None if value is None else bind(value)
