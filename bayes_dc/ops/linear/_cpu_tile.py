"""What the CPU kernels share: memory access, packing, tables of rows, the queue of tasks.

Addresses and ``tag`` as in ``_cpu_ir``.
"""

from typing import Any

from llvmlite import ir
from numba import types

from bayes_dc.ops.linear._cpu_ir import ROWS
from bayes_dc.rng.numba_jit import inlined, primitive
from bayes_dc.rng.numba_rng import GROUPS, INPUTS

TASK_ROWS = 128
"""Most rows of one task or pass: the length of the tables."""

# Tables of int64 in scratch memory: addresses of 8 rows, group and offset of each row, ids.
_IDS = TASK_ROWS + 2 * GROUPS
GROUPS_AT = 8 * ROWS
OFFSETS_AT = GROUPS_AT + 8 * TASK_ROWS
SAMPLES_AT = OFFSETS_AT + 8 * TASK_ROWS
PASSES_AT = SAMPLES_AT + 8 * _IDS
TABLE_BYTES = PASSES_AT + 8 * _IDS

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _pointer(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """Pointer to element ``index`` behind ``base``."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


@primitive
def load(typingctx: Any, base: Any, index: Any, tag: Any) -> Any:
    """Element ``index`` behind ``base``; the type is the tag's."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        kind = context.get_value_type(tag)
        return builder.load(_pointer(builder, args[0], args[1], kind))

    return tag(types.int64, types.int64, tag), codegen


@primitive
def store(typingctx: Any, base: Any, index: Any, value: Any) -> Any:
    """Write element ``index`` behind ``base``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.store(args[2], _pointer(builder, args[0], args[1], args[2].type))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, value), codegen


@primitive
def bytes_of(typingctx: Any, tag: Any) -> Any:
    """Size of the tag's type."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return ir.Constant(_I64, tag.bitwidth // 8)

    return types.int64(tag), codegen


@primitive
def next_task(typingctx: Any, counter: Any) -> Any:
    """Take the number at ``counter`` and add one to it, atomically."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "monotonic")

    return types.int64(types.int64), codegen


def _exchange(builder: ir.IRBuilder, rows: list[ir.Value], width: int) -> list[ir.Value]:
    """One step of an 8 × 8 transposition: swap the off-diagonal blocks of ``width``."""
    lanes = ir.VectorType(_I32, ROWS)
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
            start = builder.load(_pointer(builder, table, ir.Constant(_I64, r), _I64))
            pointer = builder.inttoptr(builder.add(start, offset), vector.as_pointer())
            rows.append(builder.load(pointer, align=align))
        for width in (1, 2, 4):
            rows = _exchange(builder, rows, width)
        for k, row in enumerate(rows):
            index = builder.mul(step, ir.Constant(_I64, k))
            target = _pointer(builder, dst, index, element)
            builder.store(row, builder.bitcast(target, vector.as_pointer()), align=align)
        return context.get_dummy_value()

    return types.void(*([types.int64] * 4), tag), codegen


@primitive
def _copy_inputs(typingctx: Any, dst: Any, src: Any, tag: Any) -> Any:
    """Copy 32 elements."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        vector = ir.VectorType(context.get_value_type(tag), INPUTS)
        align = tag.bitwidth // 8
        target, source = (builder.inttoptr(a, vector.as_pointer()) for a in args[:2])
        builder.store(builder.load(source, align=align), target, align=align)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, tag), codegen


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


@inlined
def row_groups(
    tables: int, first: int, count: int, G: int, S: int, R: int, sample_ids: int, pass_ids: int
) -> int:
    """Table the rows' groups, from 0 on, and the groups' ids; returns the last row's group.

    Counts up, as divisions are slow. Words are made for 4 groups at a time and rows are taken 8
    at a time, so that both tables go on a little; ids repeat the last group's.
    """
    r, group = first % R, 0
    last = (count - 1 + r) // R
    for i in range((count + ROWS - 1) // ROWS * ROWS):
        store(tables + GROUPS_AT, i, group)
        r += 1
        if r == R:
            r, group = 0, group + 1
    group = first // R
    p, s = group // S, group % S
    for i in range(last + 1 + 2 * GROUPS):
        store(tables + SAMPLES_AT, i, load(sample_ids, s, 0))
        store(tables + PASSES_AT, i, load(pass_ids, p, 0))
        if group + i + 1 < G:
            s += 1
            if s == S:
                s, p = 0, p + 1
    return last


@inlined
def row_offsets(
    tables: int, first: int, count: int, S: int, R: int, step_p: int, step_s: int, step_r: int
) -> None:
    """Table the element offsets of the rows (p · S + s) · R + r."""
    group, r = first // R, first % R
    p, s = group // S, group % S
    for i in range(count):
        store(tables + OFFSETS_AT, i, p * step_p + s * step_s + r * step_r)
        r += 1
        if r == R:
            r, s = 0, s + 1
            if s == S:
                s, p = 0, p + 1


@inlined
def pack_rows(dst: int, step: int, tables: int, base: int, rows: int, count: int, tag: Any) -> None:
    """Interleave ``count`` elements of 8 rows at a time, ``step`` apart; the last row repeats."""
    size = bytes_of(tag)
    for block in range((rows + ROWS - 1) // ROWS):
        for r in range(ROWS):
            row = min(block * ROWS + r, rows - 1)
            store(tables, r, base + load(tables + OFFSETS_AT, row, 0) * size)
        interleave(dst + block * step * size, ROWS, tables, count, tag)


@inlined
def copy_tiles(
    dst: int, step: int, src: int, offsets: int, rows: int, blocks: int, count: int, tag: Any
) -> None:
    """Copy rows of ``count`` elements at ``offsets`` into tiles [rows, 32] ``step`` apart."""
    size = bytes_of(tag)
    whole = min(blocks, count // INPUTS)
    for i in range(rows):
        source = src + load(offsets, i, 0) * size
        target = dst + i * INPUTS * size
        for j in range(whole):
            _copy_inputs(target + j * step * size, source + j * INPUTS * size, tag)
    if whole < blocks:
        for i in range(rows):
            source = src + (load(offsets, i, 0) + whole * INPUTS) * size
            for k in range(count - whole * INPUTS):
                store(dst, whole * step + i * INPUTS + k, load(source, k, tag))


@inlined
def write_tile(
    out: int, step: int, sums: int, rows: int, count: int, bias: int, scale: Any
) -> None:
    """out[r · step + n] = scale · sums[r, n] + bias[n] for a tile [rows, 32]; bias may be 0."""
    for r in range(rows):
        for n in range(count):
            value = load(sums, r * INPUTS + n, scale) * scale
            if bias != 0:
                value += load(bias, n, scale)
            store(out, r * step + n, value)


@inlined
def clear(dst: int, count: int, tag: Any) -> None:
    """Write zeros."""
    for i in range(count):
        store(dst, i, tag - tag)
