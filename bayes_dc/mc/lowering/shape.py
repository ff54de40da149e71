"""Operations that join and repeat tensors."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_errors import MIXES
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten


@lowering(aten.cat.default)
def cat(c: Context, xs: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a dimension."""
    xs = [x for x in xs if x.ndim > 1 or x.shape[0] != 0]  # torch takes empty vectors for nothing
    at = dim % xs[0].ndim
    for x in xs:
        c.within_rows(x, at)
    return _joined(c, xs, at)


@lowering(aten.hstack.default)
def hstack(c: Context, xs: Sequence[Value]) -> Value:
    """Tensors one after the other along the second dimension."""
    return cat(c, xs, 1 if xs[0].ndim > 1 else 0)


@lowering(aten.stack.default)
def stack(c: Context, xs: Sequence[Value], dim: int = 0) -> Value:
    """Tensors along a new dimension."""
    at = dim % (xs[0].ndim + 1)

    def spread(x: Value) -> Value:
        shape = (*x.shape[:at], 1, *x.shape[at:])
        return c.view(x, lambda t, b, p: t.unsqueeze(at), shape)

    return _joined(c, [spread(x) for x in xs], at)


def _joined(c: Context, xs: Sequence[Value], dim: int) -> Value:
    """One call of torch where the tensors have one dtype, else a copy for each."""
    out = c.out()
    to, *views = c.aligned(out, *xs)
    from_end = dim - out.ndim
    alike = all(x.dtype == out.dtype for x in xs)
    whole = all(
        v.ndim == to.ndim and all(_same(a, b) for a, b in _others(v, to, from_end)) for v in views
    )

    def emit(bind: Bind) -> list[Call]:
        y, tensors = bind(to), [bind(v) for v in views]
        if alike and whole:
            return [(torch.cat, (tensors, from_end), {"out": y})]
        starts = accumulate((t.shape[from_end] for t in tensors), initial=0)
        return [
            (y.narrow(from_end, start, t.shape[from_end]).copy_, (t,), {})
            for start, t in zip(starts, tensors, strict=False)
        ]

    c.step(emit, xs, [out])
    return out


def _others(x: Value, y: Value, dim: int) -> list[tuple[Any, Any]]:
    """Pairs of dimensions but one."""
    return [pair for d, pair in enumerate(zip(x.shape, y.shape, strict=True)) if d != x.ndim + dim]


def _same(a: Any, b: Any) -> bool:
    """Equal sizes; rows split into passes and inputs are so for both."""
    return a == b


@lowering(aten.repeat.default, aten.tile.default)
def repeat(c: Context, x: Value, counts: Sequence[int]) -> Value:
    """The whole tensor several times along dimensions."""
    out = c.out()
    counts = [1] * (out.ndim - len(counts)) + list(counts)
    added = out.ndim - x.ndim
    if x.rows_dim is not None and counts[added + x.rows_dim] != 1:
        c.refuse(*MIXES)

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        sizes = (1,) * added + tuple(of.shape)
        split = [part for n, size in zip(counts, sizes, strict=True) for part in (n, size)]
        source = [part for size in sizes for part in (1, size)]
        return (
            [(to.view(split).copy_, (of.view(source),), {})]
            if _viewable(of, source)
            else [(to.view(split).copy_, (_split_ones(of, added),), {})]
        )

    c.step(emit, [x], [out])
    return out


def _viewable(t: Tensor, shape: Sequence[int]) -> bool:
    return t.is_contiguous() and t.numel() == prod(shape)


def _split_ones(t: Tensor, added: int) -> Tensor:
    """A dimension of one entry before each, and ``added`` pairs in front."""
    for d in reversed(range(t.ndim)):
        t = t.unsqueeze(d)
    return t[(None,) * (2 * added)] if added else t


@lowering(aten.repeat_interleave.self_int)
def repeat_interleave(c: Context, x: Value, count: int, dim: int | None = None, **_: Any) -> Value:
    """Every entry several times along a dimension."""
    if dim is None:
        c.refuse(*MIXES)
    (at,) = c.within_rows(x, dim)
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        of, to = bind(x), bind(out)
        spread = to.unflatten(at, (of.shape[at], count))
        return [(spread.copy_, (of.unsqueeze(at + 1),), {})]

    c.step(emit, [x], [out])
    return out
