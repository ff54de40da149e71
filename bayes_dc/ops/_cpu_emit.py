"""What the CPU kernels of every op are written in: LLVM vectors, memory, the queue of tasks.

Numba's own vectoriser keeps neither the sums in registers nor the masks out of them, so inner loops
are written out as vectors of 16. Nothing here names an instruction: LLVM lowers the same vectors
for the machine it runs on.

Addresses are integers. ``tag`` is a float32 or float64 scalar whose type is the type of the
elements; its value is not used.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from bayes_dc.rng.numba_jit import inlined, primitive

LANES = 16
HALVES = range(2)
I32, I64 = ir.IntType(32), ir.IntType(64)
BITS = ir.VectorType(I32, LANES)
"""Words of mask bits, one for a lane."""


def const(value: int) -> ir.Constant:
    """A 64-bit constant."""
    return ir.Constant(I64, value)


class Emitter:
    """Builder with the element type of ``tag``."""

    def __init__(self, context: Any, builder: ir.IRBuilder, tag: Any) -> None:
        self.builder = builder
        self.element = context.get_value_type(tag)
        self.size = tag.bitwidth // 8
        self.vector = ir.VectorType(self.element, LANES)
        self._fmuladd = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fmuladd.v{LANES}f{tag.bitwidth}",
        )

    def plus(self, base: ir.Value, count: ir.Value | int, size: int) -> ir.Value:
        """The address ``count`` items of ``size`` bytes behind ``base``."""
        if isinstance(count, int):
            return self.builder.add(base, const(count * size))
        return self.builder.add(base, self.builder.mul(count, const(size)))

    def read(self, address: ir.Value, kind: ir.Type, align: int | None = None) -> ir.Value:
        """What lies at an address."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def vectors(self, address: ir.Value, count: int, align: int = 64) -> list[ir.Value]:
        """``count`` vectors of elements from an address on, aligned where nothing else is said."""
        places = [self.plus(address, i, LANES * self.size) for i in range(count)]
        return [self.read(place, self.vector, align=align) for place in places]

    def add_to(self, address: ir.Value, values: list[ir.Value]) -> None:
        """Add vectors to those at an aligned address."""
        for i, value in enumerate(values):
            place = self.plus(address, i, LANES * self.size)
            pointer = self.builder.inttoptr(place, self.vector.as_pointer())
            held = self.builder.load(pointer, align=64)
            self.builder.store(self.builder.fadd(held, value), pointer, align=64)

    def zeros(self, count: int) -> list[ir.Value]:
        """``count`` vectors of zeros."""
        return [ir.Constant(self.vector, [0.0] * LANES)] * count

    def words(self, address: ir.Value, align: int = 64) -> list[ir.Value]:
        """The words of 32 inputs, two vectors."""
        return [self.read(self.plus(address, h, 64), BITS, align=align) for h in HALVES]

    def splat(self, scalar: ir.Value) -> ir.Value:
        """The scalar in every lane."""
        kind = ir.VectorType(scalar.type, LANES)
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(BITS, [0] * LANES))

    def broadcast(self, address: ir.Value) -> ir.Value:
        """One element of memory in every lane."""
        return self.splat(self.read(address, self.element))

    def row_words(self, words: ir.Value, step: ir.Value, groups: ir.Value, r: Any) -> ir.Value:
        """Address of the words of row ``r``."""
        group = self.read(self.plus(groups, r, 8), I64)
        return self.builder.add(words, self.builder.mul(step, group))

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a · b + c``, rounded once where the machine can."""
        return self.builder.call(self._fmuladd, [a, b, c])

    def add_kept(
        self, held: ir.Value, words: ir.Value, bits: ir.Value, a: ir.Value, b: ir.Value
    ) -> ir.Value:
        """``held + a · b`` where the word lacks the bit, else ``held``."""
        tested = self.builder.and_(words, bits)
        kept = self.builder.icmp_unsigned("==", tested, ir.Constant(BITS, [0] * LANES))
        return self.builder.select(kept, self.fused(a, b, held), held)

    def largest(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger in every lane, ``a`` of equals; a NaN where there is one, as torch pools."""
        larger = self.builder.fcmp_unordered(">", b, a)  # or either is a NaN
        known = self.builder.fcmp_ordered("ord", a, a)
        return self.builder.select(self.builder.and_(larger, known), b, a)

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
        index = builder.phi(I64)
        index.add_incoming(const(0), before)
        carried = [builder.phi(value.type) for value in start]
        for phi, value in zip(carried, start, strict=True):
            phi.add_incoming(value, before)
        results = body(index, list(carried))
        following = builder.add(index, const(1))
        index.add_incoming(following, inside)
        for phi, value in zip(carried, results, strict=True):
            phi.add_incoming(value, inside)
        builder.cbranch(builder.icmp_unsigned("<", following, count), inside, after)
        builder.position_at_end(after)
        return results


def generator(emit_sums: Callable[..., None], count: int, tag: Any) -> Any:
    """Signature and code generator of a primitive with ``count`` integers and a tag."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit_sums(Emitter(context, builder, tag), *args[:-1])
        return context.get_dummy_value()

    return types.void(*([types.int64] * count), tag), codegen


def place_of(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """Pointer to element ``index`` behind ``base``."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


@primitive
def load(typingctx: Any, base: Any, index: Any, tag: Any) -> Any:
    """Element ``index`` behind ``base``; the type is the tag's."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        kind = context.get_value_type(tag)
        return builder.load(place_of(builder, args[0], args[1], kind))

    return tag(types.int64, types.int64, tag), codegen


@primitive
def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Write element ``index`` behind ``base``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.store(args[2], place_of(builder, args[0], args[1], args[2].type))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


@primitive
def bytes_of(typingctx: Any, tag: Any) -> Any:
    """Size of the tag's type."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return ir.Constant(I64, tag.bitwidth // 8)

    return types.int64(tag), codegen


@primitive
def next_task(typingctx: Any, counter: Any) -> Any:
    """Take the number at ``counter`` and add one to it, atomically."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), codegen


@inlined
def clear(dst: int, count: int, tag: Any) -> None:
    """Write zeros."""
    for i in range(count):
        store(dst, i, tag - tag)
