"""Borders, and images of other sizes."""

from collections.abc import Sequence
from typing import Any

import torch

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.lowering.select import selected
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten


@lowering(aten.pad.default, aten.constant_pad_nd.default)
def pad(
    c: Context, x: Value, pads: Sequence[int], mode: str | float = "constant", value: Any = None
) -> Value:
    """A border of one number, or of entries of the tensor."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    borders = {x.ndim - 1 - i // 2: pads[i : i + 2] for i in range(0, len(pads), 2)}
    borders = {d: both for d, both in borders.items() if any(both)}
    c.within_rows(x, tuple(borders))
    if mode == "constant":
        return _bordered(c, x, borders, 0.0 if value is None else value)
    index = {}
    for d, (before, after) in borders.items():
        size = x.shape[d]
        assert isinstance(size, int)
        places = torch.arange(-before, size + after)
        if mode == "circular":
            places = places % size
        elif mode == "replicate":
            places = places.clamp(0, size - 1)
        else:
            places = (size - 1 - (size - 1 - places.abs()).abs()).abs()
        index[d] = places
    if index:
        return selected(c, x, index)
    out = c.out()
    c.copy(x, out)
    return out


@lowering(aten.reflection_pad2d.default, aten.reflection_pad1d.default)
def reflection_pad(c: Context, x: Value, pads: Sequence[int]) -> Value:
    """A border of mirrored entries."""
    return pad(c, x, pads, "reflect")


@lowering(aten.replication_pad2d.default, aten.replication_pad1d.default)
def replication_pad(c: Context, x: Value, pads: Sequence[int]) -> Value:
    """A border of the outermost entries."""
    return pad(c, x, pads, "replicate")


def _bordered(c: Context, x: Value, borders: dict[int, Sequence[int]], value: float) -> Value:
    """The border is filled, the rest copied; a negative border cuts."""
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        inner = to
        calls: list[Call] = []
        for d, (before, after) in borders.items():
            size = inner.shape[d]
            for start, count in ((0, before), (size - after, after)):
                if count > 0:
                    calls.append((inner.narrow(d, start, count).fill_, (value,), {}))
            first, last = max(before, 0), max(after, 0)
            inner = inner.narrow(d, first, size - first - last)
            cut, end = max(-before, 0), max(-after, 0)
            of = of.narrow(d, cut, of.shape[d] - cut - end)
        return [*calls, (inner.copy_, (of,), {})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.upsample_nearest2d.vec)
def upsample_nearest(
    c: Context, x: Value, size: Sequence[int] | None, factors: Sequence[float] | None
) -> Value:
    """Images enlarged by repetition of the nearest pixel."""
    c.within_rows(x, (2, 3))
    shape = c.meta().shape
    index = {}
    for d in (2, 3):
        was, now = x.shape[d], shape[d]
        assert isinstance(was, int)
        assert isinstance(now, int)
        step = 1 / factors[d - 2] if factors is not None else was / now
        places = (torch.arange(now, dtype=torch.float32) * step).floor()
        index[d] = places.to(torch.int64).clamp(max=was - 1)
    return selected(c, x, index)


@lowering(aten.pixel_shuffle.default)
def pixel_shuffle(c: Context, x: Value, factor: int) -> Value:
    """Channels as pixels."""
    c.within_rows(x, (1, 2, 3))
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        n, channels, height, width = of.shape
        of = of.view(n, channels // factor**2, factor, factor, height, width)
        to = to.view(n, channels // factor**2, height, factor, width, factor)
        return [(to.copy_, (of.permute(0, 1, 4, 2, 5, 3),), {})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.pixel_unshuffle.default)
def pixel_unshuffle(c: Context, x: Value, factor: int) -> Value:
    """Pixels as channels."""
    c.within_rows(x, (1, 2, 3))
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        n, channels, height, width = of.shape
        of = of.view(n, channels, height // factor, factor, width // factor, factor)
        to = to.view(n, channels, factor, factor, height // factor, width // factor)
        return [(to.copy_, (of.permute(0, 1, 3, 5, 2, 4),), {})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.channel_shuffle.default)
def channel_shuffle(c: Context, x: Value, groups: int) -> Value:
    """Channels of all groups in turn."""
    c.within_rows(x, range(1, x.ndim))
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        n, channels, *rest = of.shape
        of = of.view(n, groups, channels // groups, *rest)
        to = to.view(n, channels // groups, groups, *rest)
        return [(to.copy_, (of.transpose(1, 2),), {})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.im2col.default)
def im2col(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Patches of images as columns."""
    c.within_rows(x, (1, 2, 3))
    out = c.out()
    room = c.scratch(x.shape, x.dtype, "packed")

    def emit(bind: Bind) -> list[Call]:
        of = bind(x)
        calls: list[Call] = []
        if not of.is_contiguous():
            calls.append((bind(room).copy_, (of,), {}))
            of = bind(room)
        at = (kernel, dilation, padding, stride)
        return [*calls, (torch._C._nn.im2col, (of, *at), {"out": bind(out)})]

    c.step(emit, [x], [out], [room])
    return out
