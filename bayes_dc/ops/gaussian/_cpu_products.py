"""Σ_k x w and Σ_k x² w² of four rows and 32 outputs as LLVM vectors.

Addresses are integers. ``tag`` is a float32 or float64 scalar whose type is that of the elements.
Numba's own vectoriser does not keep sixteen vectors of sums in registers. ``fmuladd`` is fused
where the machine can. A call sums in ascending order from 0 and adds to what it finds: short chains
round less than a long one.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from bayes_dc.rng.numba_jit import primitive

ROWS = 4
"""Rows of one call."""
OUTPUTS = 32
"""Outputs of one call."""

_LANES = 16
_I32, _I64 = ir.IntType(32), ir.IntType(64)


# fmt: off
@primitive
def add_products(
    typingctx: Any, means: Any, variances: Any, x0: Any, x1: Any, x2: Any, x3: Any, w: Any,
    count: Any, tag: Any,
) -> Any:
    # fmt: on
    """Add to means and variances [4, 32] over ``count`` ≥ 1 inputs of 4 rows; w [count, 32]."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        *sums, x0, x1, x2, x3, w, count, _ = args
        element = context.get_value_type(tag)
        vector = ir.VectorType(element, _LANES)
        size = tag.bitwidth // 8
        multiply_add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector] * 3),
            f"llvm.fmuladd.v{_LANES}f{tag.bitwidth}",
        )

        def behind(base: ir.Value, index: ir.Value, step: int) -> ir.Value:
            return builder.add(base, builder.mul(index, ir.Constant(_I64, step)))

        def half(base: ir.Value, number: int) -> ir.Value:
            address = builder.add(base, ir.Constant(_I64, number * _LANES * size))
            return builder.inttoptr(address, vector.as_pointer())

        def broadcast(address: ir.Value) -> ir.Value:
            scalar = builder.load(builder.inttoptr(address, element.as_pointer()))
            nothing = ir.Constant(vector, ir.Undefined)
            one = builder.insert_element(nothing, scalar, ir.Constant(_I32, 0))
            lanes = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
            return builder.shuffle_vector(one, nothing, lanes)

        before = builder.block
        inside = builder.append_basic_block("products.loop")
        after = builder.append_basic_block("products.end")
        builder.branch(inside)
        builder.position_at_end(inside)
        k = builder.phi(_I64)
        k.add_incoming(ir.Constant(_I64, 0), before)
        held = [builder.phi(vector) for _ in range(4 * ROWS)]
        for phi in held:
            phi.add_incoming(ir.Constant(vector, [0.0] * _LANES), before)
        row_w = behind(w, k, OUTPUTS * size)
        weights = [builder.load(half(row_w, h), align=size) for h in range(2)]
        squares = [builder.fmul(v, v) for v in weights]
        results: list[ir.Value] = []
        for base in (x0, x1, x2, x3):
            value = broadcast(behind(base, k, size))
            for factor, other in ((value, weights), (builder.fmul(value, value), squares)):
                for h in range(2):
                    place = held[len(results)]
                    results.append(builder.call(multiply_add, [factor, other[h], place]))
        following = builder.add(k, ir.Constant(_I64, 1))
        k.add_incoming(following, inside)
        for phi, value in zip(held, results, strict=True):
            phi.add_incoming(value, inside)
        builder.cbranch(builder.icmp_unsigned("<", following, count), inside, after)
        builder.position_at_end(after)
        for r in range(ROWS):
            for which, base in enumerate(sums):
                for h in range(2):
                    pointer = half(base, 2 * r + h)
                    total = builder.load(pointer, align=size)
                    value = results[4 * r + 2 * which + h]
                    builder.store(builder.fadd(total, value), pointer, align=size)
        return context.get_dummy_value()

    return types.void(*([types.int64] * 8), tag), codegen
