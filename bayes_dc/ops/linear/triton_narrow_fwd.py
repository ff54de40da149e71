"""DropConnect linear with few outputs and masks shared by R rows, forward, on tensor cores.

    y[g, r, n] = s · Σ_z Σ_(k in range z) D[g, n, k] · W[n, k] · x[g, r, k] + b[n]

Shapes      x [P, S, R, K], any strides; W [N, K] with N ≤ 32; b [N] or null; out [P, S, R, N]; g
            counts the P·S groups.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), applied to the weights by
            selection.
Grid        cdiv(R, BR) · P·S programs. A head of ten classes has one tile of outputs: products of
            one range of inputs after the other would wait for each other, here a warp has its own
            range and all are read at once.
Precision   products in the input type (float32: PRECISION), sums in float32; s, b and the epilogue
            (_epilogue.py) applied once, at the end.
Order       k ascends in each of Z ranges, whose sums are added in a fixed order: a function of N, K
            and the type. No atomics: `out` repeats bit for bit.
Cost        2·M·BN·K operations, and one mask for every BR rows.
Limits      K < 2**31 − Z·BK, R < 2**31 − BR; row offsets are int64.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _grouped, _launch, _parts
from bayes_dc.ops._tiles import finish, group_ids, product
from bayes_dc.rng.device import mask_words

_RUNTIME = ("S", "stride_xk", "stride_wk", "stride_b", "stride_sample", "stride_pass", "stride_on")


@triton.jit
def _kept(
    k0, k1, first, sample, step, KEEP: tl.constexpr, BITS: tl.constexpr, Z: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Whether weight (n, k) of each range's inputs from ``first`` [Z] on is kept, [Z, BN, BK]."""
    zero = tl.zeros([Z, BK // 4], tl.int32)
    k4 = first[:, None] // 4 + tl.arange(0, BK // 4)[None, :] + zero
    d0, d1, d2, d3 = mask_words(
        k0, k1, k4.to(tl.uint32), zero.to(tl.uint32), sample + zero.to(tl.uint32), step, KEEP, BITS
    )
    # join appends a dimension: [..., i, j] of the outer and inner one is word 2 i + j.
    words = tl.reshape(tl.join(tl.join(d0, d2), tl.join(d1, d3)), [Z, BK])
    n = tl.arange(0, BN)[None, :, None].to(tl.uint32)
    return ((words[:, None, :] >> n) & 1) != 0


@triton.jit(do_not_specialize=_RUNTIME)
def narrow_linear_fwd_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    N,
    K,
    stride_xp,
    stride_xs,
    stride_xr,
    stride_xk,
    stride_wn,
    stride_wk,
    stride_b,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    stride_on,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT_X: tl.constexpr,
    UNIT_W: tl.constexpr,
    Z: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
):
    """All outputs of BR rows of one group."""
    r_tiles = tl.cdiv(R, BR)
    pid = tl.program_id(0)
    pr = pid % r_tiles
    p, s, sample, step = group_ids(
        pid // r_tiles, S, sample_ptr, pass_ptr, stride_sample, stride_pass
    )
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    n = tl.arange(0, BN)
    r = pr * BR + tl.arange(0, BR)
    length = tl.cdiv(K, Z * BK) * BK
    begin = tl.arange(0, Z) * length
    next_x = 1 if UNIT_X else stride_xk
    next_w = 1 if UNIT_W else stride_wk
    x = x_ptr + p * stride_xp + s * stride_xs + r.to(tl.int64)[None, :, None] * stride_xr
    w = w_ptr + n.to(tl.int64)[None, :, None] * stride_wn
    acc = tl.zeros([Z, BN, BR], tl.float32)
    for first in range(0, length, BK):
        k = (begin[:, None] + first + tl.arange(0, BK)[None, :])[:, None, :]
        weights = tl.load(
            w + k.to(tl.int64) * next_w, mask=(n[None, :, None] < N) & (k < K), other=0
        )
        rows = tl.load(x + k.to(tl.int64) * next_x, mask=(r[None, :, None] < R) & (k < K), other=0)
        kept = _kept(k0, k1, begin + first, sample, step, KEEP, BITS, Z, BN, BK)
        weights = tl.where(kept, weights, 0).to(weights.dtype)
        acc = product(weights, tl.permute(rows, (0, 2, 1)), acc, PRECISION)
    y = tl.sum(acc, axis=0) * SCALE
    if HAS_BIAS:
        b = tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=n < N, other=0)
        y += b.to(tl.float32)[:, None]
    y = finish(y, factors_ptr, summands_ptr, n, n < N, EPILOGUE, False)
    out = out_ptr + p * stride_op + s * stride_os
    out += r.to(tl.int64)[None, :] * stride_or + n.to(tl.int64)[:, None] * stride_on
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=(r[None, :] < R) & (n[:, None] < N))


def launch(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    config: _parts.NarrowConfig,
    ending: dict[str, object] | None = None,
) -> None:
    """Write the forward into ``out``; no dimension is 0 but K, and N at most ``config.outputs``.

    ``ending``: of ``_epilogue.options``.
    """
    P, S, R, K = x.shape
    N = w.shape[0]
    grid = (triton.cdiv(R, config.rows) * P * S,)
    with _launch.on_device_of(x):
        narrow_linear_fwd_kernel[grid](
            x,
            w,
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            N,
            K,
            *x.stride(),
            *w.stride(),
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            HAS_BIAS=bias is not None,
            PRECISION=_grouped.precision(x.dtype),
            UNIT_X=x.stride(3) == 1,
            UNIT_W=w.stride(1) == 1,
            Z=config.ranges,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            **(ending or {}),
            num_warps=config.ranges,
            num_stages=1,
        )
