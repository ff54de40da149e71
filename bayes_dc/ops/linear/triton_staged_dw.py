"""The weight gradient's way through shared memory: rows of x and dy come by asynchronous copies.

Two tiles take turns: one is read while the copies into the other are under way. Two tables of row
pointers and ids take turns too: the pointers of a row are found by one lane, not by all.
"""

import triton
import triton.language as tl

from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.linear.triton_fma import fma_if8, load_id
from bayes_dc.ops.linear.triton_stage import (
    barrier,
    commit_copies,
    copy_quad,
    read_pair,
    read_quad,
    shared_memory,
    store_pair,
    store_pointer,
    wait_copies,
    words_below,
    write_quad,
)
from bayes_dc.rng.device import mask_words


@triton.jit
def add_row(acc, words, x, gy, PTX: tl.constexpr):
    """Add one row; acc[part][i] are eight outputs of input i, ``gy`` eight quads of outputs."""
    result = ()
    for part in tl.static_range(4):
        a = gy[2 * part]
        b = gy[2 * part + 1]
        eight = (a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3])
        columns = ()
        for i in tl.static_range(4):
            columns = columns + (
                fma_if8(acc[part][i], words[i], 1 << (8 * part), x[i], eight, PTX),
            )
        result = result + (columns,)
    return result


@triton.jit
def _fill_table(
    table, first, last, lane, gy_ptr, x_ptr, sample_ptr, pass_ptr, S, R,
    stride_gp, stride_gs, stride_gr, stride_xp, stride_xs, stride_xr, stride_sample, stride_pass,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Pointers and ids of ROWS rows from ``first``, 24 bytes each; rows past the last repeat it."""
    i = lane % ROWS
    p, s, r = row_coordinates(tl.minimum(first + i, last - 1), S, R)
    at = table + i * 24
    store_pointer(at, gy_ptr + (p * stride_gp + s * stride_gs + r * stride_gr))
    store_pointer(at + 8, x_ptr + (p * stride_xp + s * stride_xs + r * stride_xr))
    sample = load_id(sample_ptr + s * stride_sample, True)
    step = load_id(pass_ptr + p * stride_pass, True)
    store_pair(at + 16, sample, step)


@triton.jit
def _begin_copies(at, table, lane, n, N, k, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Begin to copy 32 outputs from n on of ROWS rows of dy, and a quad of x for each lane."""
    QUAD: tl.constexpr = 4 * SIZE
    offset = tl.minimum(n + 4 * (lane % 8), N - 4).to(tl.int64) * SIZE
    for i in tl.static_range(ROWS // 4):
        row = lane // 8 + 4 * i
        copy_quad(at + (row * 8 + lane % 8) * QUAD, table + row * 24, offset, SIZE)
    at += ROWS * 8 * QUAD + lane * QUAD
    offset = k.to(tl.int64) * SIZE
    for i in tl.static_range(ROWS):
        copy_quad(at + i * 32 * QUAD, table + (i * 24 + 8), offset, SIZE)
    commit_copies(0)


@triton.jit
def sum_rows(
    acc, gy_ptr, x_ptr, sample_ptr, pass_ptr, k0, k1, pn, lane, quad, first, last, S, R, N, K, nil,
    stride_gp, stride_gs, stride_gr, stride_xp, stride_xs, stride_xr, stride_sample, stride_pass,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of the rows ``first`` … ``last`` − 1, ROWS at a time, [4][4 inputs][8 outputs]."""
    ELEMENT: tl.constexpr = x_ptr.dtype.element_ty
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    QUAD: tl.constexpr = 4 * SIZE
    TILE: tl.constexpr = ROWS * 40 * QUAD
    WIDE: tl.constexpr = 0 if SIZE == 4 else ROWS * 8 * 16
    TABLE: tl.constexpr = ROWS * 24
    base = shared_memory(2 * TILE + WIDE + 2 * TABLE)
    tables = base + (2 * TILE + WIDE)
    k = tl.minimum(4 * quad, K - 4)
    n = pn * 32
    turn = 0
    flip = 0
    _fill_table(
        tables, first, last, lane, gy_ptr, x_ptr, sample_ptr, pass_ptr, S, R,
        stride_gp, stride_gs, stride_gr, stride_xp, stride_xs, stride_xr,
        stride_sample, stride_pass, ROWS,
    )  # fmt: skip
    base = barrier(base, 1)
    _begin_copies(base, tables, lane, n, N, k, SIZE, ROWS)
    _fill_table(
        tables + TABLE, first + ROWS, last, lane, gy_ptr, x_ptr, sample_ptr, pass_ptr, S, R,
        stride_gp, stride_gs, stride_gr, stride_xp, stride_xs, stride_xr,
        stride_sample, stride_pass, ROWS,
    )  # fmt: skip
    for m in tl.range(first, last, ROWS):
        at = wait_copies(base + turn, 1)
        ids = at - turn + (2 * TILE + WIDE + 16) + flip
        g_at = at
        if SIZE == 2:
            g_at = at - turn + 2 * TILE
            for i in tl.static_range(ROWS // 4):
                place = lane + 32 * i
                v0, v1, v2, v3 = read_quad(at + place * QUAD, ELEMENT)
                write_quad(g_at + place * 16, v0, v1, v2, v3)
            g_at = barrier(g_at, 1)
        x_at = at + ROWS * 8 * QUAD + lane * QUAD
        turn = TILE - turn
        flip = TABLE - flip
        _begin_copies(base + turn, tables + flip, lane, n, N, k, SIZE, ROWS)
        for i in tl.range(0, ROWS, 2):
            for j in tl.static_range(2):
                sample, step = read_pair(ids + (i + j) * 24 + quad * 0)
                words = mask_words(
                    k0, k1, quad.to(tl.uint32), pn, sample, step, KEEP, BITS, nil, True
                )
                if not EVEN:
                    words = words_below(words, m + i + j + quad * 0, last)
                x = read_quad(x_at + (i + j) * (32 * QUAD), ELEMENT)
                gy = ()
                for q in tl.static_range(8):
                    gy = gy + (read_quad(g_at + ((i + j) * 8 + q) * 16, tl.float32),)
                acc = add_row(acc, words, x, gy, True)
        barrier(base, 1)
        _fill_table(
            tables + (TABLE - flip), m + 2 * ROWS, last, lane, gy_ptr, x_ptr, sample_ptr, pass_ptr,
            S, R, stride_gp, stride_gs, stride_gr, stride_xp, stride_xs, stride_xr,
            stride_sample, stride_pass, ROWS,
        )  # fmt: skip
    wait_copies(base, 1)
    return acc
