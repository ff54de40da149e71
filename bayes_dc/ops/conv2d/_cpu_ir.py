"""Inner loops of the convolution's CPU kernels as LLVM vectors.

A tile is 8 rows × 32 lanes of sums in registers. Its weights are masked beforehand, in a tile of
their own, so the loops are those of a dense product. What a row reads is found by two tables: the
addresses of rows, and the offsets of terms, in bytes, so that any tap, stride, dilation or group is
a matter of tables.

Addresses and ``tag`` as in ``ops/_cpu_emit.py``. Mask words are those of dropped weights, a set bit
drops; a weight is dropped by a select, so that what it holds does not matter. A call sums in
ascending order from 0 and then adds to what it finds.
"""

from typing import Any

from llvmlite import ir
from numba import types

from bayes_dc.ops._cpu_emit import BITS, HALVES, I32, I64, LANES, Emitter, generator
from bayes_dc.rng.numba_jit import primitive

ROWS = 8
"""Rows of a tile; in the weight gradient, terms."""
WIDTH = 32
"""Lanes of a tile."""


def _operands(emit: Emitter, address: ir.Value, lanewise: bool) -> list[ir.Value]:
    """An element for all lanes, or an element for each lane."""
    if lanewise:
        return emit.vectors(address, 2, align=emit.size)
    return [emit.broadcast(address)] * 2


def _emit_over_terms(emit: Emitter, lanewise: bool, *args: ir.Value) -> None:
    """Code of ``sum_over_terms`` and ``sum_over_taps``."""
    sums, weights, rows, offsets, count = args
    addresses = [emit.read(emit.plus(rows, r, 8), I64) for r in range(ROWS)]

    def body(k: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        offset = emit.read(emit.plus(offsets, k, 8), I64)
        w = emit.vectors(emit.plus(weights, k, WIDTH * emit.size), 2)
        results = []
        for r in range(ROWS):
            x = _operands(emit, emit.builder.add(addresses[r], offset), lanewise)
            results += [emit.fused(x[h], w[h], held[2 * r + h]) for h in HALVES]
        return results

    emit.add_to(sums, emit.loop(count, emit.zeros(2 * ROWS), body))


def _emit_over_rows(emit: Emitter, lanewise: bool, *args: ir.Value) -> None:
    """Code of ``products_over_rows`` and ``products_by_lane``."""
    sums, gy, rows, offsets, count = args
    terms = [emit.read(emit.plus(offsets, i, 8), I64) for i in range(ROWS)]

    def body(r: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        row = emit.read(emit.plus(rows, r, 8), I64)
        g = emit.vectors(emit.plus(gy, r, WIDTH * emit.size), 2)
        results = []
        for i in range(ROWS):
            x = _operands(emit, emit.builder.add(row, terms[i]), lanewise)
            results += [emit.fused(x[h], g[h], held[2 * i + h]) for h in HALVES]
        return results

    emit.add_to(sums, emit.loop(count, emit.zeros(2 * ROWS), body))


# fmt: off
@primitive
def sum_over_terms(
    typingctx: Any, sums: Any, weights: Any, rows: Any, offsets: Any, count: Any, tag: Any,
) -> Any:
    """Add Σ_q w[q, n] · (rows[r] + offsets[q])* to sums[r, n]; sums [8, 32], w [count, 32]."""
    return generator(lambda emit, *args: _emit_over_terms(emit, False, *args), 5, tag)


@primitive
def sum_over_taps(
    typingctx: Any, sums: Any, weights: Any, rows: Any, offsets: Any, count: Any, tag: Any,
) -> Any:
    """The same with an element of its own for every lane: (rows[r] + offsets[q])*[n]."""
    return generator(lambda emit, *args: _emit_over_terms(emit, True, *args), 5, tag)


@primitive
def products_over_rows(
    typingctx: Any, sums: Any, gy: Any, rows: Any, offsets: Any, count: Any, tag: Any,
) -> Any:
    """Add Σ_r gy[r, n] · (rows[r] + offsets[q])* to sums[q, n]; sums [8, 32], gy [count, 32]."""
    return generator(lambda emit, *args: _emit_over_rows(emit, False, *args), 5, tag)


@primitive
def products_by_lane(
    typingctx: Any, sums: Any, gy: Any, rows: Any, offsets: Any, count: Any, tag: Any,
) -> Any:
    """The same with an element of its own for every lane: (rows[r] + offsets[q])*[n]."""
    return generator(lambda emit, *args: _emit_over_rows(emit, True, *args), 5, tag)
# fmt: on


def _kept_lanes(
    emit: Emitter, lows: ir.Value, highs: ir.Value, q: ir.Value, shift: ir.Value
) -> list[ir.Value]:
    """Which of 32 lanes term q keeps, from bit ``shift`` of its low word on into its high one."""
    builder = emit.builder
    low, high = (emit.read(emit.plus(base, q, 4), I32) for base in (lows, highs))
    shift = builder.trunc(shift, I32)
    upper = builder.shl(high, ir.Constant(I32, 1))  # in two steps: a shift by 32 is undefined
    upper = builder.shl(upper, builder.sub(ir.Constant(I32, 31), shift))
    word = emit.splat(builder.or_(builder.lshr(low, shift), upper))
    kept = []
    for half in HALVES:
        bits = ir.Constant(BITS, [1 << (LANES * half + lane) for lane in range(LANES)])
        tested = builder.and_(word, bits)
        kept.append(builder.icmp_unsigned("==", tested, ir.Constant(BITS, [0] * LANES)))
    return kept


def _write(emit: Emitter, address: ir.Value, values: list[ir.Value], align: int = 64) -> None:
    """Write vectors one behind the other."""
    for i, value in enumerate(values):
        place = emit.plus(address, i, LANES * emit.size)
        target = emit.builder.inttoptr(place, emit.vector.as_pointer())
        emit.builder.store(value, target, align=align)


def _emit_drop_outputs(emit: Emitter, *args: ir.Value) -> None:
    """Code of ``drop_outputs``."""
    dst, src, low, high, shift, count = args
    zero = emit.zeros(1)[0]

    def body(q: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        kept = _kept_lanes(emit, low, high, q, shift)
        w = emit.vectors(emit.plus(src, q, WIDTH * emit.size), 2)
        chosen = [emit.builder.select(kept[h], w[h], zero) for h in HALVES]
        _write(emit, emit.plus(dst, q, WIDTH * emit.size), chosen)
        return []

    emit.loop(count, [], body)


def _emit_add_kept(emit: Emitter, *args: ir.Value) -> None:
    """Code of ``add_kept_outputs``."""
    dst, src, low, high, shift, count = args

    def body(q: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        kept = _kept_lanes(emit, low, high, q, shift)
        products = emit.vectors(emit.plus(src, q, WIDTH * emit.size), 2)
        place = emit.plus(dst, q, WIDTH * emit.size)
        held = emit.vectors(place, 2)
        builder = emit.builder
        sums = [builder.fadd(held[h], products[h]) for h in HALVES]
        _write(emit, place, [builder.select(kept[h], sums[h], held[h]) for h in HALVES])
        return []

    emit.loop(count, [], body)


def _emit_drop_inputs(emit: Emitter, *args: ir.Value) -> None:
    """Code of ``drop_inputs``."""
    dst, src, words, first, count = args
    builder = emit.builder
    lanes = emit.words(words, align=4)
    zero, none = emit.zeros(1)[0], ir.Constant(BITS, [0] * LANES)
    start = emit.splat(builder.shl(ir.Constant(I32, 1), builder.trunc(first, I32)))

    def body(q: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        bit = held[0]
        w = emit.vectors(emit.plus(src, q, WIDTH * emit.size), 2)
        chosen = []
        for h in HALVES:
            kept = builder.icmp_unsigned("==", builder.and_(lanes[h], bit), none)
            chosen.append(builder.select(kept, w[h], zero))
        _write(emit, emit.plus(dst, q, WIDTH * emit.size), chosen)
        return [builder.add(bit, bit)]

    emit.loop(count, [start], body)


# fmt: off
@primitive
def drop_outputs(
    typingctx: Any, dst: Any, src: Any, low: Any, high: Any, shift: Any, count: Any, tag: Any,
) -> Any:
    """dst[q, n] = src[q, n], or 0 where bit ``shift`` + n of the words (low[q], high[q]) is set."""
    return generator(_emit_drop_outputs, 6, tag)


@primitive
def add_kept_outputs(
    typingctx: Any, dst: Any, src: Any, low: Any, high: Any, shift: Any, count: Any, tag: Any,
) -> Any:
    """dst[q, n] += src[q, n] where that bit is not set."""
    return generator(_emit_add_kept, 6, tag)


@primitive
def drop_inputs(
    typingctx: Any, dst: Any, src: Any, words: Any, first: Any, count: Any, tag: Any,
) -> Any:
    """dst[q, k] = src[q, k], or 0 where bit ``first`` + q of words[k] is set; words unaligned."""
    return generator(_emit_drop_inputs, 5, tag)
# fmt: on


@primitive
def copy_row(typingctx: Any, dst: Any, src: Any, tag: Any) -> Any:
    """Copy 32 elements, both unaligned."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(context, builder, tag)
        _write(emit, args[0], emit.vectors(args[1], 2, align=emit.size), align=emit.size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tag), codegen


@primitive
def write_row(typingctx: Any, dst: Any, sums: Any, bias: Any, scale: Any) -> Any:
    """dst[n] = scale · sums[n] + bias[n] for 32 lanes; dst unaligned."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        dst, sums, bias, factor = args
        emit = Emitter(context, builder, scale)
        factors = emit.splat(factor)
        values = zip(emit.vectors(sums, 2), emit.vectors(bias, 2), strict=True)
        results = [builder.fadd(builder.fmul(s, factors), b) for s, b in values]
        _write(emit, dst, results, align=emit.size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, scale), codegen


@primitive
def finish_row(typingctx: Any, row: Any, factors: Any, summands: Any, tag: Any) -> Any:
    """row[n] = row[n] · factors[n] + summands[n] for 32 lanes."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(context, builder, tag)
        values, factors, summands = (emit.vectors(address, 2) for address in args[:3])
        rest = zip(values, factors, summands, strict=True)
        _write(emit, args[0], [builder.fadd(builder.fmul(v, f), s) for v, f, s in rest])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, tag), codegen


@primitive
def relu_row(typingctx: Any, row: Any, tag: Any) -> Any:
    """Negative ones of 32 lanes become 0."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(context, builder, tag)
        zero = emit.zeros(1)[0]
        kept = []
        for value in emit.vectors(args[0], 2):
            negative = builder.fcmp_ordered("<", value, zero)  # not a NaN
            kept.append(builder.select(negative, zero, value))
        _write(emit, args[0], kept)
        return context.get_dummy_value()

    return types.void(types.int64, tag), codegen


@primitive
def largest_row(typingctx: Any, dst: Any, rows: Any, tag: Any) -> Any:
    """dst[n] = the largest of rows[0 … 3, n] for 32 lanes, the first of equals, or a NaN."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = Emitter(context, builder, tag)
        found = emit.vectors(args[1], 2)
        for r in range(1, 4):
            row = emit.vectors(emit.plus(args[1], r, WIDTH * emit.size), 2)
            found = [emit.largest(found[h], row[h]) for h in HALVES]
        _write(emit, args[0], found)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tag), codegen
