"""Rules of elementwise operations against the operators themselves."""

import pytest
import torch
import torch.nn.functional as F
from rule_cases import SOME, check, inputs
from torch import nn

from bayes_dc.mc.plan import build_plan

UNARY = {
    f.__name__: f
    for f in (
        *(torch.abs, torch.neg, torch.sign, torch.floor, torch.ceil, torch.round, torch.trunc),
        *(torch.frac, torch.exp, torch.exp2, torch.expm1, torch.sin, torch.cos, torch.tan),
        *(torch.sinh, torch.cosh, torch.atan, torch.asin, torch.erf, torch.erfc, torch.square),
        *(torch.sqrt, torch.log, torch.log2, torch.log10, torch.log1p, torch.rsqrt),
        *(torch.reciprocal, torch.nan_to_num, torch.isnan, torch.isinf, torch.isfinite),
        *(torch.logical_not, torch.clone, torch.relu, torch.sigmoid, torch.tanh, F.silu, F.elu),
        *(F.leaky_relu, F.softplus, F.gelu, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6),
        *(F.selu, F.celu, F.mish, F.softsign, F.logsigmoid, F.tanhshrink, F.hardshrink),
        *(F.softshrink, F.rrelu, F.normalize),
    )
} | {
    "gelu by tanh": lambda a: F.gelu(a, approximate="tanh"),
    "threshold": lambda a: F.threshold(a, 0.3, -1.0),
    "celu, alpha": lambda a: F.celu(a, 0.5),
    "softplus, beta": lambda a: F.softplus(a, 2.0, 1.0),
    "clamp": lambda a: a.clamp(0, 1),
    "clamp below": lambda a: a.clamp(min=0.1),
    "clamp_min": lambda a: a.clamp_min(0.1),
    "clamp_max": lambda a: a.clamp_max(0.1),
    "power": lambda a: a**3,
    "root": lambda a: a.abs() ** 0.5,
    "number to a power": lambda a: 2**a,
    "plus": lambda a: a + 1.5,
    "minus": lambda a: 1 - a,
    "times": lambda a: a * 2.5,
    "over": lambda a: a / 3,
    "under": lambda a: 2 / (a + 3),
    "whole": lambda a: a // 0.3,
    "remainder": lambda a: a % 0.3,
    "fmod": lambda a: torch.fmod(a, 0.3),
    "greater": lambda a: a > 0,
    "not": lambda a: ~(a > 0),
    "where number": lambda a: torch.where(a > 0, 1.0, 0.0),
    "where or number": lambda a: torch.where(a > 0, a, 0),
    "integers": lambda a: (a * 3).long() + 2,
    "integers divided": lambda a: (a * 3).long() / 2,
    "other dtypes": lambda a: a.double() * 0.5,
    "glu": lambda a: F.glu(a, 1),
    "prelu": lambda a: F.prelu(a, torch.tensor([0.2], dtype=a.dtype)),
    "prelu by channel": lambda a: F.prelu(a, torch.tensor([0.2, 0.1, 0.3, -0.1], dtype=a.dtype)),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b + 3),
    "add scaled": lambda a, b: torch.add(a, b, alpha=2),
    "sub scaled": lambda a, b: torch.sub(a, b, alpha=3),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "and": lambda a, b: (a > 0) & (b < 1),
    "logical": lambda a, b: torch.logical_and(a > 0, b < 1),
    "where": lambda a, b: torch.where(a > b, a, b),
    "where, number": lambda a, b: torch.where(a > 0, 2.0, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 0.5),
    "clamp": lambda a, b: a.clamp(b, b + 1),
    "clamp below": lambda a, b: a.clamp(min=b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp by tensor": lambda a, b: torch.lerp(a, b, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b + 3),
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fmod": torch.fmod,
    "pow": lambda a, b: a.abs().pow(b),
    "logaddexp": torch.logaddexp,
    "xlogy": lambda a, b: torch.xlogy(a, b.abs() + 1),
    "rounded down": lambda a, b: torch.div(a, b + 3, rounding_mode="floor"),
    "broadcast": lambda a, b: a * b.mean((2, 3), keepdim=True),
    "broadcast constants": lambda a, b: a * torch.arange(4.0).to(b)[:, None, None] + b,
    "cast": lambda a, b: (a > 0).to(b.dtype) + b,
    "mixed dtypes": lambda a, b: a + b.double(),
    "truth and numbers": lambda a, b: (a > 0) * b,
    "both views of one": lambda a, b: b * a * a.transpose(2, 3),
}


def test_functions_of_one_tensor():
    functions = [lambda a, b, f=f: f(a) for f in UNARY.values()]
    check(functions, inputs(4, 6, 6), names=list(UNARY))


@pytest.mark.parametrize("kind", SOME)
def test_functions_of_two_tensors(kind):
    check(list(BINARY.values()), inputs(4, 6, 6), kind, names=list(BINARY))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    names = ["plus", "times", "minus", "over", "relu", "gelu", "clamp", "greater", "where number"]
    functions = [lambda a, b, f=UNARY[n]: f(a) for n in names]
    check(functions, inputs(4, 6, 6).to(dtype), names=names)


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return torch.sigmoid(torch.relu(self.dropout(x) * 2) + 1)


def test_results_take_the_memory_of_operands():
    """A chain is one tensor."""
    plan = build_plan(Chain().eval(), torch.zeros(5, 64), 3)
    assert plan.in_place == 4
