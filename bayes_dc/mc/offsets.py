"""Where storages lie in an arena: as little memory as their lifetimes allow.

Storages that are used at the same time must not overlap. The most bytes used at any time are a
lower bound. Several heuristics, the best of which is taken, and a search over orders where all stay
above the bound: greedy by size (Pisarchyk & Lee 2020, *Efficient memory management for deep neural
net inference*); best fit in order of time (as ``ggml`` does); and from both ends: long-lived
storages first, each at the nearer end of an arena of the lower bound, which keeps the middle free
for large ones where residuals overlap in a chain, as in a transformer.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bayes_dc.mc.plan_types import Storage

SWAPS = 400
"""Orders tried where the heuristics stay above the lower bound."""

_OVERLAP = "storages {one} and {other} overlap in the arena while both are in use"
_UNPLACED = "storage {name} has no offset"


Fit = Callable[[Sequence[tuple[int, int]], int, int], int]
"""Chooses an offset from gaps (start, end) that are large enough, for bytes and a lower bound."""


class Block(NamedTuple):
    """A storage to be placed.

    Attributes:
        start: First step that uses it.
        end: Last step that uses it.
        nbytes: Bytes, rounded up to the alignment.
    """

    start: int
    end: int
    nbytes: int

    @property
    def steps(self) -> int:
        """Steps that it is in use for."""
        return self.end - self.start + 1


def assign_offsets(storages: Sequence[Storage], alignment: int) -> tuple[int, int, str]:
    """Give storages their offsets.

    Args:
        storages: Those of the arena, with bytes and lifetimes.
        alignment: Bytes; offsets are multiples of it.

    Returns:
        Bytes of the arena, its lower bound, and how the offsets were found.
    """
    blocks = [Block(s.start, s.end, -(-s.nbytes // alignment) * alignment) for s in storages]
    offsets, total, how = place(blocks)
    for storage, offset in zip(storages, offsets, strict=True):
        storage.offset = offset
    check_overlap(storages)
    return total, lower_bound(blocks), how


def lower_bound(blocks: Sequence[Block]) -> int:
    """Most bytes in use at one step.

    Args:
        blocks: The blocks.

    Returns:
        Bytes.
    """
    change: dict[int, int] = {}
    for block in blocks:
        change[block.start] = change.get(block.start, 0) + block.nbytes
        change[block.end + 1] = change.get(block.end + 1, 0) - block.nbytes
    most = live = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def place(blocks: Sequence[Block]) -> tuple[list[int], int, str]:
    """Offsets of blocks.

    Args:
        blocks: The blocks.

    Returns:
        Offsets in their order, bytes of all, and how they were found.
    """
    if not blocks:
        return [], 0, "nothing to place"
    bound = lower_bound(blocks)
    numbers = range(len(blocks))
    placing = _Placing(blocks, bound)
    by_size = sorted(numbers, key=lambda i: (-blocks[i].nbytes, blocks[i].start))
    in_order = sorted(numbers, key=lambda i: (blocks[i].start, -blocks[i].nbytes))
    by_length = sorted(numbers, key=lambda i: (-blocks[i].steps, -blocks[i].nbytes))
    by_area = sorted(numbers, key=lambda i: -blocks[i].steps * blocks[i].nbytes)
    tries: list[tuple[str, list[int], Fit]] = [
        ("greedy by size", by_size, _first_fit),
        ("best fit in order", in_order, _best_fit),
        ("from both ends", by_length, _nearest_end),
        ("from both ends", by_area, _nearest_end),
    ]
    best: tuple[list[int], int, str] | None = None
    for how, order, fit in tries:
        offsets, total = placing.place(order, fit)
        if best is None or total < best[1]:
            best = offsets, total, how
        if total <= bound:
            break
    assert best is not None
    for order, fit in ((by_length, _nearest_end), (by_size, _first_fit)):
        if best[1] > bound:
            offsets, total = placing.search(order, fit)
            if total < best[1]:
                best = offsets, total, "search over orders"
    return best


def check_overlap(storages: Sequence[Storage]) -> None:
    """Compare every two storages; a plan that passes cannot have two values in one place.

    Args:
        storages: With offsets and lifetimes.

    Raises:
        AssertionError: If two overlap while both are in use.
    """
    ordered = sorted((s for s in storages if s.nbytes), key=lambda s: s.start)
    live: list[Storage] = []
    for one in ordered:
        if one.offset is None:
            raise AssertionError(_UNPLACED.format(name=one.name))
        live = [other for other in live if other.end >= one.start]
        for other in live:
            assert other.offset is not None
            apart = (
                one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            )
            if not apart:
                raise AssertionError(_OVERLAP.format(one=one.name, other=other.name))
        live.append(one)


class _Placing:
    """Places blocks one after the other; knows which of them are in use together."""

    def __init__(self, blocks: Sequence[Block], bound: int) -> None:
        self.blocks, self.bound = blocks, bound
        self._together: list[list[int]] = [[] for _ in blocks]
        in_order = sorted(range(len(blocks)), key=lambda i: blocks[i].start)
        live: list[int] = []
        for i in in_order:
            live = [j for j in live if blocks[j].end >= blocks[i].start]
            for j in live:
                self._together[i].append(j)
                self._together[j].append(i)
            live.append(i)

    def place(self, order: Sequence[int], fit: Fit) -> tuple[list[int], int]:
        """Offsets of all, and bytes of the arena."""
        offsets = [-1] * len(self.blocks)
        total = 0
        for i in order:
            nbytes = self.blocks[i].nbytes
            at, gaps = 0, []
            placed = [j for j in self._together[i] if offsets[j] >= 0]
            for start, end in sorted(
                (offsets[j], offsets[j] + self.blocks[j].nbytes) for j in placed
            ):
                if start - at >= nbytes:
                    gaps.append((at, start))
                at = max(at, end)
            if self.bound - at >= nbytes:
                gaps.append((at, self.bound))
            offsets[i] = fit(gaps, nbytes, self.bound) if gaps else at
            total = max(total, offsets[i] + nbytes)
        return offsets, total

    def search(self, order: Sequence[int], fit: Fit) -> tuple[list[int], int]:
        """Swap blocks in the order of placing as long as the arena does not grow."""
        draw = random.Random(0)
        order = list(order)
        best, total = self.place(order, fit)
        for _ in range(SWAPS if len(order) > 1 else 0):
            i, j = draw.sample(range(len(order)), 2)
            order[i], order[j] = order[j], order[i]
            offsets, found = self.place(order, fit)
            if found <= total:
                best, total = offsets, found
            else:
                order[i], order[j] = order[j], order[i]
            if total <= self.bound:
                break
        return best, total


def _first_fit(gaps: Sequence[tuple[int, int]], nbytes: int, bound: int) -> int:
    """The lowest gap."""
    return gaps[0][0]


def _best_fit(gaps: Sequence[tuple[int, int]], nbytes: int, bound: int) -> int:
    """The smallest gap."""
    return min((end - start, start) for start, end in gaps)[1]


def _nearest_end(gaps: Sequence[tuple[int, int]], nbytes: int, bound: int) -> int:
    """As near as can be to the start or the end of an arena of the lower bound."""
    low, high = gaps[0][0], gaps[-1][1] - nbytes
    return low if low <= bound - high - nbytes else high
