"""What the CPU kernels share: packing and tables of rows.

Addresses and ``tag`` as in ``ops/_cpu_emit.py``.
"""

from typing import Any

from llvmlite import ir
from numba import types

from bayes_dc.ops._cpu_emit import bytes_of, load, store
from bayes_dc.ops._cpu_interleave import interleave
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
    out: int,
    step: int,
    sums: int,
    rows: int,
    count: int,
    bias: int,
    factors: int,
    summands: int,
    relu: int,
    scale: Any,
) -> None:
    """out[r · step + n] = relu?((scale · sums[r, n] + bias[n]) · factors[n] + summands[n]).

    For a tile [rows, 32]; the addresses of the three vectors may be 0, which leaves them out.
    """
    for r in range(rows):
        for n in range(count):
            value = load(sums, r * INPUTS + n, scale) * scale
            if bias != 0:
                value += load(bias, n, scale)
            if factors != 0:
                value *= load(factors, n, scale)
            if summands != 0:
                value += load(summands, n, scale)
            if relu != 0 and value < 0:
                value = scale - scale
            store(out, r * step + n, value)
