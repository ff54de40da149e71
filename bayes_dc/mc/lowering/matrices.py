"""Matrix products of strided tensors in calls that allocate nothing.

A product is a[batch, left, inner] · b[batch, inner, right] → out[batch, left, right], with any
number of dimensions in each place. Dimensions are merged where strides allow; rows of ``left`` that
do not merge become a batch, batches that do not merge a loop. A matrix without a unit stride has no
such call: ``is_matrix`` tells, and the rule copies it into scratch first.
"""

from math import prod

import torch
from torch import Tensor

from bayes_dc.mc.plan_types import Call


def is_matrix(t: Tensor, outer: int, inner: int) -> bool:
    """Whether the last dimensions of ``t`` are rows of a matrix that products take as it is.

    Args:
        t: A tensor, with memory or without.
        outer: Number of dimensions that are its rows; only the last must be one dimension.
        inner: Number of dimensions that are its columns.

    Returns:
        Whether the columns are one dimension and a stride is 1.
    """
    merged = _merged(t, t.ndim - inner, t.ndim)
    return merged is not None and (outer == 0 or _has_unit_stride(merged))


def product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    batch: int = 0,
    left: int = 1,
    inner: int = 1,
    bias: Tensor | None = None,
    factor: float = 1.0,
) -> list[Call]:
    """Calls that write factor · a · b + bias into ``out``.

    Args:
        a: ``[batch…, left…, inner…]``; ``is_matrix(a, left, inner)``.
        b: ``[batch…, inner…, right…]``; ``is_matrix(b, inner, right)``. Its dimensions of ``batch``
            may be missing.
        out: ``[batch…, left…, right…]``; ``is_matrix(out, left, right)``.
        batch: Number of dimensions of the batch.
        left: Number of dimensions of the rows.
        inner: Number of dimensions that are summed over.
        bias: ``[right]``, one dimension, or None.
        factor: Factor of the sums; 1 with a bias.

    Returns:
        The calls.
    """
    right = out.ndim - batch - left
    shared = b.ndim == inner + right  # one matrix for the whole batch
    a, out = _columns_merged(a, inner), _columns_merged(out, right)
    b = _rows_merged(_columns_merged(b, right), inner)
    both = [_rows_merged(t, left) for t in (a, out)]
    if all(t is not None and _has_unit_stride(t) for t in both):
        a, out = both
    elif left > 1:
        batch += left - 1
        if not shared:
            between = (1,) * (left - 1)
            b = b.view(*b.shape[:-2], *between, *b.shape[-2:])
    b = b.expand(*out.shape[:batch], *b.shape[-2:])
    return _batched(a, b, out, bias, factor)


def _batched(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, factor: float) -> list[Call]:
    """Products of matrices with any number of dimensions before them."""
    if out.ndim == 2:
        if bias is not None:
            return [(torch.addmm, (bias, a, b), {"out": out})]
        if factor != 1:
            return [(torch.addmm, (out, a, b), {"beta": 0, "alpha": factor, "out": out})]
        return [(torch.mm, (a, b), {"out": out})]
    if out.shape[0] == 1:
        return _batched(a[0], b[0], out[0], bias, factor)
    if out.ndim == 3:
        if bias is not None:
            return [(torch.baddbmm, (bias.expand(out.shape), a, b), {"out": out})]
        if factor != 1:
            return [(torch.baddbmm, (out, a, b), {"beta": 0, "alpha": factor, "out": out})]
        return [(torch.bmm, (a, b), {"out": out})]
    first, second, whole = (_merged(t, 0, 2) for t in (a, b, out))
    if first is not None and second is not None and whole is not None:
        return _batched(first, second, whole, bias, factor)
    if out.shape[1] < out.shape[0]:
        a, b, out = (t.transpose(0, 1) for t in (a, b, out))
    return [
        call for i in range(out.shape[0]) for call in _batched(a[i], b[i], out[i], bias, factor)
    ]


def _merged(t: Tensor, start: int, end: int) -> Tensor | None:
    """``t`` with dimensions start … end − 1 as one; None where that is no view."""
    sizes = (*t.shape[:start], prod(t.shape[start:end]), *t.shape[end:])
    try:
        return t.view(sizes)
    except RuntimeError:
        return None


def _columns_merged(t: Tensor, columns: int) -> Tensor:
    merged = _merged(t, t.ndim - columns, t.ndim)
    assert merged is not None, f"{tuple(t.shape)} {t.stride()}"
    return merged


def _rows_merged(t: Tensor, rows: int) -> Tensor:
    """``t`` [..., rows…, column] with its rows merged; None where that is no view."""
    return _merged(t, t.ndim - 1 - rows, t.ndim - 1)  # type: ignore[return-value]


def _has_unit_stride(t: Tensor) -> bool:
    """Whether the last two dimensions are a matrix, or a transposed one, for BLAS."""
    # Torch copies others, also where a dimension of one entry makes the stride meaningless.
    if t.ndim < 2:
        return t.ndim == 0 or t.stride(0) == 1
    rows, columns = t.shape[-2:]
    by_row, by_column = t.stride()[-2:]
    return (by_column == 1 and by_row >= max(1, columns)) or (
        by_row == 1 and by_column >= max(1, rows)
    )
