"""Per-row DropConnect linear on the CPU, forward: y[g, r, n] = s · Σ_k D W[n, k] x[g, r, k] + b[n].

Task        up to 128 rows × 256 outputs; tasks are taken from a shared counter.
Blocking    128 inputs at a time: their x, interleaved by 8 rows, then for every word of 32 outputs the
            weights [k, 32], the words of 8 rows, and 8 × 32 sums in registers.
Mask        made once for each (group, word, 128 inputs) in a 4 KB buffer, used from there.
Order       one chain of multiply-adds per output, k ascending, whatever the blocks and threads.
Scratch     280 KB per thread in float32, whatever G, N and K are.
"""

from typing import Any

from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_inputs
from bayes_dc.ops.linear._cpu_tile import (
    bytes_of,
    group_ids,
    interleave,
    load,
    next_task,
    row_groups,
    row_offsets,
    store,
)
from bayes_dc.rng.numba_rng import GROUPS, INPUTS, compiled, fill_dropped

TASK_ROWS = 128
TASK_WORDS = 8
DEPTH = 128
"""Inputs of one pass over the rows."""

_TABLES = 8192
_WORDS_BYTES = ROWS * DEPTH * 4


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    per_task = TASK_ROWS * DEPTH + TASK_WORDS * TASK_ROWS * WORD + DEPTH * WORD
    return _TABLES + _WORDS_BYTES + per_task * size


@compiled
def run(
    scratch: int,
    counter: int,
    task_rows: int,
    task_words: int,
    x: int,
    x_p: int,
    x_s: int,
    x_r: int,
    w: int,
    w_n: int,
    bias: int,
    out: int,
    P: int,
    S: int,
    R: int,
    N: int,
    K: int,
    key: int,
    sample_ids: int,
    pass_ids: int,
    keep: int,
    bits: int,
    scale: Any,
) -> None:
    """Take and do tasks until none is left. Addresses, strides in elements; ``out`` is contiguous."""
    size = bytes_of(scale)
    zero = scale - scale
    key0, key1 = load(key, 0, 0), load(key, 1, 0)
    groups, rows = P * S, P * S * R
    n_words = (N + WORD - 1) // WORD
    word_tasks = (n_words + task_words - 1) // task_words
    tasks = (rows + task_rows - 1) // task_rows * word_tasks
    # Scratch: row addresses, word offsets, group of each row, ids | words | weights | x | sums
    table, group_of = scratch, scratch + ROWS * 8
    row_at = group_of + TASK_ROWS * 8
    ids = row_at + TASK_ROWS * 8
    words = scratch + _TABLES
    weights = words + _WORDS_BYTES
    inputs = weights + DEPTH * WORD * size
    sums = inputs + TASK_ROWS * DEPTH * size

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        row0 = task // word_tasks * task_rows
        count = min(task_rows, rows - row0)
        blocks = (count + ROWS - 1) // ROWS
        word0 = task % word_tasks * task_words
        word_count = min(task_words, n_words - word0)
        group0 = row_groups(group_of, row0, blocks * ROWS, R)
        held = (blocks * ROWS + GROUPS) // GROUPS * GROUPS + GROUPS
        group_ids(ids, group0, held, groups, S, sample_ids, pass_ids)
        row_offsets(row_at, row0, count, S, R, x_p, x_s, x_r)
        for i in range(count, blocks * ROWS):
            store(row_at, i, load(row_at, 0, 0))
        for i in range(word_count * blocks * ROWS * WORD):
            store(sums, i, zero)

        for k0 in range(0, K, DEPTH):
            depth = min(DEPTH, K - k0)
            for block in range(blocks):
                for r in range(ROWS):
                    offset = load(row_at, block * ROWS + r, 0) + k0
                    store(table, r, x + offset * size)
                interleave(inputs + block * DEPTH * ROWS * size, ROWS, table, depth, scale)
            for j in range(word_count):
                for part in range(0, WORD, ROWS):
                    for r in range(ROWS):
                        n = min((word0 + j) * WORD + part + r, N - 1)
                        store(table, r, w + (n * w_n + k0) * size)
                    interleave(weights + part * size, WORD, table, depth, scale)
                low, high = 0, 0
                for block in range(blocks):
                    first = load(group_of, block * ROWS, 0)
                    last = load(group_of, min(block * ROWS + ROWS, count) - 1, 0)
                    if last >= high:
                        batches = (last - first) // GROUPS + 1
                        low, high = first, first + batches * GROUPS
                        fill_dropped(
                            words,
                            DEPTH * 4,
                            0,
                            batches,
                            1,
                            (depth + INPUTS - 1) // INPUTS,
                            key0,
                            key1,
                            k0 // 4,
                            word0 + j,
                            ids + low * 8,
                            ids + (held + low) * 8,
                            keep,
                            bits,
                        )
                    sum_over_inputs(
                        sums + (j * blocks + block) * ROWS * WORD * size,
                        weights,
                        words - low * DEPTH * 4,
                        DEPTH * 4,
                        group_of + block * ROWS * 8,
                        inputs + block * DEPTH * ROWS * size,
                        depth,
                        scale,
                    )

        for j in range(word_count):
            n0 = (word0 + j) * WORD
            for i in range(count):
                target = out + ((row0 + i) * N + n0) * size
                source = sums + (j * blocks * ROWS + i) * WORD * size
                for n in range(min(WORD, N - n0)):
                    value = load(source, n, scale) * scale
                    if bias != 0:
                        value += load(bias, n0 + n, scale)
                    store(target, n, value)
