"""DropConnect convolution on the CPU: forward and input gradient, as one kernel.

    out[r, n] = relu?((s · Σ_q D w[q, n] · source[r, q] + b[n]) · f[n] + t[n])

or, where it pools, the largest of four such, whose rows follow one another in a task.

Forward: r are output positions, q the weights (kh, kw, c) of an output, n the outputs. Input
gradient: r are input positions of one phase of the stride, q = (tap, output), n the inputs of a
tap. Depthwise: q are taps, n the channels. What r and q read is a row's address plus a term's
offset; the source is padded, so that nothing is out of range.

Task        up to 256 rows of one mask, or of 4 masks with up to 64 rows each, × 32 lanes
Blocking    128 terms at a time: their weights [q, 32] masked, then 8 × 32 sums in registers
Mask        on the weights, once for each (task, mask): 1 / R of the multiply-adds; none if p has
            no digits
Order       q ascending, 128 to a chain, the chains added up in order; the same for any tasks
Scratch     105 KB per thread in float32, whatever the shape
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, load, next_task, store
from bayes_dc.ops._cpu_interleave import interleave
from bayes_dc.ops.conv2d._cpu_ir import (
    ROWS,
    WIDTH,
    copy_row,
    drop_outputs,
    finish_row,
    largest_row,
    relu_row,
    sum_over_taps,
    sum_over_terms,
    write_row,
)
from bayes_dc.ops.conv2d._cpu_tables import (
    DEPTH,
    IDS_BYTES,
    WORDS_BYTES,
    mask_inputs,
    table_ids,
    table_rows,
    table_windows,
    table_words,
)
from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.numba_rng import GROUPS

TASK_ROWS = 256
"""Most rows of a task."""

_TABLES_BYTES = IDS_BYTES + (2 * TASK_ROWS + ROWS) * 8


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return _TABLES_BYTES + WORDS_BYTES + (GROUPS * DEPTH + TASK_ROWS) * WIDTH * size


@inlined
def _finish(
    sums: int, rows: int, bias: int, factors: int, summands: int, relu: int, scale: Any
) -> None:
    """Sums, by lane: relu?((scale · sum + bias) · factor + summand); factors may be 0."""
    for r in range(rows):
        row = sums + r * WIDTH * bytes_of(scale)
        write_row(row, row, bias, scale)
        if factors != 0:
            finish_row(row, factors, summands, scale)
        if relu != 0:
            relu_row(row, scale)


@inlined
def _write_rows(targets: int, sums: int, rows: int, lanes: int, tag: Any) -> None:
    """Row r, lane n: the sum to element n of target r."""
    size = bytes_of(tag)
    for r in range(rows):
        target, result = load(targets, r, 0), sums + r * WIDTH * size
        if lanes == WIDTH:
            copy_row(target, result, tag)
        else:
            for n in range(lanes):
                store(target, n, load(result, n, tag))


@inlined
def _write_planes(
    targets: int,
    step: int,
    sums: int,
    rows: int,
    lanes: int,
    table: int,
    tag: Any,
) -> None:
    """The same to element n · step, where neighbours are rows.

    Few planes at a time: a multiple of 4096 bytes apart, they share a set of the cache.
    """
    size = bytes_of(tag)
    for part in range(0, lanes, ROWS):
        planes = min(ROWS, lanes - part)
        for block in range(0, rows, ROWS):
            count = min(ROWS, rows - block)
            first = load(targets, block, 0) + part * step * size
            source = sums + (block * WIDTH + part) * size
            if (
                count == ROWS
                and load(targets, block + ROWS - 1, 0) - load(targets, block, 0)
                == (ROWS - 1) * size
            ):
                for r in range(ROWS):
                    store(table, r, source + r * WIDTH * size)
                interleave(first, step, table, planes, tag)
            else:
                for r in range(count):
                    target = load(targets, block + r, 0) + part * step * size
                    for n in range(planes):
                        store(target, n * step, load(source, r * WIDTH + n, tag))


@compiled
def run(
    scratch: int,
    counter: int,
    task_rows: int,
    task_masks: int,
    masks: int,
    S: int,
    R: int,
    I: int,
    J: int,
    source: int,
    source_p: int,
    source_s: int,
    source_b: int,
    source_i: int,
    source_j: int,
    source_g: int,
    out: int,
    out_p: int,
    out_s: int,
    out_b: int,
    out_i: int,
    out_j: int,
    out_n: int,
    channels: int,
    tiles: int,
    groups: int,
    weights: int,
    bias: int,
    factors: int,
    summands: int,
    relu: int,
    pool: int,
    terms: int,
    all_terms: int,
    places: int,
    offsets: int,
    along_inputs: int,
    lanewise: int,
    N: int,
    key: int,
    sample_ids: int,
    pass_ids: int,
    keep: int,
    bits: int,
    scale: Any,
) -> None:
    """Take and do tasks until none is left; addresses, strides in elements."""
    size = bytes_of(scale)
    ids = scratch
    sources = ids + IDS_BYTES
    targets = sources + TASK_ROWS * 8
    table = targets + TASK_ROWS * 8
    words = table + ROWS * 8
    masked = words + WORDS_BYTES
    sums = masked + GROUPS * DEPTH * WIDTH * size
    four = 4 if pool else 1  # results of a written one
    chunks = (R + task_rows - 1) // task_rows
    columns = groups * tiles
    tasks = (masks + task_masks - 1) // task_masks * chunks * columns
    room = (min(task_rows, R) + ROWS - 1) // ROWS * ROWS

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        column = task % columns
        group, tile = column // tiles, column % tiles
        row0 = task // columns % chunks * task_rows
        mask0 = task // columns // chunks * task_masks
        units = min(task_masks, masks - mask0)
        count = min(task_rows, R - row0)
        lane = tile * WIDTH
        n0 = group * channels + lane
        lanes = min(WIDTH, channels - lane)
        straddles = 1 if n0 % 32 + lanes > 32 else 0
        base = source + (group * source_g + (lane if lanewise else 0)) * size
        w = weights + column * all_terms * WIDTH * size
        table_ids(ids, mask0, masks, S, sample_ids, pass_ids)
        for u in range(units):
            p, s = (mask0 + u) // S, (mask0 + u) % S
            at = base + (p * source_p + s * source_s) * size
            rows = sources + u * room * 8
            first, found = row0 // four, count // four
            step_i, step_j = source_i * (1 + pool), source_j * (1 + pool)
            table_rows(rows, first, found, size, at, I, J, source_b, step_i, step_j)
            if pool:
                table_windows(rows, count, size, source_i, source_j)
            at = out + (p * out_p + s * out_s + n0 * out_n) * size
            rows = targets + u * room * 8
            table_rows(rows, first, found, size, at, I, J, out_b, out_i, out_j)
        clear(sums, units * room * WIDTH, scale)

        for first in range(0, terms, DEPTH):
            depth = min(DEPTH, terms - first)
            if bits == 0:  # nothing is dropped
                pass
            elif along_inputs:
                mask_inputs(
                    masked,
                    w,
                    words,
                    places,
                    first,
                    depth,
                    units,
                    lane,
                    group * N,
                    N,
                    key,
                    ids,
                    keep,
                    bits,
                    scale,
                )
            else:
                table_words(
                    words,
                    places,
                    first,
                    depth,
                    units,
                    key,
                    n0 // 32,
                    straddles,
                    ids,
                    keep,
                    bits,
                )
            for u in range(units):
                tile_weights = masked + (u if along_inputs else 0) * DEPTH * WIDTH * size
                if bits == 0:
                    tile_weights = w + first * WIDTH * size
                elif not along_inputs:
                    low = words + u * DEPTH * 4
                    drop_outputs(
                        tile_weights,
                        w + first * WIDTH * size,
                        low,
                        low + straddles * GROUPS * DEPTH * 4,
                        n0 % 32,
                        depth,
                        scale,
                    )
                for r in range(0, count, ROWS):
                    place = sums + (u * room + r) * WIDTH * size
                    rows = sources + (u * room + r) * 8
                    if lanewise:
                        sum_over_taps(place, tile_weights, rows, offsets + first * 8, depth, scale)
                    else:
                        sum_over_terms(place, tile_weights, rows, offsets + first * 8, depth, scale)

        own = column * WIDTH * size
        ending = factors + own if factors != 0 else 0
        for u in range(units):
            rows = targets + u * room * 8
            results = sums + u * room * WIDTH * size
            if out_n == 1 and lanes == WIDTH and ending == 0 and relu == 0 and pool == 0:
                for r in range(count):
                    target = load(rows, r, 0)
                    write_row(target, results + r * WIDTH * size, bias + own, scale)
                continue
            _finish(results, count, bias + own, ending, summands + own, relu, scale)
            if pool:
                for r in range(count // four):
                    largest_row(results + r * WIDTH * size, results + 4 * r * WIDTH * size, scale)
            if out_n == 1:
                _write_rows(rows, results, count // four, lanes, scale)
            else:
                _write_planes(rows, out_n, results, count // four, lanes, table, scale)
