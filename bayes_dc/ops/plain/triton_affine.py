"""Scale, shift, residual and ReLU in one pass: out = relu?(x · scale + shift + residual).

Shapes      out any shape and strides; x and residual expand to it (stride 0 over passes reads one
            value for all); scale, shift [C] along one dimension, or null. In place: out may be x or
            residual, element by element.
Grid        tiles of columns (fastest) · tiles of rows; a row is the innermost dimension in memory,
            whatever can be merged has been.
Precision   float32 (float64 for float64), rounded once to the type of ``out``. A NaN stays one.
Order       nothing is added up: equal bits for every tile.
Cost        reads each operand and writes out once.
Limits      fewer than 2**31 programs; 64-bit indices where a walk reaches further than 2**31.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.plain._strided import needs_64_bits, power_of_two, strides_along, walk
from bayes_dc.ops.plain.triton_strided import offsets

_TILE = 4096
_COLUMNS = 1024

ABSENT, BY_COLUMN, BY_ROW, BY_BOTH = range(4)
"""How an operand is read: a value for each column of a tile, each row, or each element."""


@triton.jit
def _load(ptr, row, column, seen_row, seen_column, KIND: tl.constexpr):
    """Values of an operand that broadcast to the tile; offsets [BR] and [BC]."""
    if KIND == 1:
        values = tl.load(ptr + column, mask=seen_column, other=0)[None, :]
    elif KIND == 2:
        values = tl.load(ptr + row, mask=seen_row, other=0)[:, None]
    else:
        seen = seen_row[:, None] & seen_column[None, :]
        values = tl.load(ptr + row[:, None] + column[None, :], mask=seen, other=0)
    return values


@triton.jit(do_not_specialize=["rows", "sizes", "column_tiles"])
def affine_act_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    residual_ptr,
    out_ptr,
    rows,
    columns,
    column_tiles,
    sizes,
    x_strides,
    scale_strides,
    shift_strides,
    residual_strides,
    out_strides,
    X: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    ACC: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BC columns of BR rows; strides: those of rows, then that of columns."""
    RANK: tl.constexpr = len(sizes)
    pid = tl.program_id(0)
    tile = pid // column_tiles
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    r = tile.to(kind) * BR + tl.arange(0, BR)
    c = (pid - tile * column_tiles).to(kind) * BC + tl.arange(0, BC)
    seen_r = r < rows
    seen_c = c < columns
    y = _load(x_ptr, offsets(r, sizes, x_strides, WIDE), c * x_strides[RANK], seen_r, seen_c, X).to(
        ACC
    )
    if SCALE:
        at = offsets(r, sizes, scale_strides, WIDE)
        y *= _load(scale_ptr, at, c * scale_strides[RANK], seen_r, seen_c, SCALE).to(ACC)
    if SHIFT:
        at = offsets(r, sizes, shift_strides, WIDE)
        y += _load(shift_ptr, at, c * shift_strides[RANK], seen_r, seen_c, SHIFT).to(ACC)
    if RESIDUAL:
        at = offsets(r, sizes, residual_strides, WIDE)
        y += _load(residual_ptr, at, c * residual_strides[RANK], seen_r, seen_c, RESIDUAL).to(ACC)
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.broadcast_to(y, [BR, BC]).to(out_ptr.dtype.element_ty)
    at = offsets(r, sizes, out_strides, WIDE)
    to = out_ptr + at[:, None] + (c * out_strides[RANK])[None, :]
    tl.store(to, y, mask=seen_r[:, None] & seen_c[None, :])


def launch_affine_act(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    *,
    relu: bool = False,
    channel_dim: int = 1,
) -> None:
    """Write relu?(x · scale + shift + residual) into ``out``.

    Args:
        x: Values that expand to the shape of ``out``.
        scale: Factors ``[C]`` along ``channel_dim``, or None for 1.
        shift: Summands ``[C]`` along ``channel_dim``, or None for 0.
        residual: Summands that expand to the shape of ``out``, or None.
        out: Result, any strides; may be ``x`` or ``residual`` themselves, not overlap otherwise.
        relu: Whether negative results become 0.
        channel_dim: Dimension of ``out`` with C channels.
    """
    if out.numel() == 0:
        return
    rank = out.dim()
    strides = (
        x.expand(out.shape).stride(),
        strides_along(scale, channel_dim, rank),
        strides_along(shift, channel_dim, rank),
        strides_along(None, 0, rank) if residual is None else residual.expand(out.shape).stride(),
        out.stride(),
    )
    over = walk(tuple(out.shape), strides)
    sizes, columns = over.sizes[:-1] or (1,), over.sizes[-1]
    rows = over.elements // columns
    steps = [s if len(s) > 1 else (0, *s) for s in over.strides]
    bc = min(power_of_two(columns), _COLUMNS if rows > 1 else _TILE)
    br = max(1, min(power_of_two(rows), _TILE // bc))
    column_tiles = triton.cdiv(columns, bc)
    kinds = [_kind(t, s) for t, s in zip((x, scale, shift, residual), steps[:4], strict=True)]
    with _launch.on_device_of(out):
        affine_act_kernel[(column_tiles * triton.cdiv(rows, br),)](
            x,
            scale if scale is not None else x,
            shift if shift is not None else x,
            residual if residual is not None else x,
            out,
            rows,
            columns,
            column_tiles,
            sizes,
            *steps,
            X=kinds[0],
            SCALE=kinds[1],
            SHIFT=kinds[2],
            RESIDUAL=kinds[3],
            RELU=relu,
            ACC=_launch.accumulator(out.dtype),
            WIDE=needs_64_bits(over),
            BR=br,
            BC=bc,
            num_warps=max(1, min(8, br * bc // 512)),
        )


def _kind(t: Tensor | None, strides: tuple[int, ...]) -> int:
    """How an operand is read; a scalar is a value for each column."""
    if t is None:
        return ABSENT
    if not any(strides[:-1]):
        return BY_COLUMN
    return BY_BOTH if strides[-1] else BY_ROW
