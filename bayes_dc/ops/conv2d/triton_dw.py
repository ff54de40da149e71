"""DropConnect convolution, weight gradient: masked sums of matrix products of patches.

    dW[n, k] = s · Σ_g D[g, n, k] · Σ_(b in g, i, j) dy[b, i, j, n] · x[b, i·sh + kh·dh − ph, …, c]

Shapes      dy [P, B, OH, OW, N], x [P, B, H, W, C], channels contiguous, other strides any; out
            [N, KH, KW, C / groups] or, with ``partial``, [splits, …] in the type of the sums, then
            reduced into out. g counts the P·S mask groups.
Mask        words of rng/SPEC.md v1, applied to the products of each unit, in registers. A unit is
            one image, or a run of images that share a mask.
Grid        tiles of k (fastest) · tiles of outputs · groups of channels · splits.
Tile        TAP: weights of some channels of one tap, x read in vectors; otherwise k runs through
            taps and channels, and x is gathered.
Precision   products in the input type (float32: PRECISION), sums in float32 (float64 for float64);
            s applied once, at the end.
            Float32 without TensorFloat-32: a sum for each product of tiles, then of those.
Order       a split owns a contiguous run of units and adds them in ascending order, positions
            ascending inside a unit; the splits are added in ascending order by a second kernel.
            Splits and units are functions of the shape alone, so `out` repeats bit for bit.
Cost        as the forward, and N·K masked additions for every unit.
Limits      as the forward.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _conv, _launch
from bayes_dc.ops._splits import launch_sum_splits
from bayes_dc.ops._tiles import group_ids, keep_tile, round_tf32
from bayes_dc.ops.conv2d import triton_direct, triton_hopper_dw
from bayes_dc.ops.conv2d.triton_patches import (
    find_positions,
    inside,
    load_patches,
    multiply,
    offset_of,
)

_RUNTIME = (
    *("S", "images", "unit", "units", "chunk", "H", "W", "OH", "OW", "groups", "n_tiles"),
    *("magic_h", "shift_h", "magic_w", "shift_w"),
    *("stride_sample", "stride_pass"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_conv2d_dw_kernel(
    gy_ptr,
    x_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    images,
    unit,
    units,
    chunk,
    H,
    W,
    OH,
    OW,
    N,
    outputs,
    groups,
    n_tiles,
    magic_h,
    shift_h,
    magic_w,
    shift_w,
    stride_gp,
    stride_gb,
    stride_gh,
    stride_gw,
    stride_xp,
    stride_xb,
    stride_xh,
    stride_xw,
    stride_sample,
    stride_pass,
    C: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    WIDE: tl.constexpr,
    ONE: tl.constexpr,
    TAP: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BN outputs × BK weights over one run of ``chunk`` units of ``unit`` images."""
    K: tl.constexpr = KH * KW * C
    K_TILES: tl.constexpr = (K + BK - 1) // BK
    pid = tl.program_id(0)
    pk = pid % K_TILES
    pn = pid // K_TILES % n_tiles
    q = pid // K_TILES // n_tiles % groups
    pz = pid // K_TILES // n_tiles // groups
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    # A tile starts with a word, if need be before the group's first output.
    first_n32 = q * outputs // 32 + pn * (BN // 32)
    n = first_n32 * 32 + tl.arange(0, BN)
    of_group = (n >= q * outputs) & (n < q * outputs + outputs)
    k = pk * BK + tl.arange(0, BK)
    tap = pk * BK // C
    down = tap // KW * DH - PH
    right = tap % KW * DW - PW
    per_group = tl.cdiv(images, unit)
    acc = tl.zeros([BN, BK], ACC)
    for u in range(pz * chunk, tl.minimum(pz * chunk + chunk, units)):
        p, s, sample, step = group_ids(
            u // per_group, S, sample_ptr, pass_ptr, stride_sample, stride_pass
        )
        first_image = u % per_group * unit
        count = tl.minimum(unit, images - first_image)
        gy = gy_ptr + p * stride_gp + (s * images + first_image) * stride_gb
        x = x_ptr + p * stride_xp + (s * images + first_image) * stride_xb + q.to(tl.int64) * C
        products = tl.zeros([BN, BK], ACC)
        for first in range(0, count * OH * OW, BR):
            image, i, j, there = find_positions(
                first, count, OH, OW, magic_h, shift_h, magic_w, shift_w, ONE, BR
            )
            line = offset_of(i, j, stride_gh, stride_gw, WIDE)
            rows = gy + image.to(tl.int64) * stride_gb + line
            left = tl.load(
                rows[:, None] + n[None, :], mask=there[:, None] & of_group[None, :], other=0
            )
            rows = x + image.to(tl.int64) * stride_xb
            if TAP:
                seen = there & inside(i * SH + down, j * SW + right, H, W)
                line = offset_of(i * SH + down, j * SW + right, stride_xh, stride_xw, WIDE)
                patches = tl.load(
                    rows[:, None] + (line[:, None] + (k - tap * C)[None, :]),
                    mask=seen[:, None],
                    other=0,
                )
            else:
                patches = load_patches(
                    rows, there, i * SH - PH, j * SW - PW, H, W, stride_xh, stride_xw, k, K,
                    DH, DW, KW, C, WIDE,
                )  # fmt: skip
            if PRECISION == "tf32" and left.dtype == tl.float32:
                left = round_tf32(left)
            products = multiply(tl.trans(left), patches, products, PRECISION)
        kept = keep_tile(k0, k1, first_n32, pk * (BK // 4), sample, step, KEEP, BITS, BN, BK)
        acc += tl.where(kept, products, 0.0)
    out = out_ptr + pz.to(tl.int64) * N * K + n.to(tl.int64)[:, None] * K + k[None, :]
    values = (acc * SCALE).to(out_ptr.dtype.element_ty)
    tl.store(out, values, mask=of_group[:, None] & (k < K)[None, :])


def launch_dw(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    keep: int,
    bits: int,
    scale: float,
    partial: Tensor | None = None,
    config: _conv.ConvConfig | None = None,
) -> None:
    """Write the weight gradient into ``out``; see ``bayes_dc.ops.conv2d.reference.grad_weight``.

    ``partial`` [splits, N, KH, KW, C / groups], contiguous in the type of the sums, is overwritten;
    None means no split.
    """
    if out.numel() == 0:
        return
    if gy.numel() == 0 or x.numel() == 0:
        out.zero_()
        return
    target = out[None] if partial is None else partial
    taps = _conv.taps(out, stride, padding, dilation)
    mask = {"KEEP": keep, "BITS": bits, "SCALE": scale}
    at = (key, sample_ids, pass_ids)
    if config is None and triton_hopper_dw.suits(gy, x, target, stride=stride, groups=groups):
        triton_hopper_dw.launch(
            *(gy, x, *at, target),
            stride=stride,
            padding=padding,
            dilation=dilation,
            keep=keep,
            bits=bits,
            scale=scale,
        )
    elif config is None and _conv.is_direct(groups, gy.shape[4] // groups):
        triton_direct.launch_dw(gy, x, *at, target, taps, groups, mask)
    else:
        _launch_tiles(gy, x, *at, target, taps, groups, mask, config)
    if partial is not None:
        with _launch.on_device_of(gy):
            launch_sum_splits(partial.flatten(2), out.flatten(1))


def _launch_tiles(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    taps: _conv.Taps,
    groups: int,
    mask: dict[str, Any],
    config: _conv.ConvConfig | None,
) -> None:
    """Write the splits of the weight gradient into ``out`` [splits, N, KH, KW, C / groups]."""
    P, B, OH, OW, N = gy.shape
    H, W = x.shape[2:4]
    S = sample_ids.shape[0]
    splits, C, K, outputs = out.shape[0], out.shape[4], out[0, 0].numel(), N // groups
    images = B // S
    unit = _conv.dw_unit(B, S, splits)
    units = P * S * triton.cdiv(images, unit)
    kind = _conv.precision(gy.dtype)
    positions = unit * OH * OW
    config = config or _conv.dw_config(positions, outputs, C, K, gy.dtype, kind)
    span = outputs if outputs % 32 == 0 or groups == 1 else outputs + 31
    n_tiles = triton.cdiv(span, config.outputs)
    programs = triton.cdiv(K, config.inputs) * n_tiles * groups * splits
    _conv.check_sizes(positions, programs)
    with _launch.on_device_of(gy):
        dropconnect_conv2d_dw_kernel[(programs,)](
            gy,
            x,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            images,
            unit,
            units,
            triton.cdiv(units, splits),
            H,
            W,
            OH,
            OW,
            N,
            outputs,
            groups,
            n_tiles,
            *_conv.divisor(OH),
            *_conv.divisor(OW),
            *gy.stride()[:4],
            *x.stride()[:4],
            sample_ids.stride(0),
            pass_ids.stride(0),
            C=C,
            **taps._asdict(),
            **mask,
            PRECISION=kind,
            ACC=_launch.accumulator(gy.dtype),
            WIDE=_conv.is_wide(gy) or _conv.is_wide(x),
            ONE=unit == 1,
            TAP=C % config.inputs == 0,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            num_warps=config.warps,
            num_stages=config.stages,
        )
