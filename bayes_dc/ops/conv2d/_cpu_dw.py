"""DropConnect convolution on the CPU: weight gradient.

    dW[n, q] = s · Σ_m D[m, n, q] · Σ_r gy[m, r, n] · x[m, r, q]

m are the masks (images, or passes), r the positions that share one, q the weights (kh, kw, c) of an
output. Depthwise: x has an element of its own for every n.

Task        32 outputs × up to 128 weights, all masks
Blocking    128 positions at a time: their gy [r, 32], then 8 × 32 products in registers
Mask        on the products of each mask
Order       masks ascending, in each the positions ascending, 128 to a chain; the same for any tasks
Scratch     60 KB per thread in float32, whatever the shape
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, load, next_task, store
from bayes_dc.ops._cpu_interleave import interleave
from bayes_dc.ops.conv2d._cpu_ir import (
    ROWS,
    WIDTH,
    add_kept_outputs,
    copy_row,
    products_by_lane,
    products_over_rows,
)
from bayes_dc.ops.conv2d._cpu_tables import (
    DEPTH,
    IDS_BYTES,
    WORDS_BYTES,
    table_ids,
    table_rows,
    table_words,
)
from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.numba_rng import GROUPS

TASK_TERMS = 128
"""Most weights of an output in one task."""

_TABLES_BYTES = IDS_BYTES + (2 * DEPTH + ROWS) * 8


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return _TABLES_BYTES + WORDS_BYTES + (DEPTH + 2 * TASK_TERMS) * WIDTH * size


@inlined
def _pack_rows(dst: int, rows: int, count: int, lanes: int, tag: Any) -> None:
    """dst[r, n] = row r [n] for n < lanes, else 0; ``rows`` holds the rows' addresses."""
    size = bytes_of(tag)
    for r in range(count):
        target, row = dst + r * WIDTH * size, load(rows, r, 0)
        if lanes == WIDTH:
            copy_row(target, row, tag)
        else:
            for n in range(WIDTH):
                store(target, n, load(row, n, tag) if n < lanes else tag - tag)


@inlined
def _pack_planes(
    dst: int,
    rows: int,
    table: int,
    first: int,
    count: int,
    plane: int,
    step: int,
    lanes: int,
    tag: Any,
) -> None:
    """The same from planes of channels ``step`` elements apart, positions side by side in each.

    Lanes from ``lanes`` on repeat the last channel. ``table`` is room for 8 addresses.
    """
    size = bytes_of(tag)
    r = 0
    while r < count:
        run = min(plane - (first + r) % plane, count - r)
        start = load(rows, r, 0)
        for part in range(0, WIDTH, ROWS):
            for i in range(ROWS):
                store(table, i, start + min(part + i, lanes - 1) * step * size)
            interleave(dst + (r * WIDTH + part) * size, WIDTH, table, run, tag)
        r += run


@compiled
def run(
    scratch: int,
    counter: int,
    task_terms: int,
    masks: int,
    S: int,
    R: int,
    I: int,
    J: int,
    x: int,
    x_p: int,
    x_s: int,
    x_b: int,
    x_i: int,
    x_j: int,
    x_g: int,
    gy: int,
    gy_p: int,
    gy_s: int,
    gy_b: int,
    gy_i: int,
    gy_j: int,
    gy_n: int,
    channels: int,
    tiles: int,
    groups: int,
    out: int,
    terms: int,
    places: int,
    offsets: int,
    lanewise: int,
    key: int,
    sample_ids: int,
    pass_ids: int,
    keep: int,
    bits: int,
    scale: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements; out [·, terms, 32]."""
    size = bytes_of(scale)
    ids = scratch
    x_rows = ids + IDS_BYTES
    gy_rows = x_rows + DEPTH * 8
    table = gy_rows + DEPTH * 8
    words = table + ROWS * 8
    packed = words + WORDS_BYTES
    products = packed + DEPTH * WIDTH * size
    sums = products + TASK_TERMS * WIDTH * size
    splits = (terms + task_terms - 1) // task_terms
    tasks = groups * tiles * splits

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        column = task // splits
        group, tile = column // tiles, column % tiles
        first = task % splits * task_terms
        count = min(task_terms, terms - first)
        lane = tile * WIDTH
        n0 = group * channels + lane
        lanes = min(WIDTH, channels - lane)
        straddles = 1 if n0 % 32 + lanes > 32 else 0
        base = x + (group * x_g + (lane if lanewise else 0)) * size
        clear(sums, TASK_TERMS * WIDTH, scale)

        for mask in range(masks):
            u = mask % GROUPS
            if u == 0:
                table_ids(ids, mask, masks, S, sample_ids, pass_ids)
                table_words(
                    words,
                    places,
                    first,
                    count,
                    min(GROUPS, masks - mask),
                    key,
                    n0 // 32,
                    straddles,
                    ids,
                    keep,
                    bits,
                )
            p, s = mask // S, mask % S
            at_x = base + (p * x_p + s * x_s) * size
            at_gy = gy + (p * gy_p + s * gy_s + n0 * gy_n) * size
            clear(products, TASK_TERMS * WIDTH, scale)
            for row0 in range(0, R, DEPTH):
                depth = min(DEPTH, R - row0)
                table_rows(x_rows, row0, depth, size, at_x, I, J, x_b, x_i, x_j)
                table_rows(gy_rows, row0, depth, size, at_gy, I, J, gy_b, gy_i, gy_j)
                if gy_n == 1:
                    _pack_rows(packed, gy_rows, depth, lanes, scale)
                else:
                    _pack_planes(packed, gy_rows, table, row0, depth, I * J, gy_n, lanes, scale)
                for q in range(0, count, ROWS):
                    target = products + q * WIDTH * size
                    moves = offsets + (first + q) * 8
                    if lanewise:
                        products_by_lane(target, packed, x_rows, moves, depth, scale)
                    else:
                        products_over_rows(target, packed, x_rows, moves, depth, scale)
            low = words + u * DEPTH * 4
            high = low + straddles * GROUPS * DEPTH * 4
            add_kept_outputs(sums, products, low, high, n0 % 32, count, scale)

        for q in range(count):
            target = out + (column * terms + first + q) * WIDTH * size
            for n in range(WIDTH):
                store(target, n, load(sums, q * WIDTH + n, scale) * scale)
