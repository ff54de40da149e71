"""Transposition of 8 rows, for the CPU kernels of every op.

Addresses and ``tag`` as in ``_cpu_emit.py``.
"""

from typing import Any

from llvmlite import ir
from numba import types

from bayes_dc.ops._cpu_emit import I32, I64, bytes_of, load, place_of, store
from bayes_dc.rng.numba_jit import inlined, primitive

ROWS = 8
"""Rows interleaved at a time."""


def _exchange(builder: ir.IRBuilder, rows: list[ir.Value], width: int) -> list[ir.Value]:
    """One step of an 8 × 8 transposition: swap the off-diagonal blocks of ``width``."""
    lanes = ir.VectorType(I32, ROWS)
    result = list(rows)
    for r in range(ROWS):
        if r & width:
            continue
        upper = [c if not c & width else c - width + ROWS for c in range(ROWS)]
        lower = [c + width if not c & width else c + ROWS for c in range(ROWS)]
        for target, order in ((r, upper), (r + width, lower)):
            result[target] = builder.shuffle_vector(
                rows[r], rows[r + width], ir.Constant(lanes, order)
            )
    return result


@primitive
def _transpose(typingctx: Any, dst: Any, step: Any, table: Any, offset: Any, tag: Any) -> Any:
    """dst[k · step + r] = row r [k], 8 × 8, ``offset`` bytes behind the addresses in ``table``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        dst, step, table, offset, _ = args
        element = context.get_value_type(tag)
        align = tag.bitwidth // 8
        vector = ir.VectorType(element, ROWS)
        rows = []
        for r in range(ROWS):
            start = builder.load(place_of(builder, table, ir.Constant(I64, r), I64))
            pointer = builder.inttoptr(builder.add(start, offset), vector.as_pointer())
            rows.append(builder.load(pointer, align=align))
        for width in (1, 2, 4):
            rows = _exchange(builder, rows, width)
        for k, row in enumerate(rows):
            index = builder.mul(step, ir.Constant(I64, k))
            target = place_of(builder, dst, index, element)
            builder.store(row, builder.bitcast(target, vector.as_pointer()), align=align)
        return context.get_dummy_value()

    return types.void(*([types.int64] * 4), tag), codegen


@inlined
def interleave(dst: int, step: int, table: int, count: int, tag: Any) -> None:
    """dst[k · step + r] = row r [k] for k < count; ``table`` holds the addresses of 8 rows."""
    size = bytes_of(tag)
    whole = count // ROWS * ROWS
    for k in range(0, whole, ROWS):
        _transpose(dst + k * step * size, step, table, k * size, tag)
    for r in range(ROWS):
        row = load(table, r, 0)
        for k in range(whole, count):
            store(dst, k * step + r, load(row, k, tag))
