"""Inner loops of the CPU kernels as LLVM vectors, for scratch memory in fixed layouts.

Numba's own vectoriser keeps neither the accumulators in registers nor the masks in mask registers, so
the loops are written out. Nothing here names an instruction: LLVM lowers the same vectors for the
machine it runs on (on AVX-512 a masked multiply-add is one test and one fused multiply-add).

Addresses are integers, scratch addresses multiples of 64. ``tag`` is a float32 or float64 scalar whose
type is the type of the elements; its value is not used. A weight is dropped by a select, never by a
product with 0. ``fmuladd`` is fused where the machine can; either way each output is one chain of
additions in a fixed order.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bayes_dc.rng.numba_rng import INPUTS

ROWS = 8
"""Rows interleaved in one block of activations."""
LANES = 16
WORD = 32
"""Outputs of one mask word."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, LANES)


def _const(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(_I64, value)


class _Emitter:
    """Builder with the element type of ``tag``."""

    def __init__(self, context: Any, builder: ir.IRBuilder, tag: Any) -> None:
        self.builder = builder
        self.element = context.get_value_type(tag)
        self.bytes = 4 if tag == types.float32 else 8
        self.vector = ir.VectorType(self.element, LANES)
        self._fmuladd = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fmuladd.v{LANES}f{8 * self.bytes}",
        )

    def at(self, base: ir.Value, offset: ir.Value | int, kind: ir.Type) -> ir.Value:
        """Pointer to ``kind``, ``offset`` bytes behind ``base``."""
        step = _const(offset) if isinstance(offset, int) else offset
        return self.builder.inttoptr(self.builder.add(base, step), kind.as_pointer())

    def load(self, base: ir.Value, offset: ir.Value | int, index: int = 0) -> ir.Value:
        """Vector ``index`` behind an aligned address."""
        address = self.builder.add(base, _const(index * LANES * self.bytes))
        return self.builder.load(self.at(address, offset, self.vector), align=64)

    def store(self, value: ir.Value, base: ir.Value, index: int) -> None:
        """Write vector ``index`` behind an aligned address."""
        pointer = self.at(base, index * LANES * self.bytes, self.vector)
        self.builder.store(value, pointer, align=64)

    def splat(self, scalar: ir.Value) -> ir.Value:
        """The scalar in every lane."""
        kind = ir.VectorType(scalar.type, LANES)
        one = self.builder.insert_element(
            ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_I32, 0)
        )
        lanes = ir.Constant(_WORDS, [0] * LANES)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)

    def broadcast(self, base: ir.Value, offset: ir.Value | int) -> ir.Value:
        """One element of memory in every lane."""
        return self.splat(self.builder.load(self.at(base, offset, self.element)))

    def kept_sum(
        self, words: ir.Value, bits: ir.Value, a: ir.Value, b: ir.Value, held: ir.Value
    ) -> ir.Value:
        """``held + a · b`` where the word of dropped weights lacks the bit, else ``held``."""
        zero = ir.Constant(_WORDS, [0] * LANES)
        kept = self.builder.icmp_unsigned("==", self.builder.and_(words, bits), zero)
        return self.builder.select(kept, self.builder.call(self._fmuladd, [a, b, held]), held)

    def loop(
        self,
        count: ir.Value,
        start: list[ir.Value],
        body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Run ``body`` for 0 … count − 1 with values carried in registers; count ≥ 1."""
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


def _void(codegen: Callable[[_Emitter, list[ir.Value]], None], count: int, tag: Any) -> Any:
    """Signature and code generator of an intrinsic with ``count`` integers and a tag."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        codegen(_Emitter(context, builder, tag), list(args[:-1]))
        return context.get_dummy_value()

    return types.void(*([types.int64] * count), tag), generate


def _row_words(
    emit: _Emitter, words: ir.Value, step: ir.Value, groups: ir.Value, rows: range
) -> list[ir.Value]:
    """Addresses of the words of each row: ``step`` bytes for each group number in the int64 table."""
    builder = emit.builder
    table = builder.inttoptr(groups, _I64.as_pointer())
    numbers = [builder.load(builder.gep(table, [_const(r)])) for r in rows]
    return [builder.add(words, builder.mul(step, number)) for number in numbers]


@intrinsic
def sum_over_inputs(typingctx, sums, weights, words, step, groups, x, count, tag):  # type: ignore[no-untyped-def]
    """sums[r, n] += Σ_k D x[k, r] weights[k, n] for 8 rows and the 32 outputs of a word.

    Layouts: sums [8, 32], weights [count, 32], x [count, 8]; the word of row r and input k is uint32 k
    behind ``words + step · groups[r]``. k ascends.
    """

    def codegen(emit: _Emitter, args: list[ir.Value]) -> None:
        sums, weights, words, step, groups, x, count = args
        builder = emit.builder
        rows = _row_words(emit, words, step, groups, range(ROWS))
        # The top bit of an address is 0. Were the shifts constant, LLVM would move each word into a mask
        # register and invert it there, which is slower than a test against the bits.
        none = builder.trunc(builder.lshr(words, _const(63)), _I32)
        bits = [
            builder.shl(
                emit.splat(builder.shl(ir.Constant(_I32, 1), none)),
                ir.Constant(_WORDS, [LANES * half + lane for lane in range(LANES)]),
            )
            for half in range(2)
        ]

        def body(k: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
            w = [
                emit.load(weights, builder.mul(k, _const(WORD * emit.bytes)), half)
                for half in range(2)
            ]
            results = []
            for r in range(ROWS):
                element = builder.mul(k, _const(ROWS * emit.bytes))
                value = emit.broadcast(builder.add(x, _const(r * emit.bytes)), element)
                word_at = emit.at(rows[r], builder.mul(k, _const(4)), _I32)
                word = emit.splat(builder.load(word_at))
                results += [
                    emit.kept_sum(word, bits[half], value, w[half], held[2 * r + half])
                    for half in range(2)
                ]
            return results

        start = [emit.load(sums, 0, i) for i in range(2 * ROWS)]
        for i, value in enumerate(emit.loop(count, start, body)):
            emit.store(value, sums, i)

    return _void(codegen, 7, tag)


@intrinsic
def sum_over_outputs(typingctx, sums, weights, words, step, groups, gy, count, tag):  # type: ignore[no-untyped-def]
    """sums[r, k] += Σ_n D gy[n, r] weights[n, k] for 4 rows, 32 inputs and the outputs of a word.

    Layouts: sums [4, 32], weights [count, 32], gy [count, 8] (4 of 8 rows); the 32 words of row r lie
    behind ``words + step · groups[r]``. n ascends over count ≤ 32 outputs.
    """

    def codegen(emit: _Emitter, args: list[ir.Value]) -> None:
        sums, weights, words, step, groups, gy, count = args
        builder = emit.builder
        masks = [
            builder.load(emit.at(row, half * 64, _WORDS), align=64)
            for row in _row_words(emit, words, step, groups, range(ROWS // 2))
            for half in range(2)
        ]

        def body(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            bit, held = carried[0], carried[1:]
            w = [
                emit.load(weights, builder.mul(n, _const(INPUTS * emit.bytes)), half)
                for half in range(2)
            ]
            results = [builder.add(bit, bit)]
            for r in range(ROWS // 2):
                element = builder.mul(n, _const(ROWS * emit.bytes))
                value = emit.broadcast(builder.add(gy, _const(r * emit.bytes)), element)
                results += [
                    emit.kept_sum(masks[2 * r + half], bit, value, w[half], held[2 * r + half])
                    for half in range(2)
                ]
            return results

        first = ir.Constant(_WORDS, [1] * LANES)
        start = [first, *(emit.load(sums, 0, i) for i in range(ROWS))]
        for i, value in enumerate(emit.loop(count, start, body)[1:]):
            emit.store(value, sums, i)

    return _void(codegen, 7, tag)


@intrinsic
def sum_over_rows(typingctx, sums, gy, x, words, step, groups, first, count, tag):  # type: ignore[no-untyped-def]
    """sums[n, k] += Σ_r D gy[r, first + n] x[r, k] for 8 outputs and 32 inputs.

    Layouts: sums [8, 32] and gy, x [count, 32]; the 32 words of row r lie behind
    ``words + offsets[r]``. r ascends.
    """

    def codegen(emit: _Emitter, args: list[ir.Value]) -> None:
        sums, gy, x, words, step, groups, first, count = args
        builder = emit.builder
        lowest = builder.shl(ir.Constant(_I32, 1), builder.trunc(first, _I32))
        bits = [emit.splat(builder.shl(lowest, ir.Constant(_I32, n))) for n in range(ROWS)]
        gy = builder.add(gy, builder.mul(first, _const(emit.bytes)))
        table = builder.inttoptr(groups, _I64.as_pointer())

        def body(r: ir.Value, held: list[ir.Value]) -> list[ir.Value]:
            row = builder.add(words, builder.mul(step, builder.load(builder.gep(table, [r]))))
            mask = [builder.load(emit.at(row, half * 64, _WORDS), align=64) for half in range(2)]
            at = builder.mul(r, _const(INPUTS * emit.bytes))
            value = [emit.load(x, at, half) for half in range(2)]
            results = []
            for n in range(ROWS):
                g = emit.broadcast(gy, builder.add(at, _const(n * emit.bytes)))
                results += [
                    emit.kept_sum(mask[half], bits[n], value[half], g, held[2 * n + half])
                    for half in range(2)
                ]
            return results

        start = [emit.load(sums, 0, i) for i in range(2 * ROWS)]
        for i, value in enumerate(emit.loop(count, start, body)):
            emit.store(value, sums, i)

    return _void(codegen, 8, tag)
