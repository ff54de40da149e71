"""Per-row DropConnect linear on the CPU, gradient of x: dx[g, r, k] = s · Σ_n D W[n, k] gy[g, r, n].

Task        up to 128 rows × 256 inputs; tasks are taken from a shared counter.
Blocking    128 outputs at a time: their gy, interleaved by 8 rows, then for every 32 inputs the weights
            [n, 32], the words of 8 rows, and 4 × 32 sums in registers.
Mask        made once for each (group, 4 words, 32 inputs) in a 4 KB buffer, used from there.
Order       one chain of multiply-adds per input, n ascending, whatever the blocks and threads.
Scratch     280 KB per thread in float32, whatever G, N and K are.
"""

from typing import Any

from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_outputs
from bayes_dc.ops.linear._cpu_tile import (
    bytes_of,
    copy_tiles,
    group_ids,
    interleave,
    load,
    next_task,
    row_groups,
    row_offsets,
    store,
)
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, compiled, fill_dropped

TASK_ROWS = 128
TASK_BLOCKS = 8
DEPTH = 128
"""Outputs of one pass over the rows."""

_TABLES = 8192
_WORD_BYTES = ROWS * INPUTS * 4
_WORDS_BYTES = DEPTH // WORD * _WORD_BYTES


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    per_task = TASK_ROWS * DEPTH + TASK_BLOCKS * TASK_ROWS * INPUTS + DEPTH * INPUTS
    return _TABLES + _WORDS_BYTES + per_task * size


@compiled
def run(
    scratch: int,
    counter: int,
    task_rows: int,
    task_blocks: int,
    gy: int,
    gy_p: int,
    gy_s: int,
    gy_r: int,
    w: int,
    w_n: int,
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
    k_blocks = (K + INPUTS - 1) // INPUTS
    block_tasks = (k_blocks + task_blocks - 1) // task_blocks
    tasks = (rows + task_rows - 1) // task_rows * block_tasks
    table, group_of = scratch, scratch + ROWS * 8
    row_at = group_of + TASK_ROWS * 8
    w_offsets = row_at + TASK_ROWS * 8
    ids = w_offsets + DEPTH * 8
    words = scratch + _TABLES
    weights = words + _WORDS_BYTES
    outputs = weights + DEPTH * INPUTS * size
    sums = outputs + TASK_ROWS * DEPTH * size
    for n in range(DEPTH):
        store(w_offsets, n, n * w_n)

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        row0 = task // block_tasks * task_rows
        count = min(task_rows, rows - row0)
        blocks = (count + ROWS - 1) // ROWS
        k_block0 = task % block_tasks * task_blocks
        k_count = min(task_blocks, k_blocks - k_block0)
        group0 = row_groups(group_of, row0, blocks * ROWS, R)
        held = (blocks * ROWS + GROUPS) // GROUPS * GROUPS + GROUPS
        group_ids(ids, group0, held, groups, S, sample_ids, pass_ids)
        row_offsets(row_at, row0, count, S, R, gy_p, gy_s, gy_r)
        for i in range(count, blocks * ROWS):
            store(row_at, i, load(row_at, 0, 0))
        for i in range(k_count * blocks * ROWS * INPUTS):
            store(sums, i, zero)

        for n0 in range(0, N, DEPTH):
            depth = min(DEPTH, N - n0)
            n_words = (depth + WORD - 1) // WORD
            for block in range(blocks):
                for r in range(ROWS):
                    offset = load(row_at, block * ROWS + r, 0) + n0
                    store(table, r, gy + offset * size)
                interleave(outputs + block * DEPTH * ROWS * size, ROWS, table, depth, scale)
            for j in range(k_count):
                k0 = (k_block0 + j) * INPUTS
                source = w + (n0 * w_n + k0) * size
                copy_tiles(weights, 0, source, w_offsets, depth, 1, K - k0, scale)
                low, high = 0, 0
                for block in range(blocks):
                    first = load(group_of, block * ROWS, 0)
                    last = load(group_of, min(block * ROWS + ROWS, count) - 1, 0)
                    if last >= high:
                        batches = (last - first) // GROUPS + 1
                        low, high = first, first + batches * GROUPS
                        fill_dropped(
                            words,
                            INPUTS * 4,
                            _WORD_BYTES,
                            batches,
                            n_words,
                            1,
                            key0,
                            key1,
                            k0 // INPUTS * CALLS,
                            n0 // WORD,
                            ids + low * 8,
                            ids + (held + low) * 8,
                            keep,
                            bits,
                        )
                    for half in range(2):
                        row = half * ROWS // 2
                        for i in range(n_words):
                            sum_over_outputs(
                                sums + ((j * blocks + block) * ROWS + row) * INPUTS * size,
                                weights + i * WORD * INPUTS * size,
                                words + i * _WORD_BYTES - low * INPUTS * 4,
                                INPUTS * 4,
                                group_of + (block * ROWS + row) * 8,
                                outputs + ((block * DEPTH + i * WORD) * ROWS + row) * size,
                                min(WORD, depth - i * WORD),
                                scale,
                            )

        for j in range(k_count):
            k0 = (k_block0 + j) * INPUTS
            for i in range(count):
                target = out + ((row0 + i) * K + k0) * size
                source = sums + (j * blocks * ROWS + i) * INPUTS * size
                for k in range(min(INPUTS, K - k0)):
                    store(target, k, load(source, k, scale) * scale)
