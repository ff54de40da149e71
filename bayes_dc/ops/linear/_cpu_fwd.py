"""Per-row DropConnect linear on the CPU: y[g, r, n] = s · Σ_k D W[n, k] x[g, r, k] + b[n].

Task        up to 128 rows × 256 outputs; taken from a shared counter
Blocking    128 inputs at a time: their x, interleaved by 8 rows, then for every word of 32 outputs
            the weights [k, 32], the words of 8 rows, and 8 × 32 sums in registers
Mask        made once for each (group, word, 128 inputs), in a 4 KB buffer, and used from there
Order       k ascending, 128 to a chain, the chains added up in order; the same for any tasks
Scratch     230 KB per thread in float32, whatever G, N and K are
"""

from typing import Any

from bayes_dc.ops._cpu_emit import bytes_of, clear, load, next_task, store
from bayes_dc.ops._cpu_interleave import interleave
from bayes_dc.ops.linear._cpu_ir import ROWS, WORD, sum_over_inputs
from bayes_dc.ops.linear._cpu_tile import (
    GROUPS_AT,
    PASSES_AT,
    SAMPLES_AT,
    TABLE_BYTES,
    TASK_ROWS,
    pack_rows,
    row_groups,
    row_offsets,
    write_tile,
)
from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.numba_rng import CALLS, GROUPS, INPUTS, fill_dropped

TASK_BLOCKS = 8
"""Words of outputs of one task."""
DEPTH = 128
"""Inputs of one pass over the rows."""

_GROUP_BYTES = DEPTH * 4
_WORDS_BYTES = ROWS * _GROUP_BYTES
_TILE = ROWS * WORD
_PACKED = ROWS * DEPTH


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    elements = DEPTH * WORD + TASK_ROWS * DEPTH + TASK_BLOCKS * TASK_ROWS * WORD
    return TABLE_BYTES + _WORDS_BYTES + elements * size


def grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and blocks of 32 columns that tasks cut up, for the shape (P, S, R, N, K)."""
    P, S, R, N, _ = shape
    return P * S * R, -(-N // WORD)


@inlined
def _pack_weights(
    dst: int, tables: int, w: int, w_n: int, n0: int, N: int, depth: int, tag: Any
) -> None:
    """Weights [depth, 32] of the 32 outputs from n0 on; the last output repeats."""
    size = bytes_of(tag)
    for part in range(0, WORD, ROWS):
        for i in range(ROWS):
            store(tables, i, w + min(n0 + part + i, N - 1) * w_n * size)
        interleave(dst + part * size, WORD, tables, depth, tag)


@compiled
def run(
    scratch: int,
    counter: int,
    task_rows: int,
    task_blocks: int,
    x: int,
    x_p: int,
    x_s: int,
    x_r: int,
    w: int,
    w_n: int,
    bias: int,
    factors: int,
    summands: int,
    relu: int,
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
    n_words = (N + WORD - 1) // WORD
    splits = (n_words + task_blocks - 1) // task_blocks
    tasks = (rows + task_rows - 1) // task_rows * splits
    words = scratch + TABLE_BYTES
    weights = words + _WORDS_BYTES
    inputs = weights + DEPTH * WORD * size
    sums = inputs + TASK_ROWS * DEPTH * size

    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        row0 = task // splits * task_rows
        count = min(task_rows, rows - row0)
        blocks = (count + ROWS - 1) // ROWS
        word0 = task % splits * task_blocks
        word_count = min(task_blocks, n_words - word0)
        row_groups(scratch, row0, count, P * S, S, R, sample_ids, pass_ids)
        row_offsets(scratch, row0, count, S, R, x_p, x_s, x_r)
        clear(sums, word_count * blocks * _TILE, scale)

        for k0 in range(0, K, DEPTH):
            depth = min(DEPTH, K - k0)
            pack_rows(inputs, _PACKED, scratch, x + k0 * size, count, depth, scale)
            for j in range(word_count):
                n0 = (word0 + j) * WORD
                _pack_weights(weights, scratch, w + k0 * size, w_n, n0, N, depth, scale)
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
                            0,
                            batches,
                            1,
                            (depth + INPUTS - 1) // INPUTS,
                            key,
                            k0 // INPUTS * CALLS,
                            word0 + j,
                            scratch + SAMPLES_AT + low * 8,
                            scratch + PASSES_AT + low * 8,
                            keep,
                            bits,
                        )
                    sum_over_inputs(
                        sums + (j * blocks + block) * _TILE * size,
                        weights,
                        words - low * _GROUP_BYTES,
                        _GROUP_BYTES,
                        block_groups,
                        inputs + block * _PACKED * size,
                        depth,
                        scale,
                    )

        for j in range(word_count):
            n0 = (word0 + j) * WORD
            target = out + (row0 * N + n0) * size
            source = sums + j * blocks * _TILE * size
            write_tile(
                target,
                N,
                source,
                count,
                min(WORD, N - n0),
                bias + n0 * size if bias != 0 else 0,
                factors + n0 * size if factors != 0 else 0,
                summands + n0 * size if summands != 0 else 0,
                relu,
                scale,
            )
