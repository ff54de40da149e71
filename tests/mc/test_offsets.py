"""Offsets in an arena: never two storages in one place, and hardly more than the lower bound."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayes_dc.mc.offsets import Block, assign_offsets, check_overlap, lower_bound, place
from bayes_dc.mc.plan_types import Storage

BLOCKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 50)).map(
        lambda t: Block(t[0], t[0] + t[1], t[2])
    ),
    max_size=25,
)


def storage(name, start, end, nbytes, offset=None):
    return Storage(name, "op", "arena", nbytes=nbytes, start=start, end=end, offset=offset)


@given(BLOCKS)
def test_blocks_in_use_together_are_apart(blocks):
    offsets, total, _ = place(blocks)
    assert total >= lower_bound(blocks)
    assert total == max((o + b.nbytes for o, b in zip(offsets, blocks, strict=True)), default=0)
    for i, one in enumerate(blocks):
        for j in range(i):
            other = blocks[j]
            if one.start <= other.end and other.start <= one.end:
                ends = offsets[i] + one.nbytes, offsets[j] + other.nbytes
                empty = 0 in (one.nbytes, other.nbytes)
                assert empty or ends[0] <= offsets[j] or ends[1] <= offsets[i]


@given(BLOCKS)
def test_the_lower_bound_is_that_of_the_fullest_step(blocks):
    steps = range(max((b.end for b in blocks), default=0) + 1)
    live = [sum(b.nbytes for b in blocks if b.start <= step <= b.end) for step in steps]
    assert lower_bound(blocks) == max(live)


def test_random_lifetimes_are_packed_tightly():
    """40 plans of 60 storages whose sizes differ by up to 2**14."""
    draw = random.Random(0)
    ratios = []
    for _ in range(40):
        blocks = []
        for _ in range(60):
            start = draw.randrange(60)
            end = start + 1 + int(draw.expovariate(0.4))
            blocks.append(Block(start, end, 1 << draw.randrange(6, 20)))
        ratios.append(place(blocks)[1] / lower_bound(blocks))
    assert sum(ratios) / len(ratios) < 1.01
    assert sum(ratio == 1 for ratio in ratios) >= 32


def test_residuals_in_a_chain_do_not_split_the_arena():
    """As in a transformer: unless they lie at its ends, the large ones between them do not fit."""
    blocks = [Block(0, 200, 5)]
    for layer in range(12):
        at = 12 * layer
        blocks += [
            Block(at + 10, at + 23, 10),  # the residual, alive until the next is made
            Block(at + 1, at + 2, 30),
            Block(at + 2, at + 3, 30),
            Block(at + 3, at + 10, 10),
            Block(at + 12, at + 13, 40),
        ]
    _, total, _ = place(blocks)
    assert total == lower_bound(blocks)


def test_offsets_are_aligned():
    storages = [storage("a", 0, 2, 100), storage("b", 1, 3, 7), storage("c", 2, 4, 300)]
    total, bound, _ = assign_offsets(storages, 256)
    assert [s.offset % 256 for s in storages] == [0, 0, 0]
    assert total == bound == 4 * 256  # 100 and 7 bytes take 256 each, 300 take 512


def test_no_storage_needs_no_arena():
    assert assign_offsets([], 64) == (0, 0, "nothing to place")


def test_overlap_is_found():
    storages = [storage("a", 0, 2, 100, 0), storage("b", 2, 3, 10, 99)]
    with pytest.raises(AssertionError, match=r"b and a overlap in the arena while both are in use"):
        check_overlap(storages)
    storages[1].start = 3
    check_overlap(storages)


def test_storages_without_offset_are_found():
    with pytest.raises(AssertionError, match="storage a has no offset"):
        check_overlap([storage("a", 0, 2, 100)])
