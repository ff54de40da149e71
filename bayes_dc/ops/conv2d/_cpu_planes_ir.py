"""Inner loops of the convolution's CPU kernel for few outputs: lanes are neighbouring positions.

A tile is 48 positions × up to 8 outputs of sums in registers. What a term reads are neighbours in
a plane of the source, one offset behind the position; its weight is one number for all lanes. So
six outputs take six multiplications, where a lane for each of 32 outputs takes as many as 32 do.

Addresses and ``tag`` as in ``ops/_cpu_emit.py``; sums and weights lie as in ``_cpu_ir.py``.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from bayes_dc.ops._cpu_emit import I32, I64, LANES, Emitter, generator
from bayes_dc.ops.conv2d._cpu_ir import WIDTH
from bayes_dc.rng.numba_jit import primitive

VECTORS = 3
"""Vectors of positions of a tile."""
TILE = VECTORS * LANES
"""Positions of a tile."""
OUTPUTS = 8
"""Most outputs of a tile; with their sums 24 of 32 registers are in use."""

_LANE_BITS = ir.VectorType(ir.IntType(1), LANES)


def _emit_over_planes(emit: Emitter, outputs: int, *args: ir.Value) -> None:
    """Code of ``sum_over_planes``."""
    builder = emit.builder
    sums, step, weights, source, offsets, count, fresh = args

    def body(q: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        offset = emit.read(emit.plus(offsets, q, 8), I64)
        x = emit.vectors(builder.add(source, offset), VECTORS, align=emit.size)
        row = emit.plus(weights, q, WIDTH * emit.size)
        results = []
        for n in range(outputs):
            w = emit.broadcast(emit.plus(row, n, emit.size))
            results += [emit.fused(x[v], w, held[VECTORS * n + v]) for v in range(VECTORS)]
        return results

    found = emit.loop(count, emit.zeros(VECTORS * outputs), body)
    first = builder.icmp_unsigned("!=", fresh, ir.Constant(I64, 0))
    zero = emit.zeros(1)[0]
    for n in range(outputs):
        line = builder.add(sums, builder.mul(step, ir.Constant(I64, n)))
        held = emit.vectors(line, VECTORS, align=emit.size)
        for v in range(VECTORS):
            added = builder.fadd(builder.select(first, zero, held[v]), found[VECTORS * n + v])
            _store(emit, emit.plus(line, v, LANES * emit.size), added)


def _store(emit: Emitter, address: ir.Value, value: ir.Value) -> None:
    """Write a vector, unaligned."""
    pointer = emit.builder.inttoptr(address, emit.vector.as_pointer())
    emit.builder.store(value, pointer, align=emit.size)


def _sum_over_planes(outputs: int) -> Any:
    """Add up the products of 48 positions r and so many outputs n, whose sums are a step apart.

    sums[n, r] = Σ_q w[q, n] · (source + offsets[q])*[r], or sums += … unless ``fresh``.
    """

    # fmt: off
    @primitive
    def sum_over_planes(
        typingctx: Any, sums: Any, step: Any, weights: Any, source: Any, offsets: Any, count: Any,
        fresh: Any, tag: Any,
    ) -> Any:
        # fmt: on
        return generator(lambda emit, *args: _emit_over_planes(emit, outputs, *args), 7, tag)

    return sum_over_planes


sum_over_planes_of_2 = _sum_over_planes(2)
sum_over_planes_of_4 = _sum_over_planes(4)
sum_over_planes_of_6 = _sum_over_planes(6)
sum_over_planes_of_8 = _sum_over_planes(8)


# fmt: off
@primitive
def finish_line(
    typingctx: Any, line: Any, count: Any, bias: Any, factor: Any, summand: Any, affine: Any,
    relu: Any, scale: Any,
) -> Any:
    # fmt: on
    """relu?((scale · sum + bias) · factor + summand) of ``count`` vectors of 16 sums, in place.

    Of one output: ``bias``, ``factor`` and ``summand`` are addresses of one number each. The last
    two count where ``affine`` is not 0.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        line, count, bias, factor, summand, affine, relu, number = args
        emit = Emitter(context, builder, scale)
        none, zero = ir.Constant(I64, 0), ir.Constant(emit.element, 0.0)
        further, cut = (builder.icmp_unsigned("!=", flag, none) for flag in (affine, relu))
        least = builder.select(cut, zero, ir.Constant(emit.element, float("-inf")))
        scales, floor, zeros = (emit.splat(value) for value in (number, least, zero))
        added, times, plus = (emit.broadcast(address) for address in (bias, factor, summand))

        def body(v: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = emit.plus(line, v, LANES * emit.size)
            value = builder.fadd(builder.fmul(emit.vectors(place, 1)[0], scales), added)
            changed = builder.fadd(builder.fmul(value, times), plus)
            value = builder.select(further, changed, value)
            negative = builder.fcmp_ordered("<", value, floor)  # not a NaN
            _store(emit, place, builder.select(negative, zeros, value))
            return []

        emit.loop(count, [], body)
        return context.get_dummy_value()

    return types.void(*([types.int64] * 7), scale), codegen


def _emit_pool_line(emit: Emitter, *args: ir.Value) -> None:
    """Code of ``pool_line``."""
    line, below, count = args
    corners = [ir.Constant(ir.VectorType(I32, LANES), list(range(c, 2 * LANES, 2))) for c in (0, 1)]

    def body(v: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        four = []
        for address in (line, below):
            pair = emit.vectors(emit.plus(address, v, 2 * LANES * emit.size), 2, align=emit.size)
            four += [emit.builder.shuffle_vector(*pair, order) for order in corners]
        found = four[0]
        for corner in four[1:]:
            found = emit.largest(found, corner)
        _store(emit, emit.plus(line, v, LANES * emit.size), found)
        return []

    emit.loop(count, [], body)


@primitive
def pool_line(typingctx: Any, line: Any, below: Any, count: Any, tag: Any) -> Any:
    """Largest of 2 × 2 in two lines, 16 windows at a time; ``count`` times, into the first."""
    return generator(_emit_pool_line, 3, tag)


def _emit_copy_line(emit: Emitter, *args: ir.Value) -> None:
    """Code of ``copy_line``."""
    dst, src, count = args
    builder = emit.builder

    def copied(at: ir.Value) -> None:
        value = emit.vectors(emit.plus(src, at, emit.size), 1, align=emit.size)[0]
        _store(emit, emit.plus(dst, at, emit.size), value)

    last = builder.sub(count, ir.Constant(I64, LANES))
    with builder.if_else(builder.icmp_signed("<", last, ir.Constant(I64, 0))) as (short, long):
        with short:
            _store_some(emit, dst, emit.vectors(src, 1, align=emit.size)[0], count)
        with long:

            def body(v: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                copied(builder.mul(v, ir.Constant(I64, LANES)))
                return []

            emit.loop(builder.udiv(count, ir.Constant(I64, LANES)), [], body)
            copied(last)  # once more where they overlap


def _store_some(emit: Emitter, address: ir.Value, value: ir.Value, count: ir.Value) -> None:
    """Write the first lanes of a vector, unaligned."""
    builder = emit.builder
    kind = ir.FunctionType(ir.VoidType(), [emit.vector, emit.vector.as_pointer(), I32, _LANE_BITS])
    name = f"llvm.masked.store.v{LANES}f{8 * emit.size}.p0"
    masked_store = cgutils.get_or_insert_function(builder.module, kind, name)
    lanes = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
    wanted = builder.icmp_unsigned("<", lanes, emit.splat(count))
    pointer = builder.inttoptr(address, emit.vector.as_pointer())
    builder.call(masked_store, [value, pointer, ir.Constant(I32, emit.size), wanted])


@primitive
def copy_line(typingctx: Any, dst: Any, src: Any, count: Any, tag: Any) -> Any:
    """Copy ``count`` ≥ 1 elements, both unaligned; reads 16 at least."""
    return generator(_emit_copy_line, 3, tag)
