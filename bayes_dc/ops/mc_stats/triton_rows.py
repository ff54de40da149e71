"""What both kernels of the pass statistics do with a row of classes.

A sum over classes must not depend on how a compiler lays a tile over threads: it is written out as
a tree of pairs, and an addition of two numbers has one result. Fusing products into sums is off.
"""

from typing import NamedTuple

import triton
import triton.language as tl

MAX_BLOCK = 1024
"""Classes of a tile; more are taken in several."""


class RowLayout(NamedTuple):
    """How C classes are laid over a program; the order of their sum is a function of ``block``.

    Attributes:
        block: Classes of a tile, a power of two.
        steps: Its logarithm: additions from a class to the sum.
        warps: Warps per program.
    """

    block: int
    steps: int
    warps: int


def row_layout(C: int) -> RowLayout:
    """The layout of C classes, the same for every kernel: an entropy has the same bits in each."""
    block = min(triton.next_power_of_2(max(C, 1)), MAX_BLOCK)
    return RowLayout(block, block.bit_length() - 1, max(1, block // 64))


@triton.jit
def sum_pairs(x, ROWS: tl.constexpr, STEPS: tl.constexpr):
    """Sum over the second dimension of ``[ROWS, 2**STEPS]``: neighbours first, then their sums."""
    for step in tl.static_range(STEPS):
        x = tl.sum(tl.reshape(x, [ROWS, 1 << (STEPS - 1 - step), 2]), axis=2)
    return tl.reshape(x, [ROWS])


@triton.jit
def entropy_terms(p):
    """−p log p as torch.special.entr: 0 at 0, −inf below, NaN for NaN."""
    positive = p > 0.0
    term = -p * tl.log(tl.where(positive, p, 1.0))
    rest = tl.where(p == 0.0, 0.0, tl.where(p < 0.0, -float("inf"), p))
    return tl.where(positive, term, rest)
