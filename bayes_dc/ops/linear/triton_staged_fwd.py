"""The forward of one warp: tiles of x and W come to shared memory by asynchronous copies.

Two tiles take turns: one is read while the copies into the other are under way. The warp makes one
range of inputs after another.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_kept import add_eight, read_kept, write_eight
from bayes_dc.ops.linear.triton_stage import (
    barrier,
    commit_copies,
    copy_quad,
    shared_memory,
    store_pointer,
    wait_copies,
)
from bayes_dc.ops.linear.triton_sums import add_tile, first_of, read_row, widen, words_of


@triton.jit
def _add_range(acc, at, STEP: tl.constexpr, GROUPS: tl.constexpr):
    """Add to the sums kept at ``at``, STEP bytes apart."""
    for i in tl.static_range(GROUPS):
        add_eight(at + 8 * i * STEP, acc[i], STEP)


@triton.jit
def _read_sums(at, STEP: tl.constexpr, GROUPS: tl.constexpr):
    """The sums kept at ``at``."""
    result = ()
    for i in tl.static_range(GROUPS):
        eight = ()
        for j in tl.static_range(8):
            eight = eight + (read_kept(at + (8 * i + j) * STEP),)
        result = result + (eight,)
    return result


@triton.jit
def _begin_copies(at, x_table, w_table, k, lane, K,
                  SIZE: tl.constexpr, ROWS: tl.constexpr, QUADS: tl.constexpr):  # fmt: skip
    """Begin to fill the tile at ``at`` with the inputs k …: 32 rows of W, then 32·ROWS of x.

    A lane copies one quad of a row, neighbours the next quads of it. The quads of a row of x are
    exchanged so that lanes that read one quad of different rows meet different banks.
    """
    STEP: tl.constexpr = 32 // QUADS
    QUAD: tl.constexpr = 4 * SIZE
    first = lane // QUADS
    q = lane % QUADS
    offset = tl.minimum(k + 4 * q, K - 4).to(tl.int64) * SIZE
    for i in tl.static_range(QUADS):
        row = first + i * STEP
        copy_quad(at + (row * QUADS + q) * QUAD, w_table + row * 8, offset, SIZE)
    x_at = at + 32 * QUADS * QUAD
    for i in tl.static_range(ROWS * QUADS):
        row = first + i * STEP
        swapped = q ^ (row // (32 // (SIZE * QUADS)) % QUADS)
        copy_quad(x_at + (row * QUADS + swapped) * QUAD, x_table + row * 8, offset, SIZE)
    commit_copies(0)


@triton.jit
def sum_inputs(
    zeros, x, w, k0, k1, pn, sample, step, row, lane, K, ranges, length, extra, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, QUADS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Sums [GROUPS][8] of all inputs, 4·QUADS at a time.

    ``w`` are the pointers of W's rows, one for each lane, ``x`` those of the rows of x. Types of 16
    bits are widened once per tile, not once per lane.
    """
    ELEMENT: tl.constexpr = x.dtype.element_ty
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    QUAD: tl.constexpr = 4 * SIZE
    TILE: tl.constexpr = 32 * (1 + ROWS) * QUADS * QUAD
    WIDE: tl.constexpr = 0 if SIZE == 4 else 32 * QUADS * 16
    STEP: tl.constexpr = 128 * ROWS
    base = shared_memory(2 * TILE + WIDE + 256 * (1 + ROWS) + 8 * GROUPS * STEP)
    w_table = base + 2 * TILE + WIDE
    x_table = w_table + 256
    store_pointer(w_table + lane * 8, w)
    store_pointer(x_table + row * 8, x)
    sums = x_table + 256 * ROWS + row * 4
    for i in tl.static_range(GROUPS):
        write_eight(sums + 8 * i * STEP, zeros[0], STEP, row * 0 + 1)
    swap = row // (32 // (SIZE * QUADS)) % QUADS
    x_at = 32 * QUADS * QUAD + row * QUADS * QUAD
    turn = 0
    base = wait_copies(base, 1)
    _begin_copies(base, x_table, w_table, lane * 0, lane, K, SIZE, ROWS, QUADS)
    words = words_of(0, k0, k1, pn, sample, step, row, K, nil, KEEP, BITS, EVEN)
    for number in tl.range(0, ranges):
        acc = zeros
        end = tl.minimum(first_of(number + 1, length, extra), K)
        for k in tl.range(first_of(number, length, extra), end, 4 * QUADS):
            at = wait_copies(base + turn, 1)
            w_at = at
            if SIZE == 2:
                w_at = barrier(widen(at, at - turn + 2 * TILE, lane, ELEMENT, QUADS), 1)
            turn = TILE - turn
            _begin_copies(
                base + turn, x_table, w_table, lane * 0 + k + 4 * QUADS, lane, K, SIZE, ROWS, QUADS
            )
            acc, words = add_tile(
                acc, words, read_row(at + x_at, swap, ELEMENT, QUADS), w_at, k, K,
                k0, k1, pn, sample, step, row, nil, KEEP, BITS, EVEN, QUADS, GROUPS, False,
            )  # fmt: skip
        _add_range(acc, sums, STEP, GROUPS)
    return _read_sums(sums + wait_copies(base, 1) - base, STEP, GROUPS)
