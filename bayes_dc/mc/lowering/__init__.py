"""Rules that turn operators into steps; importing this package registers those it holds."""

from bayes_dc.mc.lowering import (
    attention,
    binary,
    conv,
    einsum,
    linear,
    moments,
    norm,
    order,
    pointwise,
    pool,
    reduce,
    resample,
    select,
    shape,
    softmax,
    stochastic,
)
from bayes_dc.mc.lowering.registry import lowering, rule_for

__all__ = [
    "attention",
    "binary",
    "conv",
    "einsum",
    "linear",
    "lowering",
    "moments",
    "norm",
    "order",
    "pointwise",
    "pool",
    "reduce",
    "resample",
    "rule_for",
    "select",
    "shape",
    "softmax",
    "stochastic",
]
