"""Draws and their gradient on the CPU, and the moments they need.

Task        up to 32 rows (× 256 outputs of ``linear``); taken from a shared counter
Order       k ascending, 128 to a chain, the chains added up in order; the same for any tasks
Scratch     72 KB per thread in float32, whatever the shape
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types

from bayes_dc.ops._cpu_emit import next_task
from bayes_dc.ops.gaussian._cpu_products import OUTPUTS, ROWS, add_products
from bayes_dc.rng.numba_jit import compiled, inlined, primitive
from bayes_dc.rng.numba_normals import QUADS, fill_normals

TASK_ROWS = 32
"""Most rows of one task."""

BLOCK = 4 * QUADS
"""Outputs whose normals are made together."""

_WORDS = BLOCK // OUTPUTS
_DEPTH = 128

_WORDS_AT = 8 * BLOCK  # behind the normals and what they are made from
_MEANS_AT = _WORDS_AT + 8 * BLOCK
_SUMS = _WORDS * TASK_ROWS * OUTPUTS


def scratch_bytes(size: int) -> int:
    """Scratch memory of one thread for elements of ``size`` bytes."""
    return _MEANS_AT + 2 * _SUMS * size


@primitive
def _pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@inlined
def _room_for_normals(scratch: int) -> Any:
    """Arrays that normals of a block are made in: z, and two that are overwritten."""
    z = carray(_pointer(scratch), BLOCK, np.float32)
    parts = carray(_pointer(scratch + 4 * BLOCK), (4, QUADS), np.float32)
    words = carray(_pointer(scratch + _WORDS_AT), (4, QUADS), np.uint64)
    return z, parts, words


@inlined
def _moments(
    mean: Any, var: Any, x: Any, w: Any, first: int, rows: int, word: int, words: int, tag: Any
) -> None:
    """Sums over k of ``rows`` rows and ``words`` · 32 outputs; mean and var [_WORDS, rows, 32]."""
    size = x.itemsize
    K = x.shape[1]
    last = first + rows - 1
    for j in range(words):
        mean[j] = 0
        var[j] = 0
        for k in range(0, K, _DEPTH):
            for r in range(0, rows, ROWS):
                row = first + r
                add_products(
                    mean.ctypes.data + (j * TASK_ROWS + r) * OUTPUTS * size,
                    var.ctypes.data + (j * TASK_ROWS + r) * OUTPUTS * size,
                    x.ctypes.data + (row * K + k) * size,
                    x.ctypes.data + (min(row + 1, last) * K + k) * size,  # the last row repeats
                    x.ctypes.data + (min(row + 2, last) * K + k) * size,
                    x.ctypes.data + (min(row + 3, last) * K + k) * size,
                    w.ctypes.data + ((word + j) * K + k) * OUTPUTS * size,
                    min(_DEPTH, K - k),
                    tag,
                )


@compiled
def _row_normals(
    z: Any,
    parts: Any,
    words: Any,
    key: Any,
    row: int,
    R: int,
    n0: int,
    count: int,
    samples: Any,
    passes: Any,
) -> None:
    """Normals of the outputs n0 … n0 + count − 1 of a row, into z."""
    group = row // R
    sample, step = samples[group % samples.size], passes[group // samples.size]
    quads = (count + 3) // 4
    fill_normals(z, parts, words, key, row - group * R, n0 // 4, sample, step, quads)


@compiled
def linear(
    scratch: int,
    counter: int,
    task_rows: int,
    x: Any,
    w: Any,
    bias: Any,
    out: Any,
    mean_scale: Any,
    var_scale: Any,
    key: Any,
    samples: Any,
    passes: Any,
    R: int,
) -> None:
    """Draws [P · S · R, N] from x [P' · S · R, K], P' = 1 or P; w [cdiv(N, 32), K, 32]; bias."""
    moments, N = x.shape[0], out.shape[1]
    splits = (N + BLOCK - 1) // BLOCK
    tasks = (moments + task_rows - 1) // task_rows * splits
    shape = (_WORDS, TASK_ROWS, OUTPUTS)
    mean = carray(_pointer(scratch + _MEANS_AT), shape, x.dtype)
    var = carray(_pointer(scratch + _MEANS_AT + _SUMS * x.itemsize), shape, x.dtype)
    z, parts, words = _room_for_normals(scratch)
    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        first = task // splits * task_rows
        rows = min(task_rows, moments - first)
        n0 = task % splits * BLOCK
        count = min(BLOCK, N - n0)
        used = (count + OUTPUTS - 1) // OUTPUTS
        _moments(mean, var, x, w, first, rows, n0 // OUTPUTS, used, mean_scale)
        for i in range(rows):
            for j in range(used):
                at = n0 + j * OUTPUTS
                for n in range(min(OUTPUTS, N - at)):
                    mean[j, i, n] = mean[j, i, n] * mean_scale + bias[at + n]
                    var[j, i, n] = np.sqrt(var[j, i, n] * var_scale)
            for row in range(first + i, out.shape[0], moments):
                _row_normals(z, parts, words, key, row, R, n0, count, samples, passes)
                for j in range(used):
                    at = n0 + j * OUTPUTS
                    for n in range(min(OUTPUTS, N - at)):
                        out[row, at + n] = mean[j, i, n] + var[j, i, n] * z[j * OUTPUTS + n]


@compiled
def draw(
    scratch: int,
    counter: int,
    task_rows: int,
    mean: Any,
    var: Any,
    out: Any,
    zero: Any,
    key: Any,
    samples: Any,
    passes: Any,
    R: int,
) -> None:
    """Draws [P · S · R, N] from mean and var [P' · S · R, N], P' = 1 or P."""
    moments, N = mean.shape[0], out.shape[1]
    tasks = (moments + task_rows - 1) // task_rows
    z, parts, words = _room_for_normals(scratch)
    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        for i in range(task * task_rows, min((task + 1) * task_rows, moments)):
            for row in range(i, out.shape[0], moments):
                for n0 in range(0, N, BLOCK):
                    count = min(BLOCK, N - n0)
                    _row_normals(z, parts, words, key, row, R, n0, count, samples, passes)
                    for n in range(count):
                        value = var[i, n0 + n]
                        sigma = np.sqrt(zero if value < zero else value)
                        out[row, n0 + n] = mean[i, n0 + n] + sigma * z[n]


@compiled
def draw_dvar(
    scratch: int,
    counter: int,
    task_rows: int,
    gy: Any,
    var: Any,
    out: Any,
    half: Any,
    key: Any,
    samples: Any,
    passes: Any,
    R: int,
) -> None:
    """Gradients [P' · S · R, N]: Σ gy z / (2 σ) over passes that share a moment, 0 where σ is 0."""
    moments, N = var.shape[0], out.shape[1]
    tasks = (moments + task_rows - 1) // task_rows
    z, parts, words = _room_for_normals(scratch)
    while True:
        task = next_task(counter)
        if task >= tasks:
            break
        for i in range(task * task_rows, min((task + 1) * task_rows, moments)):
            out[i] = 0
            for row in range(i, gy.shape[0], moments):
                for n0 in range(0, N, BLOCK):
                    count = min(BLOCK, N - n0)
                    _row_normals(z, parts, words, key, row, R, n0, count, samples, passes)
                    for n in range(count):
                        out[i, n0 + n] += gy[row, n0 + n] * z[n]
            for n in range(N):
                value = var[i, n]
                out[i, n] = out[i, n] * half / np.sqrt(value) if value > 0 else value - value
