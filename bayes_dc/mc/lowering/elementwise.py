"""What rules of elementwise operations share: memory of the result, dtypes, numbers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayes_dc.mc.layouts import same_layout
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.plan_types import Bind, Call, Value

Operand = Value | float
"""A value, or a number of the graph."""
Emit = Callable[..., list[Call]]
"""``emit(out, *operands)`` with tensors (on a GPU also numbers) gives calls."""


def elementwise(
    c: Context, operands: Sequence[Operand], emit: Emit, *, in_place: bool = True
) -> Value:
    """A result whose elements depend on one element of each operand.

    Args:
        c: The node.
        operands: Values, which broadcast, and numbers.
        emit: The calls; each writes an element only after the last read of it, or ``in_place`` is
            False.
        in_place: Whether the result may take the memory of an operand.

    Returns:
        The result.
    """
    values = [x for x in operands if isinstance(x, Value)]
    out = (in_place_of(c, values) if in_place else None) or c.out()
    to, *views = c.aligned(out, *values)

    def emitted(bind: Bind) -> list[Call]:
        tensors = iter(bind(v) for v in views)
        return emit(bind(to), *[next(tensors) if isinstance(x, Value) else x for x in operands])

    c.step(emitted, values, [out])
    return out


def in_place_of(c: Context, values: Sequence[Value]) -> Value | None:
    """The result in the memory of the first operand that allows it.

    Args:
        c: The node.
        values: Operands.

    Returns:
        None where none does: also where another operand is a different view of the same memory.
    """
    for x in values:
        others = [v for v in values if v.storage is x.storage]
        if all(v.shape == x.shape and same_layout(v.layout, x.layout) for v in others):
            out = c.in_place(x)
            if out is not None:
                return out
    return None


def number(c: Context, value: Operand, dtype: torch.dtype) -> Operand:
    """An operand as torch takes it without allocating.

    Args:
        c: The node.
        value: A value or a number.
        dtype: Type that the operation computes in.

    Returns:
        On a CPU a constant in place of a number, which torch would copy into a tensor in each call.
    """
    if isinstance(value, Value) or c.device != "cpu":
        return value
    return c.scalar(value, dtype)


def cast(c: Context, x: Operand, dtype: torch.dtype) -> Operand:
    """An operand in the dtype of the computation: on a CPU torch would make a copy in each call.

    Args:
        c: The node.
        x: A value or a number.
        dtype: Type that the operation computes in.

    Returns:
        ``x``, or a copy that a step of its own makes.
    """
    if not isinstance(x, Value) or x.dtype == dtype or (c.device != "cpu" and not x.constant):
        return x
    if x.constant:
        return c.constant(lambda t: t.to(dtype), x)
    x = x if x.kind == c.kind else c.repeated(x)
    out = c.out(x.shape, dtype)
    c.copy(x, out)
    return out


def common_dtype(*operands: Operand) -> torch.dtype:
    """Type that torch computes with.

    Args:
        operands: Values and numbers.

    Returns:
        As ``torch.result_type`` promotes.
    """

    def bare(x: Operand) -> Tensor | float:
        if not isinstance(x, Value):
            return x
        return torch.empty((1,) * x.ndim, dtype=x.dtype, device="meta")

    result, *rest = [bare(x) for x in operands]
    for other in rest:
        both = torch.result_type(result, other)
        dims = max(t.ndim if isinstance(t, Tensor) else 0 for t in (result, other))
        result = torch.empty((1,) * dims, dtype=both, device="meta")
    return result.dtype if isinstance(result, Tensor) else torch.result_type(result, result)
