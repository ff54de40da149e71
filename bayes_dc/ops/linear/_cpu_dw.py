"""Per-row DropConnect linear on the CPU, gradient of W: dw[n, k] = s · Σ_{g,r} D gy[g, r, n] x[g, r, k].

Task        the 32 outputs of a word × up to 256 inputs, all rows; tasks are taken from a shared counter.
Blocking    64 rows at a time: their gy [row, 32], then for every 32 inputs their x [row, 32], the words
            of their groups, and 8 × 32 sums in registers.
Mask        made once for each (64 rows, word, 32 inputs) in a 9 KB buffer, used from there.
Order       one chain of multiply-adds per weight, rows ascending, whatever the tasks and threads.
Scratch     70 KB per thread in float32, whatever G, N and K are.
"""

from typing import Any

from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_rows
from bayes_dc.ops.linear._cpu_tile import (
    bytes_of,
    copy_tiles,
    group_ids,
    load,
    next_task,
    row_groups,
    row_offsets,
    store,
)
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, compiled, fill_dropped

TASK_BLOCKS = 8
DEPTH = 64
"""Rows of one pass over the inputs."""

_TABLES = 4096
_WORDS_BYTES = (DEPTH + GROUPS) * INPUTS * 4


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return _TABLES + _WORDS_BYTES + (DEPTH + TASK_BLOCKS * (DEPTH + WORD)) * INPUTS * size


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
    x: int,
    x_p: int,
    x_s: int,
    x_r: int,
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
    tasks = (N + WORD - 1) // WORD * block_tasks
    group_of, offsets = scratch, scratch + DEPTH * 8
    ids = offsets + DEPTH * 8
    words = scratch + _TABLES
    outputs = words + _WORDS_BYTES
    inputs = outputs + DEPTH * WORD * size
    sums = inputs + TASK_BLOCKS * DEPTH * INPUTS * size

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        word = task // block_tasks
        n0 = word * WORD
        n_count = min(WORD, N - n0)
        k_block0 = task % block_tasks * task_blocks
        k_count = min(task_blocks, k_blocks - k_block0)
        for i in range(k_count * WORD * INPUTS):
            store(sums, i, zero)

        for row0 in range(0, rows, DEPTH):
            depth = min(DEPTH, rows - row0)
            group0 = row_groups(group_of, row0, depth, R)
            batches = load(group_of, depth - 1, 0) // GROUPS + 1
            held = batches * GROUPS
            group_ids(ids, group0, held, groups, S, sample_ids, pass_ids)
            row_offsets(offsets, row0, depth, S, R, gy_p, gy_s, gy_r)
            copy_tiles(outputs, 0, gy + n0 * size, offsets, depth, 1, n_count, scale)
            row_offsets(offsets, row0, depth, S, R, x_p, x_s, x_r)
            copy_tiles(
                inputs,
                DEPTH * INPUTS,
                x + k_block0 * INPUTS * size,
                offsets,
                depth,
                k_count,
                K - k_block0 * INPUTS,
                scale,
            )
            for j in range(k_count):
                k0 = (k_block0 + j) * INPUTS
                fill_dropped(
                    words,
                    INPUTS * 4,
                    0,
                    batches,
                    1,
                    1,
                    key0,
                    key1,
                    k0 // INPUTS * CALLS,
                    word,
                    ids,
                    ids + held * 8,
                    keep,
                    bits,
                )
                for n in range(0, n_count, ROWS):
                    sum_over_rows(
                        sums + (j * WORD + n) * INPUTS * size,
                        outputs,
                        inputs + j * DEPTH * INPUTS * size,
                        words,
                        INPUTS * 4,
                        group_of,
                        n,
                        depth,
                        scale,
                    )

        for j in range(k_count):
            k0 = (k_block0 + j) * INPUTS
            for n in range(n_count):
                target = out + ((n0 + n) * K + k0) * size
                source = sums + (j * WORD + n) * INPUTS * size
                for k in range(min(INPUTS, K - k0)):
                    store(target, k, load(source, k, scale) * scale)
