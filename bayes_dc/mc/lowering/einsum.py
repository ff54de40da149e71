"""``torch.einsum`` of two operands as one product of matrices."""

from collections.abc import Sequence
from typing import Any

import torch

from bayes_dc.mc.layouts import split_rows
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.linear import multiply
from bayes_dc.mc.lowering.registry import lowering
from bayes_dc.mc.plan_errors import MIXES
from bayes_dc.mc.plan_types import Value

aten = torch.ops.aten
_FORM = (
    "its equation {equation!r} has not the form of one product of two tensors",
    "Write it as products of two operands with letters only, every letter once in an operand and "
    "in the other operand or the result; sum and take diagonals beforehand.",
)


@lowering(aten.einsum.default)
def einsum(c: Context, equation: str, operands: Sequence[Value], **_: Any) -> Value:
    """Sums of products over the letters that the result has not."""
    letters = _letters(equation)
    if letters is None or len(operands) != 2:
        why, remedy = _FORM
        c.refuse(why.format(equation=equation), remedy)
    (of_a, of_b, of_out), (a, b) = letters, operands
    batch = [i for i in of_out if i in of_a and i in of_b]
    left = [i for i in of_out if i not in of_b]
    right = [i for i in of_out if i not in of_a]
    inner = [i for i in of_a if i in of_b and i not in of_out]
    for x, own in ((a, of_a), (b, of_b)):
        if x.rows_dim is not None and own[x.rows_dim] in inner:
            c.refuse(*MIXES)
    out = c.out()
    places = (
        (a, of_a, [*batch, *left, *inner]),
        (b, of_b, [*batch, *inner, *right]),
        (out, of_out, [*batch, *left, *right]),
    )
    views = [_permuted(c, x, own, order) for x, own, order in places]
    count = len(batch)
    if {a.kind, b.kind} == {"plain", "folded"}:
        was = views[2].ndim
        views = [split_rows(v, v.rows_dim) for v in views if v.rows_dim is not None]
        count += views[2].ndim - was
    multiply(c, *views, batch=count, left=len(left), inner=len(inner))
    return out


def _letters(equation: str) -> tuple[str, str, str] | None:
    """Letters of both operands and of the result; None for what is no plain product."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    if len(parts) != 2:
        return None
    a, b = parts
    if not arrow:
        result = "".join(sorted(i for i in set(a + b) if (a + b).count(i) == 1))
    alone = [i for i in a + b if i not in result and not (i in a and i in b)]
    repeated = any(len(set(part)) != len(part) for part in (a, b, result))
    return None if alone or repeated or not (a + b).isalpha() else (a, b, result)


def _permuted(c: Context, x: Value, own: str, order: Sequence[str]) -> Value:
    """``x`` with its dimensions in the order of letters."""
    dims = [own.index(letter) for letter in order]
    return c.view(x, lambda t, b, p: t.permute(dims), [x.shape[d] for d in dims])
