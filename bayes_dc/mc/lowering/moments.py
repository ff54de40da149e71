"""Variances and norms along dimensions that are not the rows."""

from collections.abc import Sequence
from typing import Any

import torch

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.reduce import (
    Dims,
    by_torch,
    count_of,
    in_type,
    last,
    reduced,
    reduced_dims,
    without,
)
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten


@lowering(aten.var.correction, aten.std.correction)
def var(
    c: Context,
    x: Value,
    dims: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    """Variance or standard deviation."""
    return _variance(c, x, dims, 1 if correction is None else correction)


@lowering(aten.var.dim, aten.std.dim)
def var_unbiased(
    c: Context, x: Value, dims: Dims, unbiased: bool = True, keepdim: bool = False
) -> Value:
    """Variance or standard deviation."""
    return _variance(c, x, dims, int(unbiased))


def _variance(c: Context, x: Value, dims: Dims, correction: float) -> Value:
    """By torch on a CPU; on a GPU from the mean of squares, by kernels of our own."""
    at = reduced_dims(c, x, dims)
    root = "std" in c.node.op
    if c.device == "cpu":
        function = torch.std if root else torch.var
        return by_torch(c, x, at, function, correction=correction)
    out = c.out()
    _write_variance(c, x, at, correction, out, root=root)
    return out


def _write_variance(
    c: Context, x: Value, dims: Sequence[int], correction: float, out: Value, *, root: bool
) -> None:
    launch_reduce = plain_kernel("launch_reduce")

    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    means, parts = c.scratch(kept, x.dtype, "means"), c.scratch(x.shape, x.dtype, "parts")
    divisor = max(0.0, count_of(x, dims) - correction)

    def emit(bind: Bind) -> list[Call]:
        mean, part, to = bind(means), bind(parts), bind(out)
        into = without(to, dims) if to.ndim == x.ndim else to
        at: dict[str, Any] = {"dims": len(dims)}
        calls: list[Call] = [
            (launch_reduce, (last(bind(x), dims), without(mean, dims)), at | {"kind": "mean"}),
            (torch.sub, (bind(x), mean), {"out": part}),
            (torch.mul, (part, part), {"out": part}),
            (launch_reduce, (last(part, dims), into), at | {"kind": "sum"}),
            (to.div_, (divisor,), {}),
        ]
        return [*calls, (to.sqrt_, (), {})] if root else calls

    c.step(emit, [x], [out], [means, parts])


@lowering(aten.var_mean.dim, aten.var_mean.correction)
def var_mean(
    c: Context,
    x: Value,
    dims: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]:
    """Variance and mean."""
    divisor = float(unbiased) if correction is None else correction
    at = reduced_dims(c, x, dims)
    return _variance(c, x, at, divisor), reduced(c, x, at, "mean", c.out(index=1))


@lowering(aten.linalg_vector_norm.default)
def vector_norm(
    c: Context,
    x: Value,
    order: float = 2,
    dims: Dims = None,
    keepdim: bool = False,
    **_: Any,
) -> Value:
    """(Σ |x|^p)^(1/p)."""
    x, at = in_type(c, x, c.meta().dtype), reduced_dims(c, x, dims)
    if c.device == "cpu" or order not in (1, 2):
        return by_torch(c, x, at, torch.linalg.vector_norm, ord=order)
    parts = c.scratch(x.shape, x.dtype, "parts")
    out = c.out()
    launch_reduce = plain_kernel("launch_reduce")

    def emit(bind: Bind) -> list[Call]:
        part, to = bind(parts), bind(out)
        into = without(to, at) if to.ndim == x.ndim else to
        terms = torch.abs if order == 1 else torch.square
        calls: list[Call] = [
            (terms, (bind(x),), {"out": part}),
            (launch_reduce, (last(part, at), into), {"dims": len(at), "kind": "sum"}),
        ]
        return calls if order == 1 else [*calls, (to.sqrt_, (), {})]

    c.step(emit, [x], [out], [parts])
    return out
