"""Sums, extremes, norms and variances along dimensions that are not the rows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import cast
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
Dims = int | Sequence[int] | None
Function = Callable[..., Any]

_LONG = (
    "torch may divide its {count} entries among several blocks, which need memory of their own",
    "Compute it of at most {most} entries at a time, or pass mode='workspace'.",
)
_ONE_BLOCK = 255
"""Entries that torch's reductions on a GPU leave to one block, whatever the number of results."""


def reduced_dims(c: Context, x: Value, dims: Dims) -> tuple[int, ...]:
    """Dimensions of a reduction, from 0 on; all of them where none are given.

    Args:
        c: The node.
        x: The operand.
        dims: As in the graph.

    Returns:
        None of them is the dimension of the rows.
    """
    if dims is None or (not isinstance(dims, int) and not dims):
        dims = tuple(range(x.ndim))
    return c.within_rows(x, dims)


def count_of(x: Value, dims: Sequence[int]) -> int:
    """Entries of each result.

    Args:
        x: The operand.
        dims: Dimensions of the reduction.

    Returns:
        Their product.
    """
    count = 1
    for d in dims:
        size = x.shape[d]
        assert isinstance(size, int)
        count *= size
    return count


def last(t: Tensor, dims: Sequence[int]) -> Tensor:
    """``t`` with some dimensions behind all others.

    Args:
        t: A tensor.
        dims: Dimensions from 0 on.

    Returns:
        A view.
    """
    return t.permute(*[d for d in range(t.ndim) if d not in dims], *dims)


def without(t: Tensor, dims: Sequence[int]) -> Tensor:
    """``t`` without some dimensions of one entry.

    Args:
        t: A tensor.
        dims: Dimensions from 0 on.

    Returns:
        A view.
    """
    t = last(t, dims)
    for _ in dims:
        t = t[..., 0]
    return t


def reduce_calls(
    function: Function, x: Tensor, dims: Sequence[int], out: Tensor, pair: Tensor, **kwargs: Any
) -> list[Call]:
    """Calls of a reduction of torch.

    Args:
        function: Takes ``dim``, ``keepdim`` and ``out``.
        x: The operand.
        dims: Dimensions from 0 on.
        out: The result, with the dimensions as one entry or without them.
        pair: Room for two results: torch on a CPU divides the sum of a call that has only one, and
            allocates for the parts.
        kwargs: For the function.

    Returns:
        The calls.
    """
    if out.numel() != 1 or x.device.type != "cpu":
        at = {"dim": tuple(dims), "keepdim": out.ndim == x.ndim, "out": out}
        return [(function, (x,), kwargs | at)]
    entries = last(x, dims)
    entries = entries.view(entries.shape[x.ndim - len(dims) :])
    twice = entries.expand(2, *entries.shape)
    at = {"dim": tuple(range(1, twice.ndim)), "keepdim": False, "out": pair}
    return [(function, (twice,), kwargs | at), (out.copy_, (pair[0].view(out.shape),), {})]


def reduced(c: Context, x: Value, dims: Sequence[int], kind: str, out: Value) -> Value:
    """A step for a sum, a mean or a maximum.

    Args:
        c: The node.
        x: The operand.
        dims: Dimensions from 0 on.
        kind: ``"sum"``, ``"mean"`` or ``"max"``.
        out: The result, with the dimensions as one entry or without them.

    Returns:
        ``out``.
    """
    if c.device == "cuda":
        return _reduced_on_gpu(c, x, dims, kind, out)
    count = c.scalar(count_of(x, dims), out.dtype) if kind == "mean" else None
    pair = c.scratch((2,), out.dtype, "pair")

    def emit(bind: Bind) -> list[Call]:
        function = torch.amax if kind == "max" else torch.sum
        calls = reduce_calls(function, bind(x), dims, bind(out), bind(pair))
        if count is not None:
            calls.append((bind(out).div_, (bind(count),), {}))
        return calls

    c.step(emit, [x], [out], [pair])
    return out


def _reduced_on_gpu(c: Context, x: Value, dims: Sequence[int], kind: str, out: Value) -> Value:
    launch_reduce = plain_kernel("launch_reduce")

    def emit(bind: Bind) -> list[Call]:
        of, to = last(bind(x), dims), bind(out)
        if to.ndim == x.ndim:
            to = without(to, dims)
        return [(launch_reduce, (of, to), {"dims": len(dims), "kind": kind})]

    c.step(emit, [x], [out])
    return out


@lowering(aten.sum.dim_IntList, aten.sum.default)
def sum_(c: Context, x: Value, dims: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    """Sum over dimensions."""
    at = reduced_dims(c, x, dims)
    return reduced(c, in_type(c, x, c.meta().dtype), at, "sum", c.out())


@lowering(aten.mean.dim, aten.mean.default)
def mean(c: Context, x: Value, dims: Dims = None, keepdim: bool = False, **_: Any) -> Value:
    """Mean over dimensions; the ``out`` of ``torch.mean`` makes two scalars on a CPU."""
    at = reduced_dims(c, x, dims)
    return reduced(c, in_type(c, x, c.meta().dtype), at, "mean", c.out())


@lowering(aten.amax.default)
def amax(c: Context, x: Value, dims: Dims = (), keepdim: bool = False) -> Value:
    """Largest entry."""
    return reduced(c, x, reduced_dims(c, x, dims), "max", c.out())


@lowering(aten.amin.default)
def amin(c: Context, x: Value, dims: Dims = (), keepdim: bool = False) -> Value:
    """Least entry."""
    return by_torch(c, x, reduced_dims(c, x, dims), torch.amin)


def by_torch(c: Context, x: Value, dims: Sequence[int], function: Function, **kwargs: Any) -> Value:
    """A reduction by torch itself.

    Args:
        c: The node.
        x: The operand.
        dims: Dimensions from 0 on.
        function: Takes ``dim``, ``keepdim`` and ``out``.
        kwargs: For the function.

    Returns:
        The result.
    """
    library = may_divide(c, x, dims)
    out = c.out()
    pair = c.scratch((2,), out.dtype, "pair")

    def emit(bind: Bind) -> list[Call]:
        return reduce_calls(function, bind(x), dims, bind(out), bind(pair), **kwargs)

    c.step(emit, [x], [out], [pair], library_workspace=library)
    return out


def may_divide(c: Context, x: Value, dims: Sequence[int]) -> bool:
    """Whether torch may allocate for a reduction; refused in strict mode.

    Args:
        c: The node.
        x: The operand.
        dims: Dimensions from 0 on.

    Returns:
        True in mode "workspace" only.
    """
    library = c.device == "cuda" and count_of(x, dims) > _ONE_BLOCK
    if library and c.mode == "strict":
        why, remedy = _LONG
        c.refuse(why.format(count=count_of(x, dims)), remedy.format(most=_ONE_BLOCK))
    return library


@lowering(aten.any.dim, aten.any.dims, aten.any.default)
def any_(c: Context, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    """Whether any entry is not 0."""
    return _one_after_another(c, x, reduced_dims(c, x, dims), torch.any)


@lowering(aten.all.dim, aten.all.dims, aten.all.default)
def all_(c: Context, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
    """Whether all entries are not 0."""
    return _one_after_another(c, x, reduced_dims(c, x, dims), torch.all)


@lowering(aten.prod.dim_int)
def prod(c: Context, x: Value, dim: int, keepdim: bool = False, **_: Any) -> Value:
    """Product over a dimension."""
    return _one_after_another(c, in_type(c, x, c.meta().dtype), reduced_dims(c, x, dim), torch.prod)


def _one_after_another(c: Context, x: Value, dims: Sequence[int], function: Function) -> Value:
    """Functions that torch has with an ``out`` for one dimension only."""
    if len(dims) != 1:
        c.refuse(
            "it works along several dimensions at once",
            "Flatten them first, x.flatten(1), and give one dimension.",
        )
    return by_torch(c, x, dims, lambda x, *, dim, **rest: function(x, dim[0], **rest))


def in_type(c: Context, x: Value, dtype: torch.dtype) -> Value:
    """``x`` in the type of the sums; kernels of our own convert as they read.

    Args:
        c: The node.
        x: The operand.
        dtype: Type of the sums.

    Returns:
        ``x`` or a copy.
    """
    if c.device == "cuda":
        return x
    converted = cast(c, x, dtype)
    assert isinstance(converted, Value)
    return converted
