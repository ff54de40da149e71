"""The forward of several parts, for few rows: each makes another range of inputs at a time.

A part is a warp, or 8 or 16 lanes of one with as many rows: more of them work on a row, and the
chain of each is shorter. Two tiles of W take turns, as in the forward of one warp; a tile of x is
read as a whole before the next one is copied to its place.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_kept import read_kept, write_eight
from bayes_dc.ops.linear.triton_stage import (
    barrier,
    commit_copies,
    copy_from,
    pointer_of,
    read_pointer,
    shared_memory,
    store_pointer,
    wait_copies,
    warp_number,
)
from bayes_dc.ops.linear.triton_sums import add_tile, first_of, read_row, widen, words_of


@triton.constexpr_function
def _slots(tiles, kept, rows, parts, ranges):
    """How many parts lay their sums down at a time: where tiles were, if there is one turn only."""
    room = tiles if parts == ranges else min(20480, 49152 - tiles)
    slots = parts
    while slots * kept + rows > room:
        slots //= 2
    return slots


@triton.jit
def _add_ranges(total, acc, slots, thread, row, part, GROUPS: tl.constexpr, SLOTS: tl.constexpr,
                LANES: tl.constexpr, WARPS: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """Add the sums of all parts to ``total``, in order; a thread keeps one output of some rows.

    SLOTS parts at a time lay theirs down, all of them read. Neighbours have neighbouring outputs,
    which are stored together; so sums of one output are an odd number of words from the next.
    LAST: nothing is written after them.
    """
    PARTS: tl.constexpr = WARPS * (32 // LANES)
    EACH: tl.constexpr = 8 * GROUPS // PARTS
    OUTPUT: tl.constexpr = 4 * LANES + 4
    SLOT: tl.constexpr = 8 * GROUPS * OUTPUT
    to = slots + part % SLOTS * SLOT + row * 4
    mine = slots + thread % (8 * GROUPS) * OUTPUT + thread // (8 * GROUPS) * 4
    for z in tl.static_range(PARTS // SLOTS):
        on = (part // SLOTS == z).to(tl.int32)
        for i in tl.static_range(GROUPS):
            write_eight(to + 8 * i * OUTPUT, acc[i], OUTPUT, on)
        at = barrier(mine, WARPS)
        for s in tl.static_range(SLOTS):
            result = ()
            for j in tl.static_range(EACH):
                one = read_kept(at + s * SLOT + j * (LANES // EACH * 4))
                result = result + (total[j] + one,)
            total = result
        if z + 1 < PARTS // SLOTS or not LAST:
            barrier(mine, WARPS)
    return total


@triton.jit
def _starts(number, length, extra, BESIDE: tl.constexpr):
    """First inputs of the ranges from ``number`` on, one for each part of a warp."""
    result = ()
    for i in tl.static_range(BESIDE):
        result = result + (first_of(number + i, length, extra),)
    return result


@triton.jit
def _rows(pointers, lane, LANES: tl.constexpr, QUADS: tl.constexpr):
    """Pointers of the rows that a lane copies from, of those that the lanes of its warp have."""
    result = ()
    for i in tl.static_range(QUADS):
        row = lane // QUADS + i * (32 // QUADS)
        result = result + (pointer_of(pointers, lane if LANES < 32 else row),)
    return result


@triton.jit
def _begin_copies(at, x_at, w_rows, x_rows, k, k_x, lane, K, SIZE: tl.constexpr,
                  LANES: tl.constexpr, QUADS: tl.constexpr, ONE_X: tl.constexpr):  # fmt: skip
    """Begin to fill a tile of W at ``at``, 32 rows for each part of the warp, and one of x.

    ``k`` has the first input of each part, ``k_x`` that of the lane's own. A lane copies one quad
    of a row, neighbours the next quads of it. The quads of a row of x are exchanged so that lanes
    that read one quad of different rows meet different banks. ONE_X: all rows are the same one;
    every program would ask for the same few lines 32 times over, and wait for them.
    """
    STEP: tl.constexpr = 32 // QUADS
    QUAD: tl.constexpr = 4 * SIZE
    q = lane % QUADS
    for part in tl.static_range(32 // LANES):
        offset = tl.minimum(k[part] + 4 * q, K - 4).to(tl.int64)
        for i in tl.static_range(QUADS):
            row = lane // QUADS + i * STEP
            copy_from(at + ((32 * part + row) * QUADS + q) * QUAD, w_rows[i] + offset, SIZE)
    offset = tl.minimum(k_x + 4 * q, K - 4).to(tl.int64)
    if ONE_X:
        copy_from(x_at + (lane // LANES * QUADS + q) * QUAD, x_rows[0] + offset, SIZE)
    else:
        for i in tl.static_range(QUADS):
            place = lane // QUADS + i * STEP
            swapped = q ^ (place // (32 // (SIZE * QUADS)) % QUADS)
            copy_from(x_at + (place * QUADS + swapped) * QUAD, x_rows[i] + offset, SIZE)
    commit_copies(0)


@triton.jit
def sum_parts(
    zeros, x, w, out, k0, k1, pn, sample, step, thread, row, part, K,
    ranges, length, extra, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr, ONE_X: tl.constexpr,
    LANES: tl.constexpr, QUADS: tl.constexpr, WARPS: tl.constexpr,
    GROUPS: tl.constexpr, RANGES: tl.constexpr,
):  # fmt: skip
    """Sums of all inputs, 4·QUADS at a time, and the pointers of their rows.

    A thread has those of output ``thread % (8·GROUPS)`` of every n-th row from ``thread //
    (8·GROUPS)`` on, of n = 32·WARPS / (8·GROUPS). ``w`` are the pointers of W's rows, one for each
    lane, ``x`` and ``out`` those of the rows of x and of the results. ONE_X: all rows of x are one.
    """
    ELEMENT: tl.constexpr = x.dtype.element_ty
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    QUAD: tl.constexpr = 4 * SIZE
    BESIDE: tl.constexpr = 32 // LANES
    PARTS: tl.constexpr = WARPS * BESIDE
    TILE: tl.constexpr = 32 * BESIDE * QUADS * QUAD
    WIDE: tl.constexpr = 0 if SIZE == 4 else 32 * BESIDE * QUADS * 16
    SLICE: tl.constexpr = 2 * TILE + WIDE + 32 * QUADS * QUAD
    KEPT: tl.constexpr = 32 * GROUPS * (LANES + 1)
    EACH: tl.constexpr = 8 * GROUPS // PARTS
    SLOTS: tl.constexpr = _slots(WARPS * SLICE, KEPT, 8 * LANES, PARTS, RANGES)
    SUMS: tl.constexpr = 0 if PARTS == RANGES else SLOTS * KEPT + 8 * LANES
    ALIKE: tl.constexpr = EVEN and BESIDE == 1
    tl.static_assert(RANGES % PARTS == 0)
    tl.static_assert(8 * GROUPS % PARTS == 0, "every part has outputs of its own")
    tl.static_assert(BESIDE == 1 or QUADS == 1, "a lane copies x of its own part")
    base = shared_memory(WARPS * SLICE + SUMS)
    slots = base if PARTS == RANGES else base + WARPS * SLICE
    total = (zeros[0][0],) * EACH
    lane = thread % 32
    beside = thread // 32 * BESIDE
    own_w = part % BESIDE * (32 * QUADS * 16)
    w_rows = _rows(w, lane, 32, QUADS)
    x_rows = _rows(x, lane, LANES, QUADS)
    mine = base + beside // BESIDE * SLICE
    x_tile = mine + (2 * TILE + WIDE)
    x_at = 2 * TILE + WIDE + (lane // LANES if ONE_X else lane) * QUADS * QUAD
    swap = lane * 0 if ONE_X else lane // (32 // (SIZE * QUADS)) % QUADS
    turn = 0
    first = first_of(part, length, extra)
    starts = _starts(beside, length, extra, BESIDE)
    _begin_copies(mine, x_tile, w_rows, x_rows, starts, first, lane, K, SIZE, LANES, QUADS, ONE_X)
    for number in tl.range(0, ranges, PARTS):
        end = tl.minimum(first_of(number + part + 1, length, extra), K)
        at_most = number + warp_number() * BESIDE
        start = first_of(at_most, length, extra)
        steps = tl.minimum(first_of(at_most + 1, length, extra), K) - start
        first_after = first_of(number + part + PARTS, length, extra)
        starts_after = _starts(number + beside + PARTS, length, extra, BESIDE)
        acc = zeros
        words = words_of(first, k0, k1, pn, sample, step, row, end, nil, KEEP, BITS, ALIKE)
        for k in tl.range(0, steps, 4 * QUADS):
            at = wait_copies(mine + turn, 1)
            x_quads = read_row(at - turn + x_at, swap, ELEMENT, QUADS)
            w_at = at
            if SIZE == 2:
                w_at = widen(at, at - turn + 2 * TILE, lane, ELEMENT, BESIDE * QUADS)
            w_at = barrier(w_at, 1)
            turn = TILE - turn
            after = k + 4 * QUADS
            here = after < steps or PARTS == RANGES
            k_next = ()
            for i in tl.static_range(BESIDE):
                k_next = k_next + (tl.where(here, starts[i] + after, starts_after[i]),)
            _begin_copies(
                mine + turn, x_tile, w_rows, x_rows, k_next,
                tl.where(here, first + after, first_after), lane, K, SIZE, LANES, QUADS, ONE_X,
            )  # fmt: skip
            acc, words = add_tile(
                acc, words, x_quads, w_at + own_w, first + k, end,
                k0, k1, pn, sample, step, row, nil, KEEP, BITS, ALIKE, QUADS, GROUPS, True,
            )  # fmt: skip
        if PARTS == RANGES:
            slots = wait_copies(slots, WARPS)
        outs = slots + SLOTS * KEPT
        store_pointer(outs + row * 8, out)
        total = _add_ranges(
            total, acc, slots, thread, row, part, GROUPS, SLOTS, LANES, WARPS, PARTS == RANGES
        )
        first = first_after
        starts = starts_after
    if PARTS < RANGES:
        wait_copies(mine, 1)  # a program ends with nothing on its way
    pointers = ()
    for j in tl.static_range(EACH):
        at = slots + SLOTS * KEPT + (thread // (8 * GROUPS) + j * (LANES // EACH)) * 8
        pointers = pointers + (read_pointer(at, out),)
    return total, pointers
