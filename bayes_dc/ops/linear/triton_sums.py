"""Sums of masked products of the forward: the order of ranges, words, tiles in shared memory.

Inputs fall into ranges of whole tiles of 16, each with a sum of its own; the sums are added in
order. Who makes a range, one warp all of them or several parts one each, changes no bit.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_fma import fma_if8
from bayes_dc.ops.linear.triton_stage import read_quad, take_quad, words_below, write_quad
from bayes_dc.rng.device import mask_words


@triton.jit
def first_of(number, length, extra):
    """First input of a range: ``length`` in each, 16 more in the first ``extra``."""
    return number * length + tl.minimum(number, extra) * 16


@triton.jit
def add_inputs(acc, words, x, w, GROUPS: tl.constexpr, PTX: tl.constexpr):
    """Add four inputs to 8·GROUPS outputs; ``w`` holds the quads of W of the outputs."""
    result = ()
    for part in tl.static_range(GROUPS):
        one = acc[part]
        for i in tl.static_range(4):
            column = ()
            for j in tl.static_range(8):
                column = column + (w[8 * part + j][i],)
            one = fma_if8(one, words[i], 1 << (8 * part), x[i], column, PTX)
        result = result + (one,)
    return result


@triton.jit
def words_of(
    k, k0, k1, pn, sample, step, row, end, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Mask words of the inputs k … k + 3; no bit from ``end`` on, unless EVEN."""
    k4 = k // 4 + row * 0
    words = mask_words(k0, k1, k4.to(tl.uint32), pn, sample, step, KEEP, BITS, nil, True)
    if not EVEN:
        words = words_below(words, 4 * k4, end)
    return words


@triton.jit
def widen(at, wide, lane, ELEMENT: tl.constexpr, COUNT: tl.constexpr):
    """Write W's tile of a 16-bit type as float32; returns where."""
    for i in tl.static_range(COUNT):
        place = lane + 32 * i
        v0, v1, v2, v3 = read_quad(at + place * 8, ELEMENT)
        write_quad(wide + place * 16, v0, v1, v2, v3)
    return wide


@triton.jit
def read_row(at, swap, ELEMENT: tl.constexpr, QUADS: tl.constexpr):
    """The quads of a lane's row."""
    result = ()
    for q in tl.static_range(QUADS):
        quad = take_quad(at + (q ^ swap) * (ELEMENT.primitive_bitwidth // 2), ELEMENT)
        result = result + (quad,)
    return result


@triton.jit
def add_tile(
    acc, words, x, w_at, k, end, k0, k1, pn, sample, step, row, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    QUADS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Add the 4·QUADS inputs of a tile from ``k`` on; ``words`` are of its first four.

    Returns the sums and the words of the four inputs behind the tile: made early, their chain of
    products runs beside the sums.
    """
    for q in tl.static_range(QUADS):
        after = words_of(k + 4 * (q + 1), k0, k1, pn, sample, step, row, end, nil, KEEP, BITS, EVEN)
        w = ()
        for j in tl.static_range(8 * GROUPS):
            w = w + (read_quad(w_at + (j * QUADS + q) * 16, tl.float32),)
        acc = add_inputs(acc, words, x[q], w, GROUPS, True)
        words = after
    return acc, words
