"""Where elements are: layouts of new values, of views of them, and of rows split into passes."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from bayes_dc.mc.plan_types import Dim, Layout, Passes, Rows, Value, size_of

Layouts = Callable[[int, int], Layout]
SAMPLES = ((3, 2), (5, 4))
"""(b, passes) at which layouts are compared: sizes and strides are c · b^i · passes^j."""


def contiguous(shape: Sequence[Dim]) -> Layouts:
    """The last dimension varies fastest.

    Args:
        shape: Dimensions.

    Returns:
        Its layouts.
    """

    def layout(b: int, passes: int) -> Layout:
        sizes = tuple(size_of(dim, b, passes) for dim in shape)
        return Layout(sizes, tuple(prod(sizes[d + 1 :]) for d in range(len(sizes))), 0)

    return layout


def fixed(sizes: Sequence[int], strides: Sequence[int]) -> Layouts:
    """The same for any batch.

    Args:
        sizes: Sizes.
        strides: Strides.

    Returns:
        Its layouts.
    """
    layout = Layout(tuple(sizes), tuple(strides), 0)
    return lambda b, passes: layout


def by_rows(shape: Sequence[Dim], strides: Sequence[tuple[int, int]], *, folded: bool) -> Layouts:
    """Strides that follow the number of rows.

    Args:
        shape: Dimensions.
        strides: For each, what is fixed and what is multiplied with the rows.
        folded: Whether there are P · b rows, or b.

    Returns:
        Its layouts.
    """

    def layout(b: int, passes: int) -> Layout:
        rows = b * passes if folded else b
        sizes = tuple(size_of(dim, b, passes) for dim in shape)
        return Layout(sizes, tuple(a + k * rows for a, k in strides), 0)

    return layout


def viewed(x: Value, view: Callable[[Tensor, int, int], Tensor]) -> Layouts:
    """The layout of a view, by taking it of a tensor without memory.

    Args:
        x: What is viewed.
        view: Takes the view of a tensor laid out as ``x`` is at (b, passes); raises where that is
            no view.

    Returns:
        Its layouts.
    """

    def layout(b: int, passes: int) -> Layout:
        at = x.layout(b, passes)
        bare = torch.empty_strided(at.sizes, at.strides, device="meta", dtype=x.dtype)
        seen = view(bare, b, passes)
        offset = at.offset + int(seen.storage_offset())
        return Layout(tuple(seen.shape), tuple(seen.stride()), offset)

    return layout


def same_layout(x: Layouts, y: Layouts) -> bool:
    """Whether two layouts are the same for any batch; strides along one entry do not count.

    Args:
        x: One.
        y: The other.

    Returns:
        Whether they are.
    """
    return all(_counting(x(b, passes)) == _counting(y(b, passes)) for b, passes in SAMPLES)


def _counting(at: Layout) -> tuple[object, ...]:
    steps = [s if n != 1 else 0 for n, s in zip(at.sizes, at.strides, strict=True)]
    return at.sizes, steps, at.offset


def split_rows(x: Value, at: int) -> Value:
    """``x`` with its rows as dimensions [outer,] passes, inputs [, inner]; outer and inner if > 1.

    Args:
        x: A value with rows in dimension ``at``, plain or folded. A plain one is read again by
            every pass, with a zero stride.
        at: That dimension.

    Returns:
        A view of the same storage.
    """
    rows = x.shape[at]
    assert isinstance(rows, Rows)
    outer, inner = rows.outer, rows.inner
    parts: list[Dim] = [Passes(), Rows(1, folded=False)]
    parts = [*([outer] if outer > 1 else []), *parts, *([inner] if inner > 1 else [])]

    def layout(b: int, passes: int) -> Layout:
        was = x.layout(b, passes)
        step, n = was.strides[at], b * passes if x.folded else b
        sizes, strides = [passes, b], [b * inner * step if x.folded else 0, inner * step]
        if outer > 1:
            sizes, strides = [outer, *sizes], [n * inner * step, *strides]
        if inner > 1:
            sizes, strides = [*sizes, inner], [*strides, step]
        return Layout(
            (*was.sizes[:at], *sizes, *was.sizes[at + 1 :]),
            (*was.strides[:at], *strides, *was.strides[at + 1 :]),
            was.offset,
        )

    shape = (*x.shape[:at], *parts, *x.shape[at + 1 :])
    return Value(x.storage, shape, x.dtype, layout, x.kind)
