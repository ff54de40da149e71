"""Calls that mix the rows of a tensor: along its first dimension, or over all its entries."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayes_dc.mc.marks import kind_of

MIXED = "_bayes_dc_mixed"
"""Attribute of a tensor that holds a number of several rows: the name of the function."""

_ALL = None
"""Of a dimension that is left out: all entries."""


class _Dim(NamedTuple):
    """Where a function has its dimension among positional arguments, and what it is without."""

    position: int
    default: int | None


_NAMES = {
    _Dim(1, _ALL): "amax amin argmax argmin max mean median min nanmean nansum prod std sum var",
    _Dim(1, -1): "argsort cummax cummin cumprod cumsum flip log_softmax logcumsumexp logsumexp "
    "softmax sort",
    _Dim(2, _ALL): "norm quantile roll",
    _Dim(2, -1): "kthvalue topk",
}
_ALONG: dict[Callable[..., Any], _Dim] = {
    getattr(owner, name): dim
    for dim, names in _NAMES.items()
    for name in names.split()
    for owner in (torch, Tensor)
} | {
    F.softmax: _Dim(1, -1),
    F.log_softmax: _Dim(1, -1),
    F.normalize: _Dim(2, 1),
    torch.linalg.vector_norm: _Dim(2, _ALL),
    torch.linalg.norm: _Dim(2, _ALL),
}
_PRODUCTS: frozenset[Callable[..., Any]] = frozenset({
    *(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, F.linear),
    *(Tensor.__matmul__, Tensor.__rmatmul__),
})
_FLIPS: frozenset[Callable[..., Any]] = frozenset({torch.flip, Tensor.flip})


def mixes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, rows: int) -> bool:
    """Whether a call makes a number of several rows of its first argument.

    Args:
        func: What was called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        rows: Number of rows; a tensor of so many entries along its first dimension holds them.

    Returns:
        False also for what is not known here.
    """
    if func in _PRODUCTS:
        return _pairs(args, rows)
    if func is F.batch_norm:
        return bool(args[5] if len(args) > 5 else kwargs.get("training", False))
    found = _ALONG.get(func)
    x = args[0] if args else kwargs.get("input")
    if found is None or not isinstance(x, Tensor) or x.shape[:1] != (rows,):
        return False
    dim: Any = args[found.position] if len(args) > found.position else found.default
    for name in ("dim", "dims", "axis"):
        dim = kwargs.get(name, dim)
    if dim is None or dim == ():
        return found.default is _ALL
    if isinstance(dim, int) and not isinstance(dim, bool) and func in _FLIPS:
        dim = [dim, *args[found.position + 1 :]]  # flip(0, 1)
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return any(isinstance(one, int) and one in (0, -x.ndim) for one in dims)


def _pairs(args: tuple[Any, ...], rows: int) -> bool:
    """Whether a product of two matrices multiplies rows with rows."""
    pair = [x for x in args[:2] if isinstance(x, Tensor) and x.ndim == 2 and rows in x.shape]
    return len(pair) == 2 and all(kind_of(x) == "folded" for x in pair)  # none is a weight
