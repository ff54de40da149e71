"""Sums, means, maxima and softmax of rows.

Shapes      x any shape and strides, reduced over its last ``dims`` dimensions; out the others'
            (softmax: that of x, and it may be x).
Tile        BR rows × BC columns, all of a row in a loop.
Precision   float32 (float64 for float64), rounded once to the type of ``out``. Of a softmax the
            maximum is subtracted first. A NaN in a row is its result.
Order       columns of the same number modulo BC add up in order, then in a tree: a function of the
            row's length.
Cost        reads x once (softmax of more than 4096 columns: three times).
Limits      fewer than 2**31 programs; 64-bit indices where a walk reaches further than 2**31.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.plain._strided import Walk, needs_64_bits, power_of_two, read_sizes, split
from bayes_dc.ops.plain.triton_strided import offsets

_TILE = 2048
_COLUMNS = 4096


@triton.jit(do_not_specialize=["rows"])
def reduce_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    row_sizes,
    x_rows,
    o_rows,
    column_sizes,
    x_columns,
    KIND: tl.constexpr,
    ACC: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BR rows; KIND "sum", "mean" or "max"."""
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    r = tl.program_id(0).to(kind) * BR + tl.arange(0, BR)
    there = r < rows
    x = x_ptr + offsets(r, row_sizes, x_rows, WIDE)[:, None]
    EMPTY: tl.constexpr = -float("inf") if KIND == "max" else 0.0
    total = tl.full([BR, BC], EMPTY, ACC)
    for first in range(0, columns, BC):
        c = first + tl.arange(0, BC)
        seen = there[:, None] & (c < columns)[None, :]
        at = offsets(c, column_sizes, x_columns, WIDE)[None, :]
        values = tl.load(x + at, mask=seen, other=EMPTY).to(ACC)
        if KIND == "max":
            total = tl.maximum(total, values, propagate_nan=tl.PropagateNan.ALL)
        else:
            total += values
    if KIND == "max":
        # tl.max would drop a NaN.
        bad = tl.max((total != total).to(tl.int32), axis=1) > 0
        result = tl.where(bad, float("nan"), tl.max(total, axis=1))
    else:
        result = tl.sum(total, axis=1)
    if KIND == "mean":
        count = (columns + tl.zeros([BR], tl.int32)).to(ACC)
        result = result / count if ACC == tl.float64 else tl.div_rn(result, count)
    at = offsets(r, row_sizes, o_rows, WIDE)
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def softmax_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    row_sizes,
    x_rows,
    o_rows,
    column_sizes,
    x_columns,
    o_columns,
    LOGARITHM: tl.constexpr,
    ACC: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BR rows."""
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    r = tl.program_id(0).to(kind) * BR + tl.arange(0, BR)
    there = (r < rows)[:, None]
    # Beyond the last row it is read again: of nothing but −inf there is no softmax.
    x = x_ptr + offsets(tl.minimum(r, rows - 1), row_sizes, x_rows, WIDE)[:, None]
    out = out_ptr + offsets(r, row_sizes, o_rows, WIDE)[:, None]
    LOW: tl.constexpr = -float("inf")
    if WHOLE:
        c = tl.arange(0, BC)
        seen = (c < columns)[None, :]
        at = offsets(c, column_sizes, x_columns, WIDE)[None, :]
        values = tl.load(x + at, mask=seen, other=LOW).to(ACC)
        most = tl.max(values, axis=1)[:, None]
        values -= most
        total = tl.sum(tl.exp(values), axis=1)[:, None]
        at = offsets(c, column_sizes, o_columns, WIDE)[None, :]
        y = _of(values, total, LOGARITHM)
        tl.store(out + at, y.to(out_ptr.dtype.element_ty), mask=there & seen)
    else:
        largest = tl.full([BR, BC], LOW, ACC)
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = (c < columns)[None, :]
            at = offsets(c, column_sizes, x_columns, WIDE)[None, :]
            largest = tl.maximum(largest, tl.load(x + at, mask=seen, other=LOW).to(ACC))
        most = tl.max(largest, axis=1)[:, None]
        sums = tl.zeros([BR, BC], ACC)
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = (c < columns)[None, :]
            at = offsets(c, column_sizes, x_columns, WIDE)[None, :]
            sums += tl.exp(tl.load(x + at, mask=seen, other=LOW).to(ACC) - most)
        total = tl.sum(sums, axis=1)[:, None]
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = (c < columns)[None, :]
            at = offsets(c, column_sizes, x_columns, WIDE)[None, :]
            y = _of(tl.load(x + at, mask=seen, other=LOW).to(ACC) - most, total, LOGARITHM)
            at = offsets(c, column_sizes, o_columns, WIDE)[None, :]
            tl.store(out + at, y.to(out_ptr.dtype.element_ty), mask=there & seen)


@triton.jit
def _of(values, total, LOGARITHM: tl.constexpr):
    """Softmax, or its logarithm, of differences from the maximum; ``total`` of their powers."""
    if LOGARITHM:
        return values - tl.log(total)
    powers, total = tl.broadcast(tl.exp(values), total)
    return powers / total if values.dtype == tl.float64 else tl.div_rn(powers, total)


def launch_reduce(x: Tensor, out: Tensor, *, dims: int, kind: str) -> None:
    """Write the sum, the mean or the maximum over the last ``dims`` dimensions of ``x`` to ``out``.

    Args:
        x: Values of any shape and strides; permute it for other dimensions. At least one column.
        out: Result, of the shape of the other dimensions.
        dims: How many of the last dimensions are reduced.
        kind: "sum", "mean" or "max".
    """
    if out.numel() == 0:
        return
    strides = (x.stride(), (*out.stride(), *(0 for _ in range(dims))))
    across, along = split(tuple(x.shape), strides, dims)
    options = _options(x, across, along)
    with _launch.on_device_of(x):
        reduce_kernel[(triton.cdiv(across.elements, options["BR"]),)](
            x,
            out,
            across.elements,
            along.elements,
            read_sizes(across),
            *across.strides,
            read_sizes(along),
            along.strides[0],
            KIND=kind,
            **options,
        )


def launch_softmax_rows(x: Tensor, out: Tensor, *, dims: int = 1, logarithm: bool = False) -> None:
    """Write the softmax over the last ``dims`` dimensions of ``x``, or its logarithm, to ``out``.

    Args:
        x: Values of any shape and strides; permute it for other dimensions.
        out: Result, of the shape of ``x``; may be ``x`` itself, not overlap it otherwise.
        dims: How many of the last dimensions a row consists of.
        logarithm: True for ``F.log_softmax``.
    """
    if x.numel() == 0:
        return
    across, along = split(tuple(x.shape), (x.stride(), out.stride()), dims)
    options = _options(x, across, along)
    with _launch.on_device_of(x):
        softmax_kernel[(triton.cdiv(across.elements, options["BR"]),)](
            x,
            out,
            across.elements,
            along.elements,
            read_sizes(across),
            *across.strides,
            read_sizes(along),
            *along.strides,
            LOGARITHM=logarithm,
            WHOLE=along.elements <= options["BC"],
            **options,
        )


def _options(x: Tensor, across: Walk, along: Walk) -> dict[str, Any]:
    bc = min(power_of_two(along.elements), _COLUMNS)
    br = max(1, min(power_of_two(across.elements), _TILE // bc))
    return {
        "ACC": _launch.accumulator(x.dtype),
        "WIDE": needs_64_bits(across, along),
        "BR": br,
        "BC": bc,
        "num_warps": max(1, min(8, br * bc // 512)),
    }
