"""DropConnect convolution, forward: an implicit matrix product with masked weights.

    y[p, b, i, j, n] = s · Σ_k D[g, n, k] · W[n, k] · x[p, b, i·sh + kh·dh − ph, …, c] + bias[n]

Shapes      x [P, B, H, W, C], channels contiguous, other strides any (0 over P shares the images);
            W [N, KH, KW, C / groups] contiguous; bias [N] or null; out [P, B, OH, OW, N]
            contiguous. g counts the P·S mask groups, each of B / S images.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), k = (kh, kw, c), applied to the
            weight tile by selection; none at BITS = 0.
Grid        tiles of outputs (fastest) · tiles of positions · groups of channels · P·S.
Tile        TAP: a step is some channels of one tap, read in vectors. Otherwise k runs through taps
            and channels, and x is gathered; where all of k is one tile (WHOLE), its weights are
            masked once for TILES tiles of positions.
Precision   products in the input type (float32: PRECISION), sums in float32 (float64 for float64);
            s, bias and epilogue (_epilogue.py) applied once, at the end.
            Float32 without TensorFloat-32: a sum for each product of tiles, then of those.
Order       k ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        2 · P·B·OH·OW · N · K operations, and a mask of N·K bits for every BR · TILES rows.
Limits      N < 2**29, K < 2**31, positions of a group and programs < 2**31 − 2**16.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _conv, _epilogue, _launch
from bayes_dc.ops.conv2d import triton_direct, triton_few, triton_hopper_gemm
from bayes_dc.ops.conv2d.triton_patches import (
    find_group,
    find_positions,
    inside,
    load_patches,
    mask_weights,
    multiply_tiles,
    offset_of,
    store_tile,
)

_RUNTIME = (
    *("S", "images", "H", "W", "OH", "OW", "groups", "n_tiles", "r_tiles"),
    *("magic_h", "shift_h", "magic_w", "shift_w"),
    *("stride_b", "stride_sample", "stride_pass"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_conv2d_fwd_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
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
    N,
    outputs,
    groups,
    n_tiles,
    r_tiles,
    magic_h,
    shift_h,
    magic_w,
    shift_w,
    stride_xp,
    stride_xb,
    stride_xh,
    stride_xw,
    stride_b,
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
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    ONE: tl.constexpr,
    TAP: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
    TILES: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
):
    """BN outputs of BR · TILES positions of one mask group; TILES is 1 but for WHOLE."""
    K: tl.constexpr = KH * KW * C
    pid = tl.program_id(0)
    pn = pid % n_tiles
    pr = pid // n_tiles % r_tiles
    q = pid // n_tiles // r_tiles % groups
    g = pid // n_tiles // r_tiles // groups
    p, s, k0, k1, sample, step = find_group(
        g, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass, BITS
    )
    # A tile starts with a word, if need be before the group's first output.
    first_n32 = q * outputs // 32 + pn * (BN // 32)
    n = first_n32 * 32 + tl.arange(0, BN)
    of_group = (n >= q * outputs) & (n < q * outputs + outputs)
    k = tl.arange(0, BK)
    w = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    x_group = x_ptr + p * stride_xp + s * images * stride_xb + q.to(tl.int64) * C
    first_image = g.to(tl.int64) * images
    area = tl.cast(OH, tl.int64) * OW
    if WHOLE:
        weights = tl.load(w, mask=of_group[:, None] & (k < K)[None, :], other=0)
        weights = mask_weights(
            weights, k0, k1, first_n32, 0, sample, step,
            KEEP, BITS, PRECISION, PAIRS, True, BN, BK,
        )  # fmt: skip
        last = tl.minimum(pr * TILES + TILES, tl.cdiv(images * OH * OW, BR))
        for tile in range(pr * TILES, last):
            image, i, j, there = find_positions(
                tile * BR, images, OH, OW, magic_h, shift_h, magic_w, shift_w, ONE, BR
            )
            rows = load_patches(
                x_group + image.to(tl.int64) * stride_xb, there, i * SH - PH, j * SW - PW,
                H, W, stride_xh, stride_xw, k, K, DH, DW, KW, C, WIDE,
            )  # fmt: skip
            acc = tl.zeros([BR, BN] if ROWS_FIRST else [BN, BR], ACC)
            acc = multiply_tiles(weights, rows, acc, PRECISION, ROWS_FIRST)
            store_tile(
                out_ptr, acc, first_image + image, i * OW + j, there, n, of_group, b_ptr, stride_b,
                N, area, factors_ptr, summands_ptr, SCALE, HAS_BIAS, ROWS_FIRST, EPILOGUE,
            )  # fmt: skip
    else:
        image, i, j, there = find_positions(
            pr * BR, images, OH, OW, magic_h, shift_h, magic_w, shift_w, ONE, BR
        )
        x = x_group + image.to(tl.int64) * stride_xb
        acc = tl.zeros([BR, BN] if ROWS_FIRST else [BN, BR], ACC)
        for first in range(0, K, BK):
            if TAP:
                tap = first // C
                down = i * SH - PH + tap // KW * DH
                right = j * SW - PW + tap % KW * DW
                line = offset_of(down, right, stride_xh, stride_xw, WIDE)
                seen = there & inside(down, right, H, W)
                rows = tl.load(
                    x[:, None] + (line[:, None] + (first - tap * C + k)[None, :]),
                    mask=seen[:, None],
                    other=0,
                )
                weights = tl.load(w + first, mask=of_group[:, None], other=0)
            else:
                rows = load_patches(
                    x, there, i * SH - PH, j * SW - PW, H, W, stride_xh, stride_xw, first + k, K,
                    DH, DW, KW, C, WIDE,
                )  # fmt: skip
                seen = of_group[:, None] & (first + k < K)[None, :]
                weights = tl.load(w + first, mask=seen, other=0)
            weights = mask_weights(
                weights, k0, k1, first_n32, first, sample, step,
                KEEP, BITS, PRECISION, PAIRS, True, BN, BK,
            )  # fmt: skip
            acc = multiply_tiles(weights, rows, acc, PRECISION, ROWS_FIRST)
        store_tile(
            out_ptr, acc, first_image + image, i * OW + j, there, n, of_group, b_ptr, stride_b,
            N, area, factors_ptr, summands_ptr, SCALE, HAS_BIAS, ROWS_FIRST, EPILOGUE,
        )  # fmt: skip


def launch_fwd(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor | None,
    sample_ids: Tensor | None,
    pass_ids: Tensor | None,
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
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
    pool: bool = False,
) -> None:
    """Write the forward into ``out``; see ``bayes_dc.ops.conv2d.reference.forward``.

    With ``bits`` = 0 nothing is dropped: key and ids are not read, and may be None.
    ``epilogue``: see ``_epilogue.Epilogue``. ``pool``: ``out`` takes the largest of 2 × 2 results,
    where ``triton_few.suits`` says that this is possible.
    """
    P, B, H, W, _ = x.shape
    _, _, OH, OW, N = out.shape
    if bits == 0:
        key = sample_ids = pass_ids = None
    S = 1 if sample_ids is None else sample_ids.shape[0]
    C, outputs, K = w.shape[3], N // groups, w[0].numel() if N else 0
    if out.numel() == 0:
        return
    if K == 0:
        out.copy_(bias.expand_as(out)) if bias is not None else out.zero_()
        _epilogue.in_place(epilogue, out)
        return
    at = (key, sample_ids, pass_ids)
    ending = _epilogue.options(epilogue, out)
    call: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    call |= {"keep": keep, "bits": bits, "scale": scale, "ending": ending}
    if pool or (config is None and triton_few.suits(w, groups, x.device)):
        triton_few.launch(x, w, bias, *at, out, **call, pool=pool)
        return
    if config is None and triton_hopper_gemm.suits(
        x, w, out, stride=stride, dilation=dilation, groups=groups, transposed=False
    ):
        triton_hopper_gemm.launch(x, w, bias, *at, out, **call, transposed=False)
        return
    taps = _conv.taps(w, stride, padding, dilation)
    mask = {"KEEP": keep, "BITS": bits, "SCALE": scale}
    if config is None and _conv.is_direct(groups, outputs):
        triton_direct.launch_fwd(x, w, bias, *at, out, taps, groups, mask, ending)
        return
    images = B // S
    positions = images * OH * OW
    kind = _conv.precision(x.dtype)
    config = config or _conv.fwd_config(positions, outputs, C, K, x.dtype, kind)
    whole = config.inputs >= K
    # Groups that start within a word reach into one tile more.
    span = outputs if outputs % 32 == 0 or groups == 1 else outputs + 31
    n_tiles = triton.cdiv(span, config.outputs)
    tiles = config.tiles if whole else 1
    r_tiles = triton.cdiv(positions, config.rows * tiles)
    programs = n_tiles * r_tiles * groups * P * S
    _conv.check_sizes(positions, programs)
    with _launch.on_device_of(x):
        dropconnect_conv2d_fwd_kernel[(programs,)](
            x,
            w,
            bias if bias is not None else w,
            *(w if t is None else t for t in at),
            out,
            S,
            images,
            H,
            W,
            OH,
            OW,
            N,
            outputs,
            groups,
            n_tiles,
            r_tiles,
            *_conv.divisor(OH),
            *_conv.divisor(OW),
            *x.stride()[:4],
            bias.stride(0) if bias is not None else 0,
            *(t.stride(0) if t is not None else 0 for t in at[1:]),
            C=C,
            **taps._asdict(),
            **mask,
            **ending,
            HAS_BIAS=bias is not None,
            PRECISION=kind,
            ACC=_launch.accumulator(x.dtype),
            PAIRS=_conv.masks_pairs(x),
            WIDE=_conv.is_wide(x),
            ONE=images == 1,
            TAP=C % config.inputs == 0,
            WHOLE=whole,
            ROWS_FIRST=bool(config.rows_first),
            TILES=tiles,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            num_warps=config.warps,
            num_stages=config.stages,
        )
