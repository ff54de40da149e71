"""Inner loops of the CPU kernels as LLVM vectors, over scratch memory in fixed layouts.

Numba's own vectoriser keeps neither the sums in registers nor the masks out of them, so the loops
are written out. Nothing here names an instruction: LLVM lowers the same vectors for the machine it
runs on. On AVX-512 a masked multiply-add is a test and a fused multiply-add, two instructions for
16 weights.

Addresses are integers, scratch addresses multiples of 64. ``tag`` is a float32 or float64 scalar
whose type is the type of the elements; its value is not used. ``words`` are those of dropped
weights; the words of row r lie ``step · groups[r]`` bytes behind, with ``groups`` a table of int64.
A weight is dropped by a select, never by a product with 0, so that what it holds does not matter.
``fmuladd`` is fused where the machine can. A call sums in ascending order from 0 and then adds to
what it finds: short chains round less than a long one, and nothing but the place in the sum
decides where they end.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from bayes_dc.rng.numba_jit import primitive
from bayes_dc.rng.numba_rng import INPUTS

ROWS = 8
"""Rows interleaved in one block of activations."""
WORD = 32
"""Outputs of one mask word."""

_LANES = 16
_HALVES = range(2)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_BITS = ir.VectorType(_I32, _LANES)


def _const(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(_I64, value)


class _Emitter:
    """Builder with the element type of ``tag``."""

    def __init__(self, context: Any, builder: ir.IRBuilder, tag: Any) -> None:
        self.builder = builder
        self.element = context.get_value_type(tag)
        self.size = tag.bitwidth // 8
        self.vector = ir.VectorType(self.element, _LANES)
        self._fmuladd = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fmuladd.v{_LANES}f{tag.bitwidth}",
        )

    def plus(self, base: ir.Value, count: ir.Value | int, size: int) -> ir.Value:
        """The address ``count`` items of ``size`` bytes behind ``base``."""
        if isinstance(count, int):
            return self.builder.add(base, _const(count * size))
        return self.builder.add(base, self.builder.mul(count, _const(size)))

    def read(self, address: ir.Value, kind: ir.Type, align: int | None = None) -> ir.Value:
        """What lies at an address."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def vectors(self, address: ir.Value, count: int) -> list[ir.Value]:
        """``count`` vectors of elements from an aligned address on."""
        places = [self.plus(address, i, _LANES * self.size) for i in range(count)]
        return [self.read(place, self.vector, align=64) for place in places]

    def add_to(self, address: ir.Value, values: list[ir.Value]) -> None:
        """Add vectors to those at an aligned address."""
        for i, value in enumerate(values):
            place = self.plus(address, i, _LANES * self.size)
            pointer = self.builder.inttoptr(place, self.vector.as_pointer())
            held = self.builder.load(pointer, align=64)
            self.builder.store(self.builder.fadd(held, value), pointer, align=64)

    def zeros(self, count: int) -> list[ir.Value]:
        """``count`` vectors of zeros."""
        return [ir.Constant(self.vector, [0.0] * _LANES)] * count

    def words(self, address: ir.Value) -> list[ir.Value]:
        """The words of 32 inputs, two vectors."""
        return [self.read(self.plus(address, h, 64), _BITS, align=64) for h in _HALVES]

    def splat(self, scalar: ir.Value) -> ir.Value:
        """The scalar in every lane."""
        kind = ir.VectorType(scalar.type, _LANES)
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(nothing, scalar, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(_BITS, [0] * _LANES))

    def broadcast(self, address: ir.Value) -> ir.Value:
        """One element of memory in every lane."""
        return self.splat(self.read(address, self.element))

    def row_words(self, words: ir.Value, step: ir.Value, groups: ir.Value, r: Any) -> ir.Value:
        """Address of the words of row ``r``."""
        group = self.read(self.plus(groups, r, 8), _I64)
        return self.builder.add(words, self.builder.mul(step, group))

    def add_kept(
        self, held: ir.Value, words: ir.Value, bits: ir.Value, a: ir.Value, b: ir.Value
    ) -> ir.Value:
        """``held + a · b`` where the word lacks the bit, else ``held``."""
        tested = self.builder.and_(words, bits)
        kept = self.builder.icmp_unsigned("==", tested, ir.Constant(_BITS, [0] * _LANES))
        return self.builder.select(kept, self.builder.call(self._fmuladd, [a, b, held]), held)

    def loop(
        self,
        count: ir.Value,
        start: list[ir.Value],
        body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Run ``body`` for 0 … count − 1, count ≥ 1, with values carried in registers."""
        builder = self.builder
        before = builder.block
        inside = builder.append_basic_block("sum.loop")
        after = builder.append_basic_block("sum.end")
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(_I64)
        index.add_incoming(_const(0), before)
        carried = [builder.phi(value.type) for value in start]
        for phi, value in zip(carried, start, strict=True):
            phi.add_incoming(value, before)
        results = body(index, list(carried))
        following = builder.add(index, _const(1))
        index.add_incoming(following, inside)
        for phi, value in zip(carried, results, strict=True):
            phi.add_incoming(value, inside)
        builder.cbranch(builder.icmp_unsigned("<", following, count), inside, after)
        builder.position_at_end(after)
        return results


def _generator(emit_sums: Callable[..., None], count: int, tag: Any) -> Any:
    """Signature and code generator of a primitive with ``count`` integers and a tag."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit_sums(_Emitter(context, builder, tag), *args[:-1])
        return context.get_dummy_value()

    return types.void(*([types.int64] * count), tag), codegen


def _word_bits(emit: _Emitter, address: ir.Value) -> list[ir.Value]:
    """The bits of 32 outputs in 32 lanes.

    The top bit of an address is 0, which LLVM does not know. Were these constants, it would move
    each word to a mask register and invert it there, which takes longer than to test the word.
    """
    builder = emit.builder
    zero = builder.trunc(builder.lshr(address, _const(63)), _I32)
    one = emit.splat(builder.shl(ir.Constant(_I32, 1), zero))
    lanes = [[_LANES * half + lane for lane in range(_LANES)] for half in _HALVES]
    return [builder.shl(one, ir.Constant(_BITS, shifts)) for shifts in lanes]


def _emit_over_inputs(
    emit: _Emitter,
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
            word = emit.splat(emit.read(emit.plus(rows[r], k, 4), _I32))
            results += [emit.add_kept(held[2 * r + h], word, bits[h], value, w[h]) for h in _HALVES]
        return results

    emit.add_to(sums, emit.loop(count, emit.zeros(2 * ROWS), body))


def _emit_over_outputs(
    emit: _Emitter,
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
                emit.add_kept(held[2 * r + h], masks[r][h], bit, value, w[h]) for h in _HALVES
            ]
        return results

    first = ir.Constant(_BITS, [1] * _LANES)
    results = emit.loop(count, [first, *emit.zeros(2 * len(rows))], body)
    emit.add_to(sums, results[1:])


def _emit_over_rows(
    emit: _Emitter,
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
    lowest = builder.shl(ir.Constant(_I32, 1), builder.trunc(first, _I32))
    bits = [emit.splat(builder.shl(lowest, ir.Constant(_I32, n))) for n in range(ROWS)]
    gy = emit.plus(gy, first, emit.size)

    def body(r: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
        masks = emit.words(emit.row_words(words, step, groups, r))
        x_row = emit.vectors(emit.plus(x, r, INPUTS * emit.size), 2)
        gy_row = emit.plus(gy, r, WORD * emit.size)
        results = []
        for n in range(ROWS):
            value = emit.broadcast(emit.plus(gy_row, n, emit.size))
            results += [
                emit.add_kept(held[2 * n + h], masks[h], bits[n], x_row[h], value) for h in _HALVES
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
    return _generator(_emit_over_inputs, 7, tag)


@primitive
def sum_over_outputs(
    typingctx: Any, sums: Any, weights: Any, words: Any, step: Any, groups: Any, gy: Any,
    count: Any, tag: Any,
) -> Any:
    """Add Σ_n D gy[n, r] w[n, k] to sums[r, k]; sums [4, 32], gy [≤ 32, 8], w [≤ 32, 32]."""
    return _generator(_emit_over_outputs, 7, tag)


@primitive
def sum_over_rows(
    typingctx: Any, sums: Any, gy: Any, x: Any, words: Any, step: Any, groups: Any, first: Any,
    count: Any, tag: Any,
) -> Any:
    """Add Σ_r D gy[r, first + n] x[r, k] to sums[n, k]; sums [8, 32], gy and x [count, 32]."""
    return _generator(_emit_over_rows, 8, tag)
# fmt: on
