"""Operations that select entries, or replace some."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import in_place_of
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_errors import MIXES
from bayes_dc.mc.plan_types import Bind, Call, Rows, Value

aten = torch.ops.aten
_INDEX = (
    "it selects by an index that depends on the input",
    "Use an index that is a constant, or gather(dim, index) along a dimension.",
)
_SEVERAL = (
    "it selects along several dimensions at once",
    "Select along one dimension after the other.",
)


def selected(c: Context, x: Value, index: dict[int, Tensor]) -> Value:
    """Entries by positions along some dimensions, one dimension after the other.

    Args:
        c: The node.
        x: The operand.
        index: Positions by dimension, at least one.

    Returns:
        The result.
    """
    dims = list(index)
    one = c.scalar(0, torch.int64)
    places = {d: c.constant(lambda zero, i=i: i.to(zero.device), one) for d, i in index.items()}
    out = c.out()
    values, shape = [x], list(x.shape)
    for d in dims[:-1]:
        shape[d] = len(index[d])
        values.append(c.scratch(shape, x.dtype, f"along{d}"))
    values.append(out)

    def emit(bind: Bind) -> list[Call]:
        tensors = [bind(v) for v in values]
        return [
            (torch.index_select, (of, d, bind(places[d])), {"out": to})
            for d, of, to in zip(dims, tensors, tensors[1:], strict=False)
        ]

    c.step(emit, [x], [out], values[1:-1])
    return out


@lowering(aten.flip.default)
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """Entries in reversed order along dimensions."""
    at = c.within_rows(x, dims)
    return selected(c, x, {d: torch.arange(x.shape[d] - 1, -1, -1) for d in at})  # type: ignore[operator]


@lowering(aten.roll.default)
def roll(c: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Entries moved along dimensions, the last ones to the front."""
    if not dims:
        c.refuse(*MIXES)
    at = c.within_rows(x, dims)
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    index = {d: torch.arange(x.shape[d]).roll(n) for d, n in zip(at, shifts, strict=True)}  # type: ignore[arg-type]
    return selected(c, x, index)


@lowering(aten.index_select.default)
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    """Entries along a dimension."""
    if not index.constant:
        c.refuse(*_INDEX)
    (at,) = c.within_rows(x, dim)
    out = c.out()
    places = c.constant(lambda i: i.contiguous(), index)
    c.step(
        lambda bind: [(torch.index_select, (bind(x), at, bind(places)), {"out": bind(out)})],
        [x],
        [out],
    )
    return out


@lowering(aten.index.Tensor)
def index_(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[:, index] with one constant index, of integers or truth values."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1:
        c.refuse(*_SEVERAL)
    ((dim, index),) = given
    if not index.constant:
        c.refuse(*_INDEX)
    if index.dtype in (torch.bool, torch.uint8) and index.ndim != 1:
        c.refuse(*_SEVERAL)
    (at,) = c.within_rows(x, dim)
    size = x.shape[at]

    def positions(i: Tensor) -> Tensor:
        if i.dtype in (torch.bool, torch.uint8):
            return i.nonzero().view(-1)
        return (i.to(torch.int64) % size).reshape(-1).contiguous()  # type: ignore[operator]

    places = c.constant(positions, index)
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        to, of, where = bind(out), bind(x), bind(places)
        to = to.view(*of.shape[:at], where.shape[0], *of.shape[at + 1 :])
        return [(torch.index_select, (of, at, where), {"out": to})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.embedding.default)
def embedding(c: Context, weight: Value, index: Value, *_: Any, **__: Any) -> Value:
    """Rows of a table."""
    if not weight.constant:
        c.refuse("its table depends on the input", "Use gather(dim, index).")
    out = c.out()
    flat = c.scratch((prod_of(index.shape),), index.dtype, "places")

    def emit(bind: Bind) -> list[Call]:
        places, table = bind(flat), bind(weight)
        to = bind(out).view(-1, table.shape[1])
        return [
            (places.view(bind(index).shape).copy_, (bind(index),), {}),
            (torch.index_select, (table, 0, places), {"out": to}),
        ]

    c.step(emit, [index], [out], [flat])
    return out


def prod_of(shape: Sequence[Any]) -> Any:
    """Entries of a shape: a number, or rows.

    Args:
        shape: Dimensions, at most one of them rows.

    Returns:
        Their product.
    """
    numbers = prod(d for d in shape if isinstance(d, int))
    rows = next((d for d in shape if isinstance(d, Rows)), None)
    return numbers if rows is None else Rows(rows.per_input * numbers, rows.folded)


@lowering(aten.gather.default)
def gather(c: Context, x: Value, dim: int, index: Value, **_: Any) -> Value:
    """Entries by an index for each result."""
    (at,) = c.within_rows(x, dim)
    out = c.out()
    to, of, places = c.aligned(out, x, index)
    from_end = at - x.ndim

    def emit(bind: Bind) -> list[Call]:
        y, where, source = bind(to), bind(places), bind(of)
        sizes = list(y.shape)
        sizes[from_end] = where.shape[from_end]
        return [(torch.gather, (source, from_end, where.expand(sizes)), {"out": y})]

    c.step(emit, [x, index], [out])
    return out


@lowering(aten.slice_scatter.default)
def slice_scatter(
    c: Context,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """X with part of it replaced, in place where x dies."""
    (at,) = c.within_rows(x, dim)
    return _replaced(c, x, source, lambda t: t[(slice(None),) * at + (slice(start, end, step),)])


@lowering(aten.select_scatter.default)
def select_scatter(c: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    """X with one entry along a dimension replaced, in place where x dies."""
    (at,) = c.within_rows(x, dim)
    return _replaced(c, x, source, lambda t: t.select(at, index))


def _replaced(c: Context, x: Value, source: Value, part: Callable[[Tensor], Tensor]) -> Value:
    """A copy of x, and one of the source into a part of it."""
    out = None
    if source.storage is not x.storage:
        out = in_place_of(c, [x])
    if out is None:
        out = c.out()
        c.copy(x, out)
    if source.kind != out.kind and not source.constant:
        source = c.repeated(source)
    c.step(lambda bind: [(part(bind(out)).copy_, (bind(source),), {})], [source, out], [out])
    return out


@lowering(aten.fill.Tensor, aten.fill.Scalar)
def fill(c: Context, x: Value, value: Value | float) -> Value:
    """One number everywhere, as written into a part of a tensor."""
    source = value if isinstance(value, Value) else c.scalar(value, x.dtype)
    out = c.out()
    c.copy(source, out)
    return out


@lowering(aten.tril.default, aten.triu.default)
def tril(c: Context, x: Value, diagonal: int = 0) -> Value:
    """One triangle of the last two dimensions, zeros elsewhere."""
    c.within_rows(x, (-2, -1))
    function = torch.tril if "tril" in c.node.op else torch.triu
    out = c.out()
    c.step(lambda bind: [(function, (bind(x), diagonal), {"out": bind(out)})], [x], [out])
    return out
