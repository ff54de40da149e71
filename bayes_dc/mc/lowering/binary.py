"""Elementwise functions of several operands: arithmetic, comparisons, choices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import Operand, cast, common_dtype, elementwise, number
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Call, Value

aten = torch.ops.aten
_SHORT = {torch.bfloat16, torch.float16}

_SAME_TYPE: dict[Any, Callable[..., Tensor]] = {
    aten.atan2.default: torch.atan2,
    aten.bitwise_and.Tensor: torch.bitwise_and,
    aten.bitwise_or.Tensor: torch.bitwise_or,
    aten.bitwise_xor.Tensor: torch.bitwise_xor,
    aten.__and__.Tensor: torch.bitwise_and,
    aten.__or__.Tensor: torch.bitwise_or,
    aten.__xor__.Tensor: torch.bitwise_xor,
    aten.copysign.Tensor: torch.copysign,
    aten.div.Tensor: torch.div,
    aten.div.Scalar: torch.div,
    aten.true_divide.Tensor: torch.div,
    aten.floor_divide.default: torch.floor_divide,
    aten.floor_divide.Scalar: torch.floor_divide,
    aten.fmax.default: torch.fmax,
    aten.fmin.default: torch.fmin,
    aten.fmod.Scalar: torch.fmod,
    aten.fmod.Tensor: torch.fmod,
    aten.hypot.default: torch.hypot,
    aten.logaddexp.default: torch.logaddexp,
    aten.maximum.default: torch.maximum,
    aten.minimum.default: torch.minimum,
    aten.pow.Tensor_Tensor: torch.pow,
    aten.remainder.Scalar: torch.remainder,
    aten.remainder.Tensor: torch.remainder,
    aten.xlogy.Tensor: torch.xlogy,
}
"""Computed in the type of the result."""
_COMPARISONS: dict[Any, Callable[..., Tensor]] = {
    getattr(getattr(aten, name), overload): getattr(torch, name)
    for name in ("eq", "ge", "gt", "le", "lt", "ne")
    for overload in ("Scalar", "Tensor")
} | {
    aten.logical_and.default: torch.logical_and,
    aten.logical_or.default: torch.logical_or,
    aten.logical_xor.default: torch.logical_xor,
}
"""Computed in the type that the operands have in common."""


def combined(
    c: Context,
    operands: tuple[Operand, ...],
    dtype: torch.dtype,
    function: Callable[..., Any],
    **kwargs: Any,
) -> Value:
    """``function(*operands, **kwargs, out=…)``, in the memory of an operand that dies.

    Args:
        c: The node.
        operands: Values and numbers.
        dtype: Type that it is computed in.
        function: Of torch.
        kwargs: Beside ``out``.

    Returns:
        The result.
    """  # fmt: skip
    taken = [number(c, cast(c, x, dtype), dtype) for x in operands]

    def emit(out: Tensor, *operands: Any) -> list[Call]:
        return [(function, operands, kwargs | {"out": out})]

    return elementwise(c, taken, emit)


def _binary(target: Any, function: Callable[..., Any]) -> None:
    @lowering(target)
    def rule(c: Context, a: Operand, b: Operand) -> Value:
        return combined(c, (a, b), c.meta().dtype, function)


def _comparison(target: Any, function: Callable[..., Any]) -> None:
    @lowering(target)
    def rule(c: Context, a: Operand, b: Operand) -> Value:
        return combined(c, (a, b), common_dtype(a, b), function)


for _target, _function in _SAME_TYPE.items():
    _binary(_target, _function)
for _target, _function in _COMPARISONS.items():
    _comparison(_target, _function)


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Value:
    """A + alpha · b."""
    return _sum(c, a, b, alpha)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Value:
    """A − alpha · b."""
    return _sum(c, a, b, -alpha)


@lowering(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Value:
    """B − alpha · a."""
    return _sum(c, b, a, -alpha)


def _sum(c: Context, a: Operand, b: Operand, alpha: float) -> Value:
    """A + alpha · b."""
    dtype = c.meta().dtype
    if alpha == 1:
        return combined(c, (a, b), dtype, torch.add)
    if alpha == -1:
        return combined(c, (a, b), dtype, torch.sub)
    return combined(c, (a, b), dtype, torch.add, alpha=alpha)


@lowering(aten.mul.Tensor, aten.mul.Scalar)
def mul(c: Context, a: Operand, b: Operand) -> Value:
    """A · b."""
    dtype = c.meta().dtype
    if dtype in _SHORT and c.device == "cpu":
        for factor, x in ((a, b), (b, a)):
            if not isinstance(factor, Value):
                # −0 + factor · x · 1 keeps the factor in full precision, and the sign of a zero.
                terms = (c.scalar(-0.0, dtype), x, c.scalar(1.0, dtype))
                return combined(c, terms, dtype, torch.addcmul, value=factor)
    return combined(c, (a, b), dtype, torch.mul)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(c: Context, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    """A / b, rounded towards zero or down."""
    return combined(c, (a, b), c.meta().dtype, torch.div, rounding_mode=rounding_mode)


@lowering(aten.pow.Tensor_Scalar)
def power(c: Context, x: Value, exponent: float) -> Value:
    """X to a power that is a number, which torch takes as it is."""
    taken = cast(c, x, c.meta().dtype)

    def emit(out: Tensor, x: Tensor) -> list[Call]:
        return [(torch.pow, (x, exponent), {"out": out})]

    return elementwise(c, [taken], emit)


@lowering(aten.pow.Scalar)
def power_of_number(c: Context, base: float, exponent: Value) -> Value:
    """A number to the powers of a tensor: on a GPU torch would make a tensor of it, too."""
    dtype = c.meta().dtype
    return combined(c, (c.scalar(base, dtype), exponent), dtype, torch.pow)


@lowering(aten.clamp.Tensor)
def clamp(c: Context, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """min(max(x, low), high) with tensors."""
    dtype = c.meta().dtype
    bounds = [(v, f) for v, f in ((low, torch.maximum), (high, torch.minimum)) if v is not None]
    if len(bounds) == 1:
        bound, function = bounds[0]
        return combined(c, (x, bound), dtype, function)
    taken = [cast(c, v, dtype) for v in (x, low, high) if v is not None]

    def emit(out: Tensor, x: Tensor, low: Tensor, high: Tensor) -> list[Call]:
        return [(torch.clamp, (x, low, high), {"out": out})]

    return elementwise(c, taken, emit)


@lowering(aten.clamp_min.Tensor)
def clamp_min(c: Context, x: Value, low: Value) -> Value:
    """max(x, low)."""
    return combined(c, (x, low), c.meta().dtype, torch.maximum)


@lowering(aten.clamp_max.Tensor)
def clamp_max(c: Context, x: Value, high: Value) -> Value:
    """min(x, high)."""
    return combined(c, (x, high), c.meta().dtype, torch.minimum)


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(c: Context, condition: Value, a: Operand, b: Operand) -> Value:
    """A where the condition holds, b elsewhere."""
    return _chosen(c, condition, a, b)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(c: Context, x: Value, mask: Value, value: Operand) -> Value:
    """A value where the mask is set."""
    return _chosen(c, mask, value, x)


def _chosen(c: Context, condition: Value, a: Operand, b: Operand) -> Value:
    """``torch.where``, which wants numbers as tensors on its device."""
    dtype = c.meta().dtype
    a, b = (cast(c, x, dtype) if isinstance(x, Value) else c.scalar(x, dtype) for x in (a, b))

    def emit(out: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> list[Call]:
        return [(torch.where, (condition, a, b), {"out": out})]

    return elementwise(c, [condition, a, b], emit)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(c: Context, a: Value, b: Value, weight: Operand) -> Value:
    """A + weight · (b − a)."""
    dtype = c.meta().dtype
    if not isinstance(weight, Value):
        values = [cast(c, x, dtype) for x in (a, b)]

        def emit(out: Tensor, a: Tensor, b: Tensor) -> list[Call]:
            return [(torch.lerp, (a, b, weight), {"out": out})]

        return elementwise(c, values, emit)
    return combined(c, (a, b, weight), dtype, torch.lerp)


@lowering(aten.addcmul.default)
def addcmul(c: Context, a: Value, b: Value, d: Value, *, value: float = 1) -> Value:
    """A + value · b · d."""
    return combined(c, (a, b, d), c.meta().dtype, torch.addcmul, value=value)


@lowering(aten.addcdiv.default)
def addcdiv(c: Context, a: Value, b: Value, d: Value, *, value: float = 1) -> Value:
    """A + value · b / d."""
    return combined(c, (a, b, d), c.meta().dtype, torch.addcdiv, value=value)
