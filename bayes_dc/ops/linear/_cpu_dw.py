"""Per-row DropConnect linear on the CPU: dw[n, k] = s · Σ_{g, r} D gy[g, r, n] x[g, r, k].

Task        the 32 outputs of a word × up to 256 inputs, all rows; taken from a shared counter
Blocking    64 rows at a time: their gy [row, 32], then for every 32 inputs their x [row, 32], the
            words of their groups, and 8 × 32 sums in registers
Mask        made once for each (64 rows, word, 32 inputs), in a 9 KB buffer, and used from there
Order       rows ascending, 64 to a chain, the chains added up in order; the same for any tasks
Scratch     120 KB per thread in float32, whatever G, N and K are
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, next_task
from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_rows
from bayes_dc.ops.linear._cpu_tile import (
    GROUPS_AT,
    OFFSETS_AT,
    PASSES_AT,
    SAMPLES_AT,
    TABLE_BYTES,
    copy_tiles,
    row_groups,
    row_offsets,
    write_tile,
)
from bayes_dc.rng.numba_jit import compiled
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, fill_dropped

TASK_ROWS = ROWS
"""Rows of the grid of tasks: 8 stand for one word of outputs."""
TASK_BLOCKS = 8
"""Blocks of 32 inputs of one task."""
DEPTH = 64
"""Rows of one pass over the inputs."""

_GROUP_BYTES = INPUTS * 4
_WORDS_BYTES = (DEPTH + GROUPS) * _GROUP_BYTES
_TILE = WORD * INPUTS


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    elements = DEPTH * WORD + TASK_BLOCKS * (DEPTH * INPUTS + _TILE)
    return TABLE_BYTES + _WORDS_BYTES + elements * size


def grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and blocks of 32 columns that tasks cut up, for the shape (P, S, R, N, K)."""
    *_, N, K = shape
    return -(-N // WORD) * TASK_ROWS, -(-K // INPUTS)


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
    """Take and do tasks until none is left; addresses, strides in elements, ``out`` contiguous."""
    size = bytes_of(scale)
    rows = P * S * R
    k_blocks = (K + INPUTS - 1) // INPUTS
    splits = (k_blocks + task_blocks - 1) // task_blocks
    tasks = (N + WORD - 1) // WORD * splits
    offsets = scratch + OFFSETS_AT
    words = scratch + TABLE_BYTES
    outputs = words + _WORDS_BYTES
    inputs = outputs + DEPTH * WORD * size
    sums = inputs + TASK_BLOCKS * DEPTH * INPUTS * size

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        word = task // splits
        n0 = word * WORD
        n_count = min(WORD, N - n0)
        k_start = task % splits * task_blocks * INPUTS
        k_count = min(task_blocks, k_blocks - k_start // INPUTS)
        clear(sums, k_count * _TILE, scale)

        for row0 in range(0, rows, DEPTH):
            depth = min(DEPTH, rows - row0)
            last = row_groups(scratch, row0, depth, P * S, S, R, sample_ids, pass_ids)
            row_offsets(scratch, row0, depth, S, R, gy_p, gy_s, gy_r)
            copy_tiles(outputs, 0, gy + n0 * size, offsets, depth, 1, n_count, scale)
            row_offsets(scratch, row0, depth, S, R, x_p, x_s, x_r)
            source = x + k_start * size
            step = DEPTH * INPUTS
            copy_tiles(inputs, step, source, offsets, depth, k_count, K - k_start, scale)
            for j in range(k_count):
                fill_dropped(
                    words,
                    _GROUP_BYTES,
                    0,
                    last // GROUPS + 1,
                    1,
                    1,
                    key,
                    (k_start // INPUTS + j) * CALLS,
                    word,
                    scratch + SAMPLES_AT,
                    scratch + PASSES_AT,
                    keep,
                    bits,
                )
                for n in range(0, n_count, ROWS):
                    sum_over_rows(
                        sums + (j * WORD + n) * INPUTS * size,
                        outputs,
                        inputs + j * DEPTH * INPUTS * size,
                        words,
                        _GROUP_BYTES,
                        scratch + GROUPS_AT,
                        n,
                        depth,
                        scale,
                    )

        for j in range(k_count):
            k0 = k_start + j * INPUTS
            target = out + (n0 * K + k0) * size
            source = sums + j * _TILE * size
            write_tile(target, K, source, n_count, min(INPUTS, K - k0), 0, 0, 0, 0, scale)
