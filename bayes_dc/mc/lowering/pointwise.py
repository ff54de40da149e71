"""Elementwise functions of one tensor, and conversions."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.elementwise import cast, elementwise, number
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_types import Bind, Call, Value

aten = torch.ops.aten
nn = torch._C._nn

_UNARY: dict[Any, Callable[..., Tensor]] = {
    getattr(aten, name).default: getattr(torch, name)
    for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos",
        "cosh", "digamma", "erf", "erfc", "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log",
        "log10", "log1p", "log2", "logical_not", "neg", "reciprocal", "round", "rsqrt", "sgn",
        "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
    )
} | {
    aten.hardsigmoid.default: nn.hardsigmoid,
    aten.hardswish.default: nn.hardswish,
    aten.silu.default: nn.silu,
    aten.mish.default: nn.mish,
    aten.erfinv.default: torch.erfinv,
}  # fmt: skip
"""Functions with an ``out`` that is written without a copy."""
_SELU = 1.0507009873554805, 1.6732632423543772


def mapped(c: Context, x: Value, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
    """``function(x, *args, **kwargs, out=…)``, in the memory of x where it dies.

    Args:
        c: The node.
        x: The operand.
        function: Of torch.
        args: After x.
        kwargs: Beside ``out``.

    Returns:
        The result.
    """
    x = as_result(c, x)

    def emit(out: Tensor, x: Tensor) -> list[Call]:
        return [(function, (x, *args), kwargs | {"out": out})]

    return elementwise(c, [x], emit)


def as_result(c: Context, x: Value) -> Value:
    """``x`` in the dtype of the result, but for what makes truth values of numbers."""
    dtype = c.meta().dtype
    converted = x if dtype == torch.bool else cast(c, x, dtype)
    assert isinstance(converted, Value)
    return converted


def _unary(target: Any, function: Callable[..., Any]) -> None:
    @lowering(target)
    def rule(c: Context, x: Value) -> Value:
        return mapped(c, x, function)


for _target, _function in _UNARY.items():
    _unary(_target, _function)


@lowering(aten.relu.default)
def relu(c: Context, x: Value) -> Value:
    """max(x, 0); the ``out`` of ``torch.relu`` is a copy."""
    return mapped(c, x, torch.clamp_min, 0)


@lowering(aten.relu6.default)
def relu6(c: Context, x: Value) -> Value:
    """min(max(x, 0), 6)."""
    return mapped(c, x, torch.clamp, 0, 6)


@lowering(aten.hardtanh.default)
def hardtanh(c: Context, x: Value, low: float = -1, high: float = 1) -> Value:
    """min(max(x, low), high)."""
    return mapped(c, x, torch.clamp, low, high)


@lowering(aten.clamp.default)
def clamp(c: Context, x: Value, low: float | None = None, high: float | None = None) -> Value:
    """min(max(x, low), high) with numbers."""
    return mapped(c, x, torch.clamp, low, high)


@lowering(aten.clamp_min.default)
def clamp_min(c: Context, x: Value, low: float) -> Value:
    """max(x, low)."""
    return mapped(c, x, torch.clamp_min, low)


@lowering(aten.clamp_max.default)
def clamp_max(c: Context, x: Value, high: float) -> Value:
    """min(x, high)."""
    return mapped(c, x, torch.clamp_max, high)


@lowering(aten.gelu.default)
def gelu(c: Context, x: Value, *, approximate: str = "none") -> Value:
    """X Φ(x)."""
    return mapped(c, x, nn.gelu, approximate=approximate)


@lowering(aten.elu.default)
def elu(c: Context, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """Exponential linear unit."""
    return mapped(c, x, nn.elu, alpha, scale, input_scale)


@lowering(aten.selu.default)
def selu(c: Context, x: Value) -> Value:
    """Scaled exponential linear unit."""
    scale, alpha = _SELU
    return mapped(c, x, nn.elu, alpha, scale)


@lowering(aten.celu.default)
def celu(c: Context, x: Value, alpha: float = 1) -> Value:
    """Exponential linear unit with a continuous derivative."""
    return mapped(c, x, nn.elu, alpha, 1, 1 / alpha)


@lowering(aten.leaky_relu.default)
def leaky_relu(c: Context, x: Value, slope: float = 0.01) -> Value:
    """X, or slope · x where it is negative."""
    return mapped(c, x, nn.leaky_relu, slope)


@lowering(aten.rrelu.default)
def rrelu(
    c: Context, x: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any
) -> Value:
    """In evaluation mode a leaky ReLU with the mean slope."""
    if training:
        c.refuse("it draws slopes from torch's generator", "Call model.eval(), or use LeakyReLU.")
    return mapped(c, x, nn.leaky_relu, (low + high) / 2)


@lowering(aten.softplus.default)
def softplus(c: Context, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + exp(β x)) / β."""
    return mapped(c, x, nn.softplus, beta, threshold)


@lowering(aten.log_sigmoid.default)
def log_sigmoid(c: Context, x: Value) -> Value:
    """−softplus(−x): the ``out`` of log_sigmoid comes with a buffer."""

    def emit(out: Tensor, x: Tensor) -> list[Call]:
        return [
            (torch.neg, (x,), {"out": out}),
            # Without a threshold, above which softplus would be linear: log_sigmoid has none.
            (nn.softplus, (out, 1, math.inf), {"out": out}),
            (torch.neg, (out,), {"out": out}),
        ]

    return elementwise(c, [as_result(c, x)], emit)


@lowering(aten.threshold.default)
def threshold(c: Context, x: Value, bound: float, value: float) -> Value:
    """X where it is above a bound, else a value."""
    return mapped(c, x, aten.threshold.out, bound, value)


@lowering(aten.hardshrink.default)
def hardshrink(c: Context, x: Value, bound: float = 0.5) -> Value:
    """0 where |x| ≤ bound."""
    return mapped(c, x, torch.hardshrink, bound)


@lowering(aten.softshrink.default)
def softshrink(c: Context, x: Value, bound: float = 0.5) -> Value:
    """X moved towards 0 by bound."""
    return mapped(c, x, nn.softshrink, bound)


@lowering(aten.nan_to_num.default)
def nan_to_num(
    c: Context,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """Numbers in place of NaN and infinity."""
    return mapped(c, x, torch.nan_to_num, nan, posinf, neginf)


@lowering(aten.isnan.default)
def isnan(c: Context, x: Value) -> Value:
    """X ≠ x; ``torch.isnan`` has no ``out``."""

    def emit(out: Tensor, x: Tensor) -> list[Call]:
        return [(torch.ne, (x, x), {"out": out})]

    return elementwise(c, [x], emit, in_place=False)


@lowering(aten.isinf.default, aten.isfinite.default)
def isinf(c: Context, x: Value) -> Value:
    """|x| compared with infinity."""
    finite = c.node.op.endswith("isfinite.default")
    bound = number(c, math.inf, x.dtype)
    size = c.scratch(x.shape, x.dtype, "size")
    out = c.out()

    def emit(bind: Bind) -> list[Call]:
        limit = bind(bound) if isinstance(bound, Value) else bound
        compare = torch.lt if finite else torch.eq
        return [
            (torch.abs, (bind(x),), {"out": bind(size)}),
            (compare, (bind(size), limit), {"out": bind(out)}),
        ]

    c.step(emit, [x], [out], [size])
    return out


@lowering(aten.prelu.default)
def prelu(c: Context, x: Value, weight: Value) -> Value:
    """X, or weight · x where it is negative, with a weight for each channel."""
    if weight.constant and weight.ndim == 1 and x.ndim > 1:
        ones = (1,) * (x.ndim - 2)
        weight = c.view(weight, lambda t, b, p: t.view(-1, *ones), (*weight.shape, *ones))
    zero = number(c, 0.0, x.dtype)
    out = c.out()
    to, of, slope = c.aligned(out, x, weight)
    positive = c.scratch(to.shape, torch.bool, "positive")

    def emit(bind: Bind) -> list[Call]:
        x, y, where = bind(of), bind(to), bind(positive)
        bound = bind(zero) if isinstance(zero, Value) else zero
        return [
            (torch.gt, (x, bound), {"out": where}),
            (torch.mul, (x, bind(slope)), {"out": y}),
            (torch.where, (where, x, y), {"out": y}),
        ]

    c.step(emit, [x, weight], [out], [positive])
    return out


@lowering(aten.glu.default)
def glu(c: Context, x: Value, dim: int = -1) -> Value:
    """One half of x times the sigmoid of the other."""
    (at,) = c.within_rows(x, dim)
    out = c.out()
    c.step(lambda bind: [(nn.glu, (bind(x), at), {"out": bind(out)})], [x], [out])
    return out
