"""Per-row DropConnect linear on the CPU: dx[g, r, k] = s · Σ_n D W[n, k] gy[g, r, n].

Task        up to 128 rows × 256 inputs; taken from a shared counter
Blocking    128 outputs at a time: their gy, interleaved by 8 rows, then for every 32 inputs the
            weights [n, 32], the words of 8 rows, and 4 × 32 sums in registers
Mask        made once for each (group, 4 words, 32 inputs), in a 4 KB buffer, and used from there
Order       n ascending, 32 to a chain, the chains added up in order; the same for any tasks
Scratch     230 KB per thread in float32, whatever G, N and K are
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, load, next_task, store
from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_outputs
from bayes_dc.ops.linear._cpu_tile import (
    GROUPS_AT,
    PASSES_AT,
    SAMPLES_AT,
    TABLE_BYTES,
    TASK_ROWS,
    copy_tiles,
    pack_rows,
    row_groups,
    row_offsets,
    write_tile,
)
from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, fill_dropped

TASK_BLOCKS = 8
"""Blocks of 32 inputs of one task."""
DEPTH = 128
"""Outputs of one pass over the rows."""

_GROUP_BYTES = INPUTS * 4
_WORD_BYTES = ROWS * _GROUP_BYTES
_WORDS_BYTES = DEPTH // WORD * _WORD_BYTES
_TILE = ROWS * INPUTS
_PACKED = ROWS * DEPTH
_HALF = ROWS // 2


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    elements = DEPTH * INPUTS + TASK_ROWS * DEPTH + TASK_BLOCKS * TASK_ROWS * INPUTS
    return TABLE_BYTES + DEPTH * 8 + _WORDS_BYTES + elements * size


def grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and blocks of 32 columns that tasks cut up, for the shape (P, S, R, N, K)."""
    P, S, R, _, K = shape
    return P * S * R, -(-K // INPUTS)


@inlined
def _add_block(
    sums: int, weights: int, words: int, groups: int, packed: int, depth: int, scale: Any
) -> None:
    """Add ``depth`` outputs to the 8 × 32 sums of a block of rows."""
    size = bytes_of(scale)
    for row in range(0, ROWS, _HALF):
        for n in range(0, depth, WORD):
            sum_over_outputs(
                sums + row * INPUTS * size,
                weights + n * INPUTS * size,
                words + n // WORD * _WORD_BYTES,
                _GROUP_BYTES,
                groups + row * 8,
                packed + (n * ROWS + row) * size,
                min(WORD, depth - n),
                scale,
            )


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
    """Take and do tasks until none is left; addresses, strides in elements, ``out`` contiguous."""
    size = bytes_of(scale)
    rows = P * S * R
    k_blocks = (K + INPUTS - 1) // INPUTS
    splits = (k_blocks + task_blocks - 1) // task_blocks
    tasks = (rows + task_rows - 1) // task_rows * splits
    w_offsets = scratch + TABLE_BYTES
    words = w_offsets + DEPTH * 8
    weights = words + _WORDS_BYTES
    outputs = weights + DEPTH * INPUTS * size
    sums = outputs + TASK_ROWS * DEPTH * size
    for n in range(DEPTH):
        store(w_offsets, n, n * w_n)

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        row0 = task // splits * task_rows
        count = min(task_rows, rows - row0)
        blocks = (count + ROWS - 1) // ROWS
        k_block0 = task % splits * task_blocks
        k_count = min(task_blocks, k_blocks - k_block0)
        row_groups(scratch, row0, count, P * S, S, R, sample_ids, pass_ids)
        row_offsets(scratch, row0, count, S, R, gy_p, gy_s, gy_r)
        clear(sums, k_count * blocks * _TILE, scale)

        for n0 in range(0, N, DEPTH):
            depth = min(DEPTH, N - n0)
            pack_rows(outputs, _PACKED, scratch, gy + n0 * size, count, depth, scale)
            for j in range(k_count):
                k0 = (k_block0 + j) * INPUTS
                source = w + (n0 * w_n + k0) * size
                copy_tiles(weights, 0, source, w_offsets, depth, 1, K - k0, scale)
                low, high = 0, 0
                for block in range(blocks):
                    block_groups = scratch + GROUPS_AT + block * ROWS * 8
                    last = load(block_groups, min(ROWS, count - block * ROWS) - 1, 0)
                    if last >= high:
                        low = load(block_groups, 0, 0)
                        batches = (last - low) // GROUPS + 1
                        high = low + batches * GROUPS
                        fill_dropped(
                            words,
                            _GROUP_BYTES,
                            _WORD_BYTES,
                            batches,
                            (depth + WORD - 1) // WORD,
                            1,
                            key,
                            k0 // INPUTS * CALLS,
                            n0 // WORD,
                            scratch + SAMPLES_AT + low * 8,
                            scratch + PASSES_AT + low * 8,
                            keep,
                            bits,
                        )
                    _add_block(
                        sums + (j * blocks + block) * _TILE * size,
                        weights,
                        words - low * _GROUP_BYTES,
                        block_groups,
                        outputs + block * _PACKED * size,
                        depth,
                        scale,
                    )

        for j in range(k_count):
            k0 = (k_block0 + j) * INPUTS
            target = out + (row0 * K + k0) * size
            source = sums + j * blocks * _TILE * size
            write_tile(target, K, source, count, min(INPUTS, K - k0), 0, 0, 0, 0, scale)
