"""DropConnect convolution with narrow groups of channels (depthwise: one each).

There are no matrix products: a tile takes outputs, or channels, of many groups side by side.
The three launchers write what ``triton_fwd``, ``triton_dx`` and ``triton_dw`` write.

Shapes      as there.
Mask        words of rng/SPEC.md v1, made for every output (dx: every channel and output).
Grid        fwd, dx: tiles of channels (fastest) · of positions · P·S; dw: weights of an output
            (fastest) · tiles of outputs · splits.
Precision   products and sums in float32 (float64 for float64); s and bias once, at the end.
Order       fwd: k ascends; dx: taps, then outputs of the group, ascend; dw: units ascend in a
            split, splits in a second kernel, a unit is added up in a tile of fixed shape.
Cost        P·B·OH·OW · N · K masked multiply-adds, each with a load.
Limits      as there.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _conv, _launch
from bayes_dc.ops._tiles import finish, group_ids
from bayes_dc.ops.conv2d.triton_patches import (
    find_group,
    find_positions,
    inside,
    keep_at,
    offset_of,
)

_RUNTIME = (
    *("S", "images", "unit", "units", "chunk", "H", "W", "OH", "OW", "N", "outputs"),
    *("magic_h", "shift_h", "magic_w", "shift_w"),
    *("tiles", "r_tiles", "stride_b", "stride_sample", "stride_pass"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def direct_fwd_kernel(
    x_ptr, w_ptr, b_ptr, key_ptr, sample_ptr, pass_ptr, out_ptr,
    S, images, H, W, OH, OW, N, outputs, tiles, r_tiles, magic_h, shift_h, magic_w, shift_w,
    stride_xp, stride_xb, stride_xh, stride_xw, stride_b, stride_sample, stride_pass,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KEEP: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACC: tl.constexpr, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    factors_ptr=None, summands_ptr=None, EPILOGUE: tl.constexpr = 0,
):  # fmt: skip
    """BN outputs of BR positions of one mask group."""
    K: tl.constexpr = KH * KW * C
    pid = tl.program_id(0)
    g = pid // tiles // r_tiles
    p, s, k0, k1, sample, step = find_group(
        g, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass, BITS
    )
    image, i, j, there = find_positions(
        pid // tiles % r_tiles * BR, images, OH, OW, magic_h, shift_h, magic_w, shift_w, False, BR
    )
    n = pid % tiles * BN + tl.arange(0, BN)
    x = x_ptr + p * stride_xp + (s * images + image) * stride_xb
    channel = n // outputs * C
    w = w_ptr + n.to(tl.int64) * K
    acc = tl.zeros([BR, BN], ACC)
    for k in range(0, K):
        tap = k // C
        down = i * SH - PH + tap // KW * DH
        right = j * SW - PW + tap % KW * DW
        line = offset_of(down, right, stride_xh, stride_xw, WIDE) + (k - tap * C)
        seen = there & inside(down, right, H, W)
        rows = tl.load(
            x[:, None] + (line[:, None] + channel[None, :]),
            mask=seen[:, None] & (n < N)[None, :],
            other=0,
        )
        kept = n < N
        if BITS > 0:
            kept = keep_at(k0, k1, n, k + n * 0, sample, step, KEEP, BITS) & kept
        weights = tl.load(w + k, mask=kept, other=0)
        acc += rows.to(ACC) * weights.to(ACC)[None, :]
    acc *= SCALE
    if HAS_BIAS:
        acc += tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=n < N, other=0).to(ACC)[None, :]
    acc = finish(acc, factors_ptr, summands_ptr, n, n < N, EPILOGUE, True)
    pixel = (g.to(tl.int64) * images + image) * OH * OW + i * OW + j
    out = out_ptr + pixel[:, None] * N + n[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=there[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=_RUNTIME)
def direct_dx_kernel(
    gy_ptr, w_ptr, key_ptr, sample_ptr, pass_ptr, out_ptr,
    S, images, H, W, OH, OW, N, outputs, tiles, r_tiles, magic_h, shift_h, magic_w, shift_w,
    stride_gp, stride_gb, stride_gh, stride_gw, stride_sample, stride_pass,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KEEP: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr,
    ACC: tl.constexpr, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN input channels of BR positions of one mask group."""
    K: tl.constexpr = KH * KW * C
    pid = tl.program_id(0)
    g = pid // tiles // r_tiles
    p, s, sample, step = group_ids(g, S, sample_ptr, pass_ptr, stride_sample, stride_pass)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    image, h, column, there = find_positions(
        pid // tiles % r_tiles * BR, images, H, W, magic_h, shift_h, magic_w, shift_w, False, BR
    )
    channel = pid % tiles * BN + tl.arange(0, BN)
    first_n = channel // C * outputs
    gy = gy_ptr + p * stride_gp + (s * images + image) * stride_gb
    acc = tl.zeros([BR, BN], ACC)
    for tap in range(0, KH * KW):
        up = h + PH - tap // KW * DH
        left = column + PW - tap % KW * DW
        seen = there & (up >= 0) & (left >= 0)  # their quotients may round to 0
        seen = seen & (up % SH == 0) & (left % SW == 0) & inside(up // SH, left // SW, OH, OW)
        line = offset_of(up // SH, left // SW, stride_gh, stride_gw, WIDE)
        k = tap * C + channel % C
        for one in range(0, outputs):
            n = first_n + one
            rows = tl.load(
                gy[:, None] + (line[:, None] + n[None, :]),
                mask=seen[:, None] & (n < N)[None, :],
                other=0,
            )
            kept = keep_at(k0, k1, n, k, sample, step, KEEP, BITS)
            weights = tl.load(w_ptr + n.to(tl.int64) * K + k, mask=kept & (n < N), other=0)
            acc += rows.to(ACC) * weights.to(ACC)[None, :]
    channels = tl.cast(N // outputs, tl.int64) * C
    pixel = ((g.to(tl.int64) * images + image) * H + h) * W + column
    out = out_ptr + pixel[:, None] * channels + channel[None, :]
    seen = there[:, None] & (channel < channels)[None, :]
    tl.store(out, (acc * SCALE).to(out_ptr.dtype.element_ty), mask=seen)


@triton.jit(do_not_specialize=_RUNTIME)
def direct_dw_kernel(
    gy_ptr, x_ptr, key_ptr, sample_ptr, pass_ptr, out_ptr,
    S, images, unit, units, chunk, H, W, OH, OW, N, outputs, tiles,
    magic_h, shift_h, magic_w, shift_w,
    stride_gp, stride_gb, stride_gh, stride_gw, stride_xp, stride_xb, stride_xh, stride_xw,
    stride_sample, stride_pass,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    KEEP: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr,
    ACC: tl.constexpr, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Weight k of BN outputs over one run of ``chunk`` units of ``unit`` images."""
    K: tl.constexpr = KH * KW * C
    pid = tl.program_id(0)
    k = pid % K
    pz = pid // K // tiles
    n = pid // K % tiles * BN + tl.arange(0, BN)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    tap = k // C
    down = tap // KW * DH - PH
    right = tap % KW * DW - PW
    channel = n // outputs * C + (k - tap * C)
    per_group = tl.cdiv(images, unit)
    total = tl.zeros([BN], ACC)
    for u in range(pz * chunk, tl.minimum(pz * chunk + chunk, units)):
        p, s, sample, step = group_ids(
            u // per_group, S, sample_ptr, pass_ptr, stride_sample, stride_pass
        )
        first_image = u % per_group * unit
        count = tl.minimum(unit, images - first_image)
        gy = gy_ptr + p * stride_gp + (s * images + first_image) * stride_gb
        x = x_ptr + p * stride_xp + (s * images + first_image) * stride_xb
        acc = tl.zeros([BR, BN], ACC)
        for first in range(0, count * OH * OW, BR):
            image, i, j, there = find_positions(
                first, count, OH, OW, magic_h, shift_h, magic_w, shift_w, False, BR
            )
            rows = gy + image.to(tl.int64) * stride_gb
            rows += offset_of(i, j, stride_gh, stride_gw, WIDE)
            here = there[:, None] & (n < N)[None, :]
            one = tl.load(rows[:, None] + n[None, :], mask=here, other=0)
            rows = x + image.to(tl.int64) * stride_xb
            rows += offset_of(i * SH + down, j * SW + right, stride_xh, stride_xw, WIDE)
            here = here & inside(i * SH + down, j * SW + right, H, W)[:, None]
            other = tl.load(rows[:, None] + channel[None, :], mask=here, other=0)
            acc += one.to(ACC) * other.to(ACC)
        kept = keep_at(k0, k1, n, k + n * 0, sample, step, KEEP, BITS)
        total += tl.where(kept, tl.sum(acc, 0), 0.0)
    out = out_ptr + (pz.to(tl.int64) * N + n) * K + k
    tl.store(out, (total * SCALE).to(out_ptr.dtype.element_ty), mask=n < N)


def _options(t: Tensor, taps: _conv.Taps, wide: bool) -> dict[str, Any]:
    """Constants of the three kernels that the tensors and taps decide."""
    sizes = {"BR": 64, "BN": 32 if _conv.INTERPRETED else 64}
    return {**taps._asdict(), "ACC": _launch.accumulator(t.dtype), "WIDE": wide, **sizes}


def launch_fwd(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor | None,
    sample_ids: Tensor | None,
    pass_ids: Tensor | None,
    out: Tensor,
    taps: _conv.Taps,
    groups: int,
    mask: dict[str, Any],
    ending: dict[str, Any],
) -> None:
    """Write the forward into ``out``; no tensor is empty. Without ids nothing is dropped."""
    P, B, H, W, _ = x.shape
    OH, OW, N = out.shape[2:]
    S = 1 if sample_ids is None else sample_ids.shape[0]
    options = _options(x, taps, _conv.is_wide(x))
    tiles = triton.cdiv(N, options["BN"])
    r_tiles = triton.cdiv(B // S * OH * OW, options["BR"])
    _conv.check_sizes(B // S * OH * OW, tiles * r_tiles * P * S)
    numbers = (*_conv.divisor(OH), *_conv.divisor(OW))
    sizes = (S, B // S, H, W, OH, OW, N, N // groups, tiles, r_tiles, *numbers)
    strides = (t.stride(0) if t is not None else 0 for t in (bias, sample_ids, pass_ids))
    tensors = (w if t is None else t for t in (bias, key, sample_ids, pass_ids))
    with _launch.on_device_of(x):
        direct_fwd_kernel[(tiles * r_tiles * P * S,)](
            *(x, w, *tensors, out),
            *sizes,
            *x.stride()[:4],
            *strides,
            C=w.shape[3],
            HAS_BIAS=bias is not None,
            **mask,
            **options,
            **ending,
        )


def launch_dx(
    gy: Tensor,
    w: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    taps: _conv.Taps,
    groups: int,
    mask: dict[str, Any],
) -> None:
    """Write the input gradient into ``out``; no tensor is empty."""
    P, B, OH, OW, N = gy.shape
    H, W, channels = out.shape[2:]
    S = sample_ids.shape[0]
    options = _options(gy, taps, _conv.is_wide(gy))
    tiles = triton.cdiv(channels, options["BN"])
    r_tiles = triton.cdiv(B // S * H * W, options["BR"])
    _conv.check_sizes(B // S * H * W, tiles * r_tiles * P * S)
    numbers = (*_conv.divisor(H), *_conv.divisor(W))
    sizes = (S, B // S, H, W, OH, OW, N, N // groups, tiles, r_tiles, *numbers)
    strides = (*gy.stride()[:4], sample_ids.stride(0), pass_ids.stride(0))
    tensors = (gy, w, key, sample_ids, pass_ids, out)
    with _launch.on_device_of(gy):
        direct_dx_kernel[(tiles * r_tiles * P * S,)](
            *tensors, *sizes, *strides, C=w.shape[3], **mask, **options
        )


def launch_dw(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    taps: _conv.Taps,
    groups: int,
    mask: dict[str, Any],
) -> None:
    """Write the splits of the weight gradient into ``out`` [splits, N, …]; no tensor is empty."""
    P, B, OH, OW, N = gy.shape
    H, W = x.shape[2:4]
    S, splits = sample_ids.shape[0], out.shape[0]
    options = _options(gy, taps, _conv.is_wide(gy) or _conv.is_wide(x))
    unit = _conv.dw_unit(B, S, splits)
    units = P * S * triton.cdiv(B // S, unit)
    tiles = triton.cdiv(N, options["BN"])
    programs = out[0, 0].numel() * tiles * splits
    _conv.check_sizes(unit * OH * OW, programs)
    sizes = (S, B // S, unit, units, triton.cdiv(units, splits), H, W, OH, OW, N, N // groups)
    sizes = (*sizes, tiles, *_conv.divisor(OH), *_conv.divisor(OW))
    strides = (*gy.stride()[:4], *x.stride()[:4], sample_ids.stride(0), pass_ids.stride(0))
    with _launch.on_device_of(gy):
        direct_dw_kernel[(programs,)](
            *(gy, x, key, sample_ids, pass_ids, out),
            *sizes,
            *strides,
            C=out.shape[4],
            **mask,
            **options,
        )
