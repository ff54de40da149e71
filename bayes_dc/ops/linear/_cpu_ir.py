"""Inner loops of the CPU kernels as LLVM vectors, over scratch memory in fixed layouts.

On AVX-512 a masked multiply-add is a test and a fused multiply-add, two instructions for 16
weights.

Addresses and ``tag`` as in ``ops/_cpu_emit.py``; scratch addresses are multiples of 64. ``words``
are those of dropped weights; the words of row r lie ``step · groups[r]`` bytes behind, with
``groups`` a table of int64. A weight is dropped by a select, never by a product with 0, so that
what it holds does not matter. ``fmuladd`` is fused where the machine can. A call sums in ascending
order from 0 and then adds to what it finds: short chains round less than a long one, and nothing
but the place in the sum decides where they end.
"""

from typing import Any

from llvmlite import ir

from bayes_dc.ops._cpu_emit import BITS, HALVES, I32, LANES, Emitter, const, generator
from bayes_dc.rng.numba_jit import primitive
from bayes_dc.rng.numba_rng import INPUTS

ROWS = 8
"""Rows interleaved in one block of activations."""
WORD = 32
"""Outputs of one mask word."""


def _word_bits(emit: Emitter, address: ir.Value) -> list[ir.Value]:
    """The bits of 32 outputs in 32 lanes.

    The top bit of an address is 0, which LLVM does not know. Were these constants, it would move
    each word to a mask register and invert it there, which takes longer than to test the word.
    """
    builder = emit.builder
    zero = builder.trunc(builder.lshr(address, const(63)), I32)
    one = emit.splat(builder.shl(ir.Constant(I32, 1), zero))
    lanes = [[LANES * half + lane for lane in range(LANES)] for half in HALVES]
    return [builder.shl(one, ir.Constant(BITS, shifts)) for shifts in lanes]


def _emit_over_inputs(
    emit: Emitter,
    sums: ir.Value,
    weights: ir.Value,
    words: ir.Value,
    step: ir.Value,
    groups: ir.Value,
    x: ir.Value,
    count: ir.Value,
) -> None:
    """Code of ``sum_over_inputs``."""
    rows = [emit.row_words(words, step, groups, r) for r in range(ROWS)]
    bits = _word_bits(emit, words)

    def body(k: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        w = emit.vectors(emit.plus(weights, k, WORD * emit.size), 2)
        values = emit.plus(x, k, ROWS * emit.size)
        results = []
        for r in range(ROWS):
            value = emit.broadcast(emit.plus(values, r, emit.size))
            word = emit.splat(emit.read(emit.plus(rows[r], k, 4), I32))
            results += [emit.add_kept(held[2 * r + h], word, bits[h], value, w[h]) for h in HALVES]
        return results

    emit.add_to(sums, emit.loop(count, emit.zeros(2 * ROWS), body))


def _emit_over_outputs(
    emit: Emitter,
    sums: ir.Value,
    weights: ir.Value,
    words: ir.Value,
    step: ir.Value,
    groups: ir.Value,
    gy: ir.Value,
    count: ir.Value,
) -> None:
    """Code of ``sum_over_outputs``."""
    rows = range(ROWS // 2)
    masks = [emit.words(emit.row_words(words, step, groups, r)) for r in rows]

    def body(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        bit, *held = carried
        w = emit.vectors(emit.plus(weights, n, INPUTS * emit.size), 2)
        values = emit.plus(gy, n, ROWS * emit.size)
        results = [emit.builder.add(bit, bit)]
        for r in rows:
            value = emit.broadcast(emit.plus(values, r, emit.size))
            results += [
                emit.add_kept(held[2 * r + h], masks[r][h], bit, value, w[h]) for h in HALVES
            ]
        return results

    first = ir.Constant(BITS, [1] * LANES)
    results = emit.loop(count, [first, *emit.zeros(2 * len(rows))], body)
    emit.add_to(sums, results[1:])


def _emit_over_rows(
    emit: Emitter,
    sums: ir.Value,
    gy: ir.Value,
    x: ir.Value,
    words: ir.Value,
    step: ir.Value,
    groups: ir.Value,
    first: ir.Value,
    count: ir.Value,
) -> None:
    """Code of ``sum_over_rows``."""
    builder = emit.builder
    lowest = builder.shl(ir.Constant(I32, 1), builder.trunc(first, I32))
    bits = [emit.splat(builder.shl(lowest, ir.Constant(I32, n))) for n in range(ROWS)]
    gy = emit.plus(gy, first, emit.size)

    def body(r: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        masks = emit.words(emit.row_words(words, step, groups, r))
        x_row = emit.vectors(emit.plus(x, r, INPUTS * emit.size), 2)
        gy_row = emit.plus(gy, r, WORD * emit.size)
        results = []
        for n in range(ROWS):
            value = emit.broadcast(emit.plus(gy_row, n, emit.size))
            results += [
                emit.add_kept(held[2 * n + h], masks[h], bits[n], x_row[h], value) for h in HALVES
            ]
        return results

    emit.add_to(sums, emit.loop(count, emit.zeros(2 * ROWS), body))


# fmt: off
@primitive
def sum_over_inputs(
    typingctx: Any, sums: Any, weights: Any, words: Any, step: Any, groups: Any, x: Any,
    count: Any, tag: Any,
) -> Any:
    """Add Σ_k D x[k, r] w[k, n] to sums[r, n]; sums [8, 32], x [count, 8], w [count, 32]."""
    return generator(_emit_over_inputs, 7, tag)


@primitive
def sum_over_outputs(
    typingctx: Any, sums: Any, weights: Any, words: Any, step: Any, groups: Any, gy: Any,
    count: Any, tag: Any,
) -> Any:
    """Add Σ_n D gy[n, r] w[n, k] to sums[r, k]; sums [4, 32], gy [≤ 32, 8], w [≤ 32, 32]."""
    return generator(_emit_over_outputs, 7, tag)


@primitive
def sum_over_rows(
    typingctx: Any, sums: Any, gy: Any, x: Any, words: Any, step: Any, groups: Any, first: Any,
    count: Any, tag: Any,
) -> Any:
    """Add Σ_r D gy[r, first + n] x[r, k] to sums[n, k]; sums [8, 32], gy and x [count, 32]."""
    return generator(_emit_over_rows, 8, tag)
# fmt: on
