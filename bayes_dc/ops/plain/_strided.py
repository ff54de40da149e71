"""Strided operands of one shape as few dimensions: what kernels of plain layers walk over."""

from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

_INT32 = 2**31 - 2**16


class Walk(NamedTuple):
    """Dimensions that no two can be merged of, outermost first.

    Attributes:
        sizes: Their sizes; at least one.
        strides: For each operand, its strides along them, in elements.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        """How many there are."""
        n = 1
        for size in self.sizes:
            n *= size
        return n

    @property
    def reach(self) -> tuple[int, ...]:
        """Offset of the last element of each operand."""
        return tuple(
            sum((size - 1) * s for size, s in zip(self.sizes, strides, strict=True))
            for strides in self.strides
        )


def needs_64_bits(*walks: Walk) -> bool:
    """Whether an index of a walk, or an offset in all of them together, does not fit 32 bits."""
    reach = map(sum, zip(*(w.reach for w in walks), strict=True))
    return max(*(w.elements for w in walks), *reach) > _INT32


@lru_cache(maxsize=4096)
def walk(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Walk:
    """Order dimensions by the strides of the last operand, and merge those that are one.

    Args:
        sizes: Sizes of the dimensions, none of them 0.
        strides: Strides of each operand, in elements; 0 where it is read again.

    Returns:
        The same elements in fewer dimensions; one of size 1 if there is none longer.
    """
    dims = [d for d, size in enumerate(sizes) if size > 1]
    dims.sort(key=lambda d: (-strides[-1][d], -strides[0][d]))
    merged: list[tuple[int, tuple[int, ...]]] = []
    for d in dims:
        step = tuple(s[d] for s in strides)
        if merged:
            size, outer = merged[-1]
            if all(o == i * sizes[d] for o, i in zip(outer, step, strict=True)):
                merged[-1] = (size * sizes[d], step)
                continue
        merged.append((sizes[d], step))
    merged = merged or [(1, (0,) * len(strides))]
    sizes = tuple(size for size, _ in merged)
    return Walk(sizes, tuple(zip(*(step for _, step in merged), strict=True)))


def split(
    sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], inner: int
) -> tuple[Walk, Walk]:
    """Walks over all but the last ``inner`` dimensions, and over these."""
    at = len(sizes) - inner
    return (
        walk(sizes[:at], tuple(s[:at] for s in strides)),
        walk(sizes[at:], tuple(s[at:] for s in strides)),
    )


def read_sizes(over: Walk) -> tuple[int, ...]:
    """Sizes as kernels take them: the first is never divided by, and must not select a kernel."""
    return (0, *over.sizes[1:])


def strides_along(t: Tensor | None, dim: int, rank: int) -> tuple[int, ...]:
    """Strides of a vector ``t`` that lies along ``dim`` of ``rank`` dimensions; zeros for None."""
    step = 0 if t is None else t.stride(0)
    return tuple(step if d == dim % rank else 0 for d in range(rank))


def power_of_two(n: int) -> int:
    """The least power of two not below ``n``."""
    return 1 << max(0, n - 1).bit_length()
