"""Pooling of images and signals."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.pieces import pieces, rows_together, scratch_of_piece
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.sizes import fixed_sizes, is_dense, pair, strides_like
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
nn = torch._C._nn
Size = int | Sequence[int]
_FORM = (
    "its input has not the form [rows, channels, {places}] with the inputs first",
    "Give one input its first dimension: x[None].",
)
_UNEQUAL = (
    "adaptive_max_pool2d with windows of different sizes has no kernel on a GPU",
    "Choose an output size that divides {height} × {width}.",
)


@lowering(aten.max_pool2d.default)
def max_pool2d(
    c: Context,
    x: Value,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Value:
    """Largest entry of each window."""
    x, out = _images(c, x), c.out()
    at = (pair(kernel), pair(stride or kernel), pair(padding), pair(dilation))
    _max(c, x, out, at, ceil_mode)
    return out


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(c: Context, x: Value, *args: Any) -> tuple[Value, None]:
    """Largest entries; positions are not computed."""
    return max_pool2d(c, x, *args), None


@lowering(aten.max_pool1d.default)
def max_pool1d(
    c: Context,
    x: Value,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Value:
    """Largest entry of each window of a signal."""
    out = c.out()
    sizes = (kernel, stride or kernel, padding, dilation)
    at = tuple((e, pair(s)[1]) for e, s in zip((1, 1, 0, 1), sizes, strict=True))
    _max(c, _flat(c, x), _flat(c, out), at, ceil_mode)
    return out


def _max(c: Context, x: Value, out: Value, at: tuple[Any, ...], ceil_mode: bool) -> None:
    if c.device == "cuda":
        names = ("kernel_size", "stride", "padding", "dilation")
        _launched(c, x, out, "launch_max_pool2d", dict(zip(names, at, strict=True)))
    else:
        _pooled(c, x, out, nn.max_pool2d_with_indices, (*at, ceil_mode), with_places=True)


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    c: Context,
    x: Value,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    """Mean of each window."""
    x, out = _images(c, x), c.out()
    at = (pair(kernel), pair(stride or kernel), pair(padding))
    _mean(c, x, out, at, (ceil_mode, count_include_pad, divisor))
    return out


@lowering(aten.avg_pool1d.default)
def avg_pool1d(
    c: Context,
    x: Value,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """Mean of each window of a signal."""
    out = c.out()
    sizes = (kernel, stride or kernel, padding)
    at = tuple((e, pair(s)[1]) for e, s in zip((1, 1, 0), sizes, strict=True))
    _mean(c, _flat(c, x), _flat(c, out), at, (ceil_mode, count_include_pad, None))
    return out


def _mean(
    c: Context, x: Value, out: Value, at: tuple[Any, ...], rest: tuple[bool, bool, int | None]
) -> None:
    if c.device == "cuda":
        options = dict(zip(("kernel_size", "stride", "padding"), at, strict=True))
        options |= {"count_include_pad": rest[1], "divisor_override": rest[2]}
        _launched(c, x, out, "launch_avg_pool2d", options)
    else:
        _pooled(c, x, out, nn.avg_pool2d, (*at, *rest))


@lowering(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(c: Context, x: Value, size: Size) -> Value:
    """Means of as many windows as asked for."""
    x, out = _images(c, x), c.out()
    _adaptive(c, x, out)
    return out


@lowering(aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool1d(c: Context, x: Value, size: Size) -> Value:
    """Means of as many windows of a signal as asked for."""
    out = c.out()
    _adaptive(c, _flat(c, x), _flat(c, out))
    return out


def _adaptive(c: Context, x: Value, out: Value) -> None:
    if c.device == "cuda":
        _launched(c, x, out, "launch_adaptive_avg_pool2d", {})
    else:
        _pooled(c, x, out, nn.adaptive_avg_pool2d, (out.shape[2:],))


@lowering(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(c: Context, x: Value, size: Size) -> tuple[Value, None]:
    """Largest entries of as many windows as asked for, of equal size on a GPU."""
    x, out = _images(c, x), c.out()
    if c.device == "cpu":
        _pooled(c, x, out, nn.adaptive_max_pool2d, (out.shape[2:],), with_places=True)
        return out, None
    (height, width), (rows, columns) = x.shape[2:], out.shape[2:]
    if height % rows or width % columns:  # type: ignore[operator]
        why, remedy = _UNEQUAL
        c.refuse(why, remedy.format(height=height, width=width))
    kernel = height // rows, width // columns  # type: ignore[operator]
    _launched(c, x, out, "launch_max_pool2d", {"kernel_size": kernel, "stride": kernel})
    return out, None


def _images(c: Context, x: Value) -> Value:
    if x.ndim != 4 or x.rows_dim != 0:
        c.refuse(_FORM[0].format(places="height, width"), _FORM[1])
    return x


def _flat(c: Context, x: Value) -> Value:
    """Signals as images one pixel high."""
    if x.ndim != 3 or x.rows_dim != 0:
        c.refuse(_FORM[0].format(places="length"), _FORM[1])
    shape = (*x.shape[:2], 1, x.shape[2])
    return c.view(x, lambda t, b, p: t.unsqueeze(2), shape)


def _launched(c: Context, x: Value, out: Value, name: str, options: dict[str, Any]) -> None:
    """A step of one of our kernels."""
    launch = plain_kernel(name)
    c.step(lambda bind: [(launch, (bind(x), bind(out)), options)], [x], [out])


def _pooled(
    c: Context,
    x: Value,
    out: Value,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    with_places: bool = False,
) -> None:
    """A step of torch on a CPU, a piece of the rows at a time where it needs scratch.

    Torch writes the places of the largest entries too. It copies an input that has holes, and
    computes in the memory format of the input whatever that of ``out`` is.
    """
    scratch: list[Value] = []
    row_bytes = 0
    packed = not is_dense(x) or not same_format(x, out)
    image, result = fixed_sizes(x), fixed_sizes(out)
    if packed:
        row_bytes += prod(image) * x.dtype.itemsize
    if with_places:
        row_bytes += prod(result) * 8
    together = rows_together(row_bytes)
    rows = x.shape[0]
    if packed:
        scratch.append(scratch_of_piece(c, rows, together, image, x.dtype, "packed"))
    if with_places:
        scratch.append(scratch_of_piece(c, rows, together, result, torch.int64, "places"))

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        if not scratch:
            return [(function, (of, *args), {"out": to})]
        rooms = [bind(v) for v in scratch]
        calls: list[Call] = []
        for first, count in pieces(len(of), together):
            piece, into = of[first : first + count], to[first : first + count]
            if packed:
                room = rooms[0][:count].as_strided(piece.shape, strides_like(to, piece.shape))
                calls.append((room.copy_, (piece,), {}))
                piece = room
            places = rooms[-1][:count].as_strided(into.shape, strides_like(to, into.shape))
            written = (into, places) if with_places else into
            calls.append((function, (piece, *args), {"out": written}))
        return calls

    c.step(emit, [x], [out], scratch)


def same_format(x: Value, out: Value) -> bool:
    """Whether both have their channels first, or both last."""
    return is_dense(x, last=False) == is_dense(out, last=False)
