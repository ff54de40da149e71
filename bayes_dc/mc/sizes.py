"""How large the tensors of a forward are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayes_dc.ops import dropconnect_conv2d, dropconnect_linear
from bayes_dc.ops.dropout import keyed_dropout


def elements_of_a_row(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """Elements of one row of a stochastic function's input or output, whichever is larger.

    Args:
        func: What is called.
        args: Its positional arguments, the input first.
        kwargs: Its keyword arguments.

    Returns:
        None for any other function.
    """
    sizes = _STOCHASTIC.get(func)
    return None if sizes is None else sizes(*args, **kwargs)


def fitting_passes(result: Any, passes: int, limit: int) -> int:
    """How many passes would make no tensor above a limit.

    Args:
        result: What a call returned for folded rows.
        passes: Passes folded into them.
        limit: Elements; those of an expanded tensor count once.

    Returns:
        ``passes`` if they fit, else a smaller number of at least 1.
    """
    fitting = passes
    for leaf in (result,) if isinstance(result, Tensor) else pytree.tree_leaves(result):
        if isinstance(leaf, Tensor):
            size = leaf.numel()
            if leaf.layout == torch.strided:
                size = min(size, leaf.untyped_storage().nbytes() // leaf.element_size())
            fitting = min(fitting, max(1, limit * passes // max(size, 1)))
    return fitting


def _linear(x: Tensor, weight: Tensor, *args: Any, **options: Any) -> int:
    return x.shape[1:-1].numel() * max(weight.shape)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    *args: Any,
    **options: Any,
) -> int:
    pixels = 1
    for d in range(2):
        covered = _at(dilation, d) * (weight.shape[2 + d] - 1) + 1
        size = x.shape[d - 2]
        if padding != "same":
            around = 0 if isinstance(padding, str) else 2 * _at(padding, d)
            size = (size + around - covered) // _at(stride, d) + 1
        pixels *= max(0, size)
    return max(x.shape[-3:].numel(), weight.shape[0] * pixels)


def _dropout(x: Tensor, **options: Any) -> int:
    return x.shape[1:].numel()


def _at(value: int | Sequence[int], d: int) -> int:
    """Height (0) or width (1) of an argument that may be one number."""
    return value if isinstance(value, int) else value[d if len(value) > 1 else 0]


_STOCHASTIC: dict[Callable[..., Any], Callable[..., int]] = {
    dropconnect_linear: _linear,
    dropconnect_conv2d: _conv2d,
    keyed_dropout: _dropout,
}
