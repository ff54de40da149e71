"""What the public functions return: tensors that their caller may modify in place."""

from collections.abc import Sequence

import torch
from torch import Tensor


def in_shape(result: Tensor, shape: Sequence[int | torch.SymInt]) -> Tensor:
    """The memory of an operator's result in another shape: for autograd it is no view.

    The result of a layer is often modified in place (``nn.ReLU(inplace=True)``). Of a view autograd
    would keep the base up to date, with two copies of its gradient.

    Args:
        result: What an operator returned, used nowhere else: the two share memory unknown to torch.
        shape: A shape that the strides of ``result`` allow.

    Returns:
        ``[*shape]``.
    """
    return torch.ops.aten._unsafe_view(result, shape)


def repeated(y: Tensor, passes: int) -> Tensor:
    """The rows of one pass for all of them, in memory of their own.

    ``expand`` and ``reshape`` would return one row for several passes without a copy, and then no
    one may write into it.

    Args:
        y: ``[S, …]``.
        passes: P.

    Returns:
        ``[P · S, …]``.
    """
    return y.repeat(passes, *[1] * (y.ndim - 1))
