"""Normalisation of rows: y = (x − mean) / sqrt(variance + eps) · weight + bias.

Shapes      x, out any shape and strides, normalised over the last ``dims`` dimensions; weight and
            bias expand to it, or null. LayerNorm: dims = 1 of channels, wherever they lie in
            memory; GroupNorm: [n, groups, channels, positions] with dims = 2. In place: out may be
            x.
Tile        BR rows × BC columns. WHOLE: a row is one tile and is read once; else three times.
Precision   float32 (float64 for float64), mean first, then the squares of differences from it
            (biased variance, as torch's); rounded once to the type of ``out``.
Order       columns add up in a tree within a tile, tiles in order; a function of the row's length.
Cost        reads x and writes out once; two reductions of a row.
Limits      fewer than 2**31 programs; 64-bit indices where a walk reaches further than 2**31.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.plain._strided import needs_64_bits, power_of_two, read_sizes, split
from bayes_dc.ops.plain.triton_strided import offsets

_TILE = 2048
_COLUMNS = 4096
"""Most columns of a tile: thirty-two numbers for each thread of four warps."""


@triton.jit
def _tile(ptr, rows, c, sizes, strides, seen, ACC: tl.constexpr, WIDE: tl.constexpr):
    """Columns ``c`` of the rows at offsets ``rows``."""
    at = rows[:, None] + offsets(c, sizes, strides, WIDE)[None, :]
    return tl.load(ptr + at, mask=seen, other=0).to(ACC)


@triton.jit
def _divide(a, b):
    """a / b, rounded to nearest."""
    a, b = tl.broadcast(a, b)
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def _inverse_root(a):
    """1 / sqrt(a)."""
    root = tl.sqrt(a) if a.dtype == tl.float64 else tl.sqrt_rn(a)
    return _divide(root * 0 + 1, root)


@triton.jit
def _write(
    y, weight_ptr, bias_ptr, out_ptr, w_rows, b_rows, o_rows, c, sizes, w_columns, b_columns,
    o_columns, seen, WEIGHT: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scale, shift and store the columns ``c``."""
    if WEIGHT:
        y *= _tile(weight_ptr, w_rows, c, sizes, w_columns, seen, y.dtype, WIDE)
    if BIAS:
        y += _tile(bias_ptr, b_rows, c, sizes, b_columns, seen, y.dtype, WIDE)
    at = o_rows[:, None] + offsets(c, sizes, o_columns, WIDE)[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=seen)


@triton.jit(do_not_specialize=["rows"])
def normalize_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    columns,
    row_sizes,
    x_rows,
    w_rows,
    b_rows,
    o_rows,
    column_sizes,
    x_columns,
    w_columns,
    b_columns,
    o_columns,
    EPS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ACC: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BR rows."""
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    r = tl.program_id(0).to(kind) * BR + tl.arange(0, BR)
    at_x = offsets(r, row_sizes, x_rows, WIDE)
    at_w = offsets(r, row_sizes, w_rows, WIDE)
    at_b = offsets(r, row_sizes, b_rows, WIDE)
    at_o = offsets(r, row_sizes, o_rows, WIDE)
    there = (r < rows)[:, None]
    count = (columns + tl.zeros([BR, 1], tl.int32)).to(ACC)
    if WHOLE:
        c = tl.arange(0, BC)
        seen = there & (c < columns)[None, :]
        x = _tile(x_ptr, at_x, c, column_sizes, x_columns, seen, ACC, WIDE)
        mean = _divide(tl.sum(x, axis=1)[:, None], count)
        x = tl.where(seen, x - mean, 0.0)
        variance = _divide(tl.sum(x * x, axis=1)[:, None], count)
        y = x * _inverse_root(variance + EPS)
        _write(
            y, weight_ptr, bias_ptr, out_ptr, at_w, at_b, at_o, c, column_sizes, w_columns,
            b_columns, o_columns, seen, WEIGHT, BIAS, WIDE,
        )  # fmt: skip
    else:
        total = tl.zeros([BR, BC], ACC)
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = there & (c < columns)[None, :]
            total += _tile(x_ptr, at_x, c, column_sizes, x_columns, seen, ACC, WIDE)
        mean = _divide(tl.sum(total, axis=1)[:, None], count)
        total = tl.zeros([BR, BC], ACC)
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = there & (c < columns)[None, :]
            x = _tile(x_ptr, at_x, c, column_sizes, x_columns, seen, ACC, WIDE)
            x = tl.where(seen, x - mean, 0.0)
            total += x * x
        factor = _inverse_root(_divide(tl.sum(total, axis=1)[:, None], count) + EPS)
        for first in range(0, columns, BC):
            c = first + tl.arange(0, BC)
            seen = there & (c < columns)[None, :]
            x = _tile(x_ptr, at_x, c, column_sizes, x_columns, seen, ACC, WIDE)
            _write(
                (x - mean) * factor, weight_ptr, bias_ptr, out_ptr, at_w, at_b, at_o, c,
                column_sizes, w_columns, b_columns, o_columns, seen, WEIGHT, BIAS, WIDE,
            )  # fmt: skip


def launch_normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    dims: int,
    eps: float,
) -> None:
    """Write (x − mean) / sqrt(variance + eps) · weight + bias into ``out``.

    Args:
        x: Values of any shape and strides.
        weight: Factors that expand to the shape of ``x``, or None for 1.
        bias: Summands that expand to the shape of ``x``, or None for 0.
        out: Result, of the shape of ``x``; may be ``x`` itself, not overlap it otherwise.
        dims: How many of the last dimensions are normalised together.
        eps: What is added to the variance.
    """
    if x.numel() == 0:
        return
    operands = (x, weight, bias, out)
    none = (0,) * x.dim()
    strides = tuple(none if t is None else t.expand(x.shape).stride() for t in operands)
    across, along = split(tuple(x.shape), strides, dims)
    rows, columns = across.elements, along.elements
    bc = min(power_of_two(columns), _COLUMNS)
    br = max(1, min(power_of_two(rows), _TILE // bc))
    with _launch.on_device_of(x):
        normalize_kernel[(triton.cdiv(rows, br),)](
            x,
            weight if weight is not None else x,
            bias if bias is not None else x,
            out,
            rows,
            columns,
            read_sizes(across),
            *across.strides,
            read_sizes(along),
            *along.strides,
            EPS=eps,
            WEIGHT=weight is not None,
            BIAS=bias is not None,
            ACC=_launch.accumulator(x.dtype),
            WHOLE=columns <= bc,
            WIDE=needs_64_bits(across, along),
            BR=br,
            BC=bc,
            num_warps=max(1, min(8, br * bc // 512)),
        )


def launch_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, out: Tensor, *, dims: int = 1, eps: float
) -> None:
    """Write ``F.layer_norm`` over the last ``dims`` dimensions into ``out``; x [..., *normalised].

    Args:
        x: Values of any strides, a permuted view for channels that are not last in it.
        weight: Factors of the normalised shape, or None.
        bias: Summands of the normalised shape, or None.
        out: Result, of the shape of ``x``; may be ``x``.
        dims: How many of the last dimensions are normalised together.
        eps: What is added to the variance.
    """
    launch_normalize(x, weight, bias, out, dims=dims, eps=eps)


def launch_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    groups: int,
    eps: float,
) -> None:
    """Write ``F.group_norm`` into ``out``; x [n, C, …], any strides.

    Args:
        x: Values.
        weight: Factors ``[C]``, or None.
        bias: Summands ``[C]``, or None.
        out: Result, of the shape of ``x``; may be ``x``.
        groups: Groups of channels; C, for an instance norm, to 1.
        eps: What is added to the variance.
    """
    each = x.shape[1] // groups
    dims = x.dim() - 1

    def by_channel(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.view(1, groups, each, *(1 for _ in range(dims - 1)))

    launch_normalize(
        x.unflatten(1, (groups, each)),
        by_channel(weight),
        by_channel(bias),
        out.unflatten(1, (groups, each)),
        dims=dims,
        eps=eps,
    )
