"""Positions of extremes, and cumulated sums, along dimensions that are not the rows."""

from typing import Any

import torch

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.reduce import in_type, may_divide, reduced_dims
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten


@lowering(aten.argmax.default, aten.argmin.default)
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Position of the largest or the least entry."""
    at = reduced_dims(c, x, dim)
    if len(at) != 1:
        c.refuse("it counts through all dimensions", "Flatten them first, and give a dimension.")
    function = torch.argmax if "argmax" in c.node.op else torch.argmin
    library = may_divide(c, x, at)
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        return [(function, (bind(x), at[0], keepdim), {"out": bind(out)})]

    c.step(emit, [x], [out], library_workspace=library)
    return out


@lowering(aten.max.dim, aten.min.dim)
def max_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Largest or least entry, and its position."""
    at = reduced_dims(c, x, dim)
    function = torch.max if "max" in c.node.op else torch.min
    library = may_divide(c, x, at)
    values, places = c.out(index=0), c.out(index=1)

    def emit(bind: Bind) -> list[Call]:
        return [(function, (bind(x), at[0], keepdim), {"out": (bind(values), bind(places))})]

    c.step(emit, [x], [values, places], library_workspace=library)
    return values, places


@lowering(aten.cumsum.default, aten.cumprod.default, devices=("cpu",))
def cumulated(c: Context, x: Value, dim: int, **_: Any) -> Value:
    """Sums or products of the entries so far."""
    (at,) = c.within_rows(x, dim)
    x = in_type(c, x, c.meta().dtype)
    out = c.out()
    function = torch.cumsum if "cumsum" in c.node.op else torch.cumprod
    c.step(lambda bind: [(function, (bind(x), at), {"out": bind(out)})], [x], [out])
    return out
