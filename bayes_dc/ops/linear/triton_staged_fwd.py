"""The forward's way through shared memory: tiles of x and W come by asynchronous copies.

Two tiles take turns: one is read while the copies into the other are under way. Inputs fall into
four ranges with a sum each; a program of one warp makes one range after another, a program of four
warps has a range in each warp. Either way the four sums are added in order: same bits.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_fma import fma_if8
from bayes_dc.ops.linear.triton_stage import (
    add_quad,
    barrier,
    commit_copies,
    copy_quad,
    read_quad,
    shared_memory,
    store_pointer,
    wait_copies,
    words_below,
    write_quad,
)
from bayes_dc.rng.device import mask_words


@triton.jit
def add_inputs(acc, words, x, w, PTX: tl.constexpr):
    """Add four inputs to the 32 outputs; ``w`` holds the quads of W of the outputs."""
    result = ()
    for part in tl.static_range(4):
        one = acc[part]
        for i in tl.static_range(4):
            column = ()
            for j in tl.static_range(8):
                column = column + (w[8 * part + j][i],)
            one = fma_if8(one, words[i], 1 << (8 * part), x[i], column, PTX)
        result = result + (one,)
    return result


@triton.jit
def _add_range(acc, at, STEP: tl.constexpr):
    """Add to the sums kept at ``at``, eight quads STEP bytes apart."""
    for i in tl.static_range(4):
        a = acc[i]
        for j in tl.static_range(2):
            add_quad(at + (2 * i + j) * STEP, a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3])


@triton.jit
def _read_sums(at, STEP: tl.constexpr):
    """The sums kept at ``at``."""
    result = ()
    for i in tl.static_range(4):
        a = read_quad(at + 2 * i * STEP, tl.float32)
        b = read_quad(at + (2 * i + 1) * STEP, tl.float32)
        result = result + ((a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]),)
    return result


@triton.jit
def _add_slices(acc, at, lane, part):
    """Sums of the four warps, in order; each warp returns eight outputs, those of its number."""
    for i in tl.static_range(4):
        a = acc[i]
        for j in tl.static_range(2):
            to = at + ((part * 8 + 2 * i + j) * 32 + lane) * 16
            write_quad(to, a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3])
    at = barrier(at, 4)
    result = ()
    for j in tl.static_range(2):
        v0, v1, v2, v3 = read_quad(at + ((part * 2 + j) * 32 + lane) * 16, tl.float32)
        for z in tl.static_range(1, 4):
            u0, u1, u2, u3 = read_quad(at + (((8 * z + part * 2 + j) * 32) + lane) * 16, tl.float32)
            v0, v1, v2, v3 = v0 + u0, v1 + u1, v2 + u2, v3 + u3
        result = result + (v0, v1, v2, v3)
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
def _widen(at, wide, lane, ELEMENT: tl.constexpr, QUADS: tl.constexpr):
    """Write W's tile of a 16-bit type as float32; returns where."""
    for i in tl.static_range(QUADS):
        place = lane + 32 * i
        v0, v1, v2, v3 = read_quad(at + place * 8, ELEMENT)
        write_quad(wide + place * 16, v0, v1, v2, v3)
    return wide


@triton.jit
def _add_tile(
    acc, at, w_at, x_row, swap, k, K, k0, k1, pn, sample, step, nil,
    ELEMENT: tl.constexpr, KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    QUADS: tl.constexpr,
):  # fmt: skip
    """Add the 4·QUADS inputs of a tile from ``k`` on."""
    for q in tl.static_range(QUADS):
        k4 = k // 4 + q + swap * 0
        words = mask_words(k0, k1, k4.to(tl.uint32), pn, sample, step, KEEP, BITS, nil, True)
        if not EVEN:
            words = words_below(words, 4 * k4, K)
        x = read_quad(at + x_row + (q ^ swap) * (ELEMENT.primitive_bitwidth // 2), ELEMENT)
        w = ()
        for j in tl.static_range(32):
            w = w + (read_quad(w_at + (j * QUADS + q) * 16, tl.float32),)
        acc = add_inputs(acc, words, x, w, True)
    return acc


@triton.jit
def sum_inputs(
    zeros, x, w, k0, k1, pn, sample, step, row, part, lane, K, length, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, QUADS: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Sums of all inputs, 4·QUADS at a time, for one warp [4][8]; for four, of each warp its eight.

    ``w`` are the pointers of W's rows, one for each lane, ``x`` those of the rows of x. Types of 16
    bits are widened once per tile, not once per lane.
    """
    ELEMENT: tl.constexpr = x.dtype.element_ty
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    QUAD: tl.constexpr = 4 * SIZE
    TILE: tl.constexpr = 32 * (1 + ROWS) * QUADS * QUAD
    WIDE: tl.constexpr = 0 if SIZE == 4 else 32 * QUADS * 16
    SLICE: tl.constexpr = 2 * TILE + WIDE
    SUMS: tl.constexpr = 4096 * ROWS if SLICES == 1 else 0
    MEMORY: tl.constexpr = SLICES * SLICE if SLICES * SLICE > 16384 or SLICES == 1 else 16384
    base = shared_memory(MEMORY + 256 * (1 + ROWS) + SUMS)
    w_table = base + MEMORY
    x_table = w_table + 256
    store_pointer(w_table + lane * 8, w)
    store_pointer(x_table + row * 8, x)
    sums = x_table + 256 * ROWS + row * 16
    swap = row // (32 // (SIZE * QUADS)) % QUADS
    x_row = 32 * QUADS * QUAD + row * QUADS * QUAD
    turn = 0
    if SLICES == 1:
        for i in tl.static_range(8):
            write_quad(sums + i * (512 * ROWS), zeros[0][0], zeros[0][0], zeros[0][0], zeros[0][0])
        base = wait_copies(base, 1)
        _begin_copies(base, x_table, w_table, lane * 0, lane, K, SIZE, ROWS, QUADS)
        for first in tl.range(0, K, length):
            ranged = zeros
            for k in tl.range(first, tl.minimum(first + length, K), 4 * QUADS):
                at = wait_copies(base + turn, 1)
                w_at = at
                if SIZE == 2:
                    w_at = barrier(_widen(at, at - turn + 2 * TILE, lane, ELEMENT, QUADS), 1)
                turn = TILE - turn
                _begin_copies(
                    base + turn, x_table, w_table, lane * 0 + k + 4 * QUADS, lane, K,
                    SIZE, ROWS, QUADS,
                )  # fmt: skip
                ranged = _add_tile(
                    ranged, at, w_at, x_row, swap, k, K, k0, k1, pn, sample, step, nil,
                    ELEMENT, KEEP, BITS, EVEN, QUADS,
                )  # fmt: skip
            _add_range(ranged, sums, 512 * ROWS)
        return _read_sums(sums + wait_copies(base, 1) - base, 512 * ROWS)
    else:
        acc = zeros
        mine = part * SLICE
        first = part * length
        base = wait_copies(base, SLICES)
        _begin_copies(base + mine, x_table, w_table, first, lane, K, SIZE, ROWS, QUADS)
        for k in tl.range(0, length, 4 * QUADS):
            at = wait_copies(base + turn, SLICES) + mine
            w_at = at
            if SIZE == 2:
                w_at = barrier(_widen(at, at - turn + 2 * TILE, lane, ELEMENT, QUADS), SLICES)
            turn = TILE - turn
            _begin_copies(
                base + turn + mine, x_table, w_table, first + k + 4 * QUADS, lane, K,
                SIZE, ROWS, QUADS,
            )  # fmt: skip
            acc = _add_tile(
                acc, at, w_at, x_row, swap, first + k, K, k0, k1, pn, sample, step, nil,
                ELEMENT, KEEP, BITS, EVEN, QUADS,
            )  # fmt: skip
        return _add_slices(acc, wait_copies(base, SLICES), lane, part)
