"""DropConnect convolution, input gradient: an implicit matrix product with masked weights.

    dx[p, b, h, w, c] = s · Σ_(kh, kw, n) D[g, n, k] · W[n, k] · dy[p, b, i, j, n]
    over the taps with i · sh = h + ph − kh · dh and j · sw = w + pw − kw · dw, k = (kh, kw, c)

Shapes      dy [P, B, OH, OW, N], channels contiguous, other strides any; W [N, KH, KW, C / groups]
            contiguous; out [P, B, H, W, C] contiguous. g counts the P·S mask groups.
Mask        words of rng/SPEC.md v1, made again on the weight tile. Their bits lie along the
            contraction.
Grid        tiles of channels (fastest) · of positions · phases · groups of channels · P·S. The
            positions of a phase, h mod sh and w mod sw, meet the same taps: no product is with 0
            because of a stride.
Precision   products in the input type (float32: PRECISION), sums in float32 (float64 for float64);
            s applied once, at the end.
            Float32 without TensorFloat-32: a sum for each product of tiles, then of those.
Order       taps, then n, ascend inside one program: no atomics, no split; `out` repeats bit
            for bit.
Cost        as the forward.
Limits      as the forward.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _conv, _launch
from bayes_dc.ops._tiles import group_ids
from bayes_dc.ops.conv2d import triton_direct, triton_hopper_gemm
from bayes_dc.ops.conv2d.triton_patches import (
    find_positions,
    first_tap,
    inside,
    mask_weights,
    multiply_tiles,
    offset_of,
)

_RUNTIME = (
    *("S", "images", "H", "W", "OH", "OW", "groups", "c_tiles", "r_tiles"),
    *("magic_h", "shift_h", "magic_w", "shift_w"),
    *("stride_sample", "stride_pass"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_conv2d_dx_kernel(
    gy_ptr,
    w_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    images,
    H,
    W,
    OH,
    OW,
    outputs,
    groups,
    c_tiles,
    r_tiles,
    magic_h,
    shift_h,
    magic_w,
    shift_w,
    stride_gp,
    stride_gb,
    stride_gh,
    stride_gw,
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
    STEP_H: tl.constexpr,
    STEP_W: tl.constexpr,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    ONE: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """BC input channels of BR positions of one phase of one mask group."""
    K: tl.constexpr = KH * KW * C
    pid = tl.program_id(0)
    pc = pid % c_tiles
    pr = pid // c_tiles % r_tiles
    rest = pid // c_tiles // r_tiles
    phase = rest % (SH * SW)
    q = rest // (SH * SW) % groups
    g = rest // (SH * SW) // groups
    p, s, sample, step = group_ids(g, S, sample_ptr, pass_ptr, stride_sample, stride_pass)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    phase_h = phase // SW
    phase_w = phase % SW
    image, i, j, there = find_positions(
        pr * BR, images, tl.cdiv(H, SH), tl.cdiv(W, SW), magic_h, shift_h, magic_w, shift_w, ONE, BR
    )
    h = phase_h + i * SH
    column = phase_w + j * SW
    there = there & (h < H) & (column < W)
    c = pc * BC + tl.arange(0, BC)
    # Tiles of outputs start with a word, if need be before the group's first output.
    first_n32 = q * outputs // 32
    n_end = q * outputs + outputs
    n_tiles = tl.cdiv(n_end - first_n32 * 32, BN)
    first_h = first_tap(phase_h, PH, SH, DH, STEP_H, KH)
    first_w = first_tap(phase_w, PW, SW, DW, STEP_W, KW)
    taps_w = tl.cdiv(KW - first_w, STEP_W)
    taps = tl.cdiv(KH - first_h, STEP_H) * taps_w
    gy = gy_ptr + p * stride_gp + (s * images + image) * stride_gb
    acc = tl.zeros([BR, BC] if ROWS_FIRST else [BC, BR], ACC)
    for index in range(0, taps * n_tiles):
        tap = index // n_tiles
        pn = index - tap * n_tiles
        kh = first_h + tap // taps_w * STEP_H
        kw = first_w + tap % taps_w * STEP_W
        up = i + (phase_h + PH - kh * DH) // SH
        left = j + (phase_w + PW - kw * DW) // SW
        n = (first_n32 + pn * (BN // 32)) * 32 + tl.arange(0, BN)
        of_group = (n >= q * outputs) & (n < n_end)
        line = offset_of(up, left, stride_gh, stride_gw, WIDE)
        seen = there & inside(up, left, OH, OW)
        rows = tl.load(
            gy[:, None] + (line[:, None] + n[None, :]),
            mask=seen[:, None] & of_group[None, :],
            other=0,
        )
        first_k = (kh * KW + kw) * C
        w = w_ptr + n.to(tl.int64)[:, None] * K + (first_k + c)[None, :]
        weights = tl.load(w, mask=of_group[:, None] & (c < C)[None, :], other=0)
        weights = mask_weights(
            weights, k0, k1, first_n32 + pn * (BN // 32), first_k + pc * BC, sample, step,
            KEEP, BITS, PRECISION, PAIRS, C % 4 == 0, BN, BC,
        )  # fmt: skip
        acc = multiply_tiles(tl.trans(weights), rows, acc, PRECISION, ROWS_FIRST)
    values = acc * SCALE
    if not ROWS_FIRST:
        values = tl.trans(values)
    channels = tl.cast(C, tl.int64) * groups
    out = out_ptr + (g.to(tl.int64) * images + image) * H * W * channels
    out += (h.to(tl.int64) * W + column) * channels + q * C
    seen = there[:, None] & (c < C)[None, :]
    tl.store(out[:, None] + c[None, :], values.to(out_ptr.dtype.element_ty), mask=seen)


def launch_dx(
    gy: Tensor,
    w: Tensor,
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
    config: _conv.ConvConfig | None = None,
) -> None:
    """Write the input gradient into ``out``; see ``bayes_dc.ops.conv2d.reference.grad_input``."""
    P, B, OH, OW, N = gy.shape
    H, W = out.shape[2:4]
    S = sample_ids.shape[0]
    C, outputs = w.shape[3], N // groups
    if out.numel() == 0:
        return
    if gy.numel() == 0 or w.numel() == 0:
        out.zero_()
        return
    at = (key, sample_ids, pass_ids)
    if config is None and triton_hopper_gemm.suits(
        gy, w, out, stride=stride, dilation=dilation, groups=groups, transposed=True
    ):
        triton_hopper_gemm.launch(
            *(gy, w, None, *at, out),
            stride=stride,
            padding=padding,
            dilation=dilation,
            keep=keep,
            bits=bits,
            scale=scale,
            transposed=True,
        )
        return
    taps = _conv.taps(w, stride, padding, dilation)
    mask = {"KEEP": keep, "BITS": bits, "SCALE": scale}
    if config is None and _conv.is_direct(groups, outputs):
        triton_direct.launch_dx(gy, w, *at, out, taps, groups, mask)
        return
    images = B // S
    height, width = triton.cdiv(H, taps.SH), triton.cdiv(W, taps.SW)  # of a phase
    positions = images * height * width
    kind = _conv.precision(gy.dtype)
    config = config or _conv.dx_config(positions, outputs, C, gy.dtype, kind)
    c_tiles = triton.cdiv(C, config.inputs)
    r_tiles = triton.cdiv(positions, config.rows)
    programs = c_tiles * r_tiles * taps.SH * taps.SW * groups * P * S
    _conv.check_sizes(positions, programs)
    step_h, step_w = taps.steps
    with _launch.on_device_of(gy):
        dropconnect_conv2d_dx_kernel[(programs,)](
            gy,
            w,
            *at,
            out,
            S,
            images,
            H,
            W,
            OH,
            OW,
            outputs,
            groups,
            c_tiles,
            r_tiles,
            *_conv.divisor(height),
            *_conv.divisor(width),
            *gy.stride()[:4],
            sample_ids.stride(0),
            pass_ids.stride(0),
            C=C,
            **taps._asdict(),
            STEP_H=step_h,
            STEP_W=step_w,
            **mask,
            PRECISION=kind,
            ACC=_launch.accumulator(gy.dtype),
            PAIRS=_conv.masks_pairs(gy),
            WIDE=_conv.is_wide(gy),
            ONE=images == 1,
            ROWS_FIRST=bool(config.rows_first),
            BR=config.rows,
            BN=config.outputs,
            BC=config.inputs,
            num_warps=config.warps,
            num_stages=config.stages,
        )
