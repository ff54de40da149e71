"""What the operators of every op tell torch: a vmap rule and quick signatures."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def one_by_one(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """A vmap rule that calls ``op`` for each element: every element meets the same draws.

    Args:
        op: An operator that returns one tensor.

    Returns:
        The rule, for ``torch.library.register_vmap``.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def pick(i: int) -> list[Any]:
            return [a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)]

        return torch.stack([op(*pick(i)) for i in range(info.batch_size)]), 0

    return rule


def keep_signatures(*functions: Any) -> None:
    """Note the signature of each function's forward, which autograd asks for in every call.

    Args:
        functions: ``autograd.Function`` classes with a ``setup_context``.
    """
    for function in functions:
        function.forward.__signature__ = inspect.signature(function.forward)
