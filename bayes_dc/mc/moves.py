"""Calls that bring another dimension of a tensor to the front, where the rows are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_VIEWS: frozenset[Callable[..., Any]] = frozenset({
    *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")),
    *(
        getattr(owner, name + ending)
        for owner in (torch, Tensor)
        for name in ("t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis")
        for ending in ("", "_")
        if hasattr(owner, name + ending)
    ),
    torch.adjoint,
    Tensor.adjoint,
})
MOVES: frozenset[Callable[..., Any]] = _VIEWS | {torch.einsum, torch.stack}
"""Functions that may do so."""


def moves_first(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, rows: int
) -> bool:
    """Whether a call has put a dimension of as many entries as there are rows in their place.

    Only such a tensor can be taken for one that has the inputs along its first dimension.

    Args:
        func: What was called, one of ``MOVES``.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.
        rows: Rows of the tensors that it read.

    Returns:
        True too where that cannot be excluded.
    """
    if not isinstance(result, Tensor) or result.ndim < 2 or result.shape[0] != rows or rows == 0:
        return False
    if func is torch.einsum:
        return not _keeps_first(args[0])
    if func is torch.stack:
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        return isinstance(dim, int) and dim % result.ndim == 0
    # A tensor without data whose dimensions all differ says where they go.
    other, *more = args if args else (kwargs["input"],)
    if func.__name__.endswith("_") and func.__name__ != "__get__":
        func = getattr(torch, func.__name__[:-1])  # in place: `result` is `other`, moved already
    options = {name: value for name, value in kwargs.items() if name != "input"}
    shape = [*range(2, 2 + other.ndim)]
    moved = func(torch.empty(shape, device="meta"), *more, **options)
    return bool(moved.shape[0] != 2)


def _keeps_first(equation: object) -> bool:
    """Whether the first letter of an einsum's result comes first in every operand that has it."""
    if not isinstance(equation, str) or "->" not in equation:
        return False
    operands, result = equation.replace(" ", "").split("->")
    first = result[:1]
    return all(term.startswith(first) for term in operands.split(",") if first in term)
