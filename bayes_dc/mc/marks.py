"""The marks that folding puts on tensors, and the functions it treats in ways of their own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

KIND = "_bayes_dc_kind"
"""Attribute of a tensor: ``"plain"``, ``"folded"``, or absent."""

CASTS: frozenset[Callable[..., Any]] = frozenset({Tensor.to, Tensor.type_as})
"""Take type and device from another tensor, but no values."""

FACTORIES: frozenset[Callable[..., Any]] = frozenset({
    Tensor.new_empty,
    Tensor.new_full,
    Tensor.new_ones,
    Tensor.new_tensor,
    Tensor.new_zeros,
})

READS: frozenset[Callable[..., Any]] = frozenset({
    *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "ndim", "shape")),
    *(Tensor.dim, Tensor.is_floating_point, Tensor.numel, Tensor.size),
})
"""Return no tensor but what any of that shape, type and device would: nothing to mark or keep."""

_PLAIN_VALUES = (int, float, str, type(None), torch.dtype, torch.device)


def kind_of(tensor: Tensor) -> str | None:
    """The mark of a tensor.

    Args:
        tensor: Any tensor.

    Returns:
        ``"plain"``, ``"folded"`` or None.
    """
    return getattr(tensor, KIND, None)


def tensors_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors among the arguments of a call; containers are looked into.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        In their order.
    """
    values = (*args, *kwargs.values())
    if all(isinstance(value, (Tensor, *_PLAIN_VALUES)) for value in values):
        return [value for value in values if isinstance(value, Tensor)]
    return [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
