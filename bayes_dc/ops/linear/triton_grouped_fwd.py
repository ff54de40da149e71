"""DropConnect linear with masks shared by R rows, forward, on tensor cores.

    y[g, r, n] = s · Σ_k D[g, n, k] · W[n, k] · x[g, r, k] + b[n]

Shapes      x [P, S, R, K], any strides (0 over P shares the input); W [N, K]; b [N] or null;
            out [P, S, R, N]; g counts the P·S groups.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), applied to the weight tile by
            selection.
Grid        cdiv(N, BN) · cdiv(R, BR) · P·S programs, outputs fastest: the tiles of one group meet
            in the cache.
Precision   products in the input type (float32: PRECISION), sums in float32; s, b and the epilogue
            (_epilogue.py) applied once, at the end.
Order       k ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        2·M·N·K operations, and one mask of N·K bits for every BR rows.
Limits      N < 2**29, K < 2**31, R < 2**31 − BR; row offsets are int64.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _epilogue, _grouped, _launch, _parts
from bayes_dc.ops._tiles import finish, group_ids, keep_tile, product
from bayes_dc.ops.linear import triton_narrow_fwd, triton_wgmma_gemm, triton_wgmma_parts

_RUNTIME = ("S", "stride_xk", "stride_wk", "stride_b", "stride_sample", "stride_pass", "stride_on")


@triton.jit(do_not_specialize=_RUNTIME)
def grouped_linear_fwd_kernel(
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
    UNIT_OUT: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
):
    """BN outputs of BR rows of one group."""
    n_tiles = tl.cdiv(N, BN)
    r_tiles = tl.cdiv(R, BR)
    pid = tl.program_id(0)
    pn = pid % n_tiles
    pr = pid // n_tiles % r_tiles
    p, s, sample, step = group_ids(
        pid // n_tiles // r_tiles, S, sample_ptr, pass_ptr, stride_sample, stride_pass
    )
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    n = pn * BN + tl.arange(0, BN)
    r = pr * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    next_x = 1 if UNIT_X else stride_xk
    next_w = 1 if UNIT_W else stride_wk
    x = x_ptr + p * stride_xp + s * stride_xs
    x += r.to(tl.int64)[:, None] * stride_xr + k.to(tl.int64)[None, :] * next_x
    w = w_ptr + n.to(tl.int64)[:, None] * stride_wn + k.to(tl.int64)[None, :] * next_w
    step_x = tl.cast(next_x, tl.int64) * BK
    step_w = tl.cast(next_w, tl.int64) * BK
    acc = tl.zeros([BN, BR], tl.float32)
    for first in range(0, K, BK):
        inside = (first + k)[None, :] < K
        weights = tl.load(w, mask=(n[:, None] < N) & inside, other=0)
        rows = tl.load(x, mask=(r[:, None] < R) & inside, other=0)
        kept = keep_tile(k0, k1, pn * (BN // 32), first // 4, sample, step, KEEP, BITS, BN, BK)
        weights = tl.where(kept, weights, 0).to(weights.dtype)
        acc = product(weights, tl.trans(rows), acc, PRECISION)
        x += step_x
        w += step_w
    acc *= SCALE
    if HAS_BIAS:
        b = tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=n < N, other=0)
        acc += b.to(tl.float32)[:, None]
    acc = finish(acc, factors_ptr, summands_ptr, n, n < N, EPILOGUE, False)
    next_out = 1 if UNIT_OUT else stride_on
    out = out_ptr + p * stride_op + s * stride_os
    out += r.to(tl.int64)[:, None] * stride_or + n.to(tl.int64)[None, :] * next_out
    values = tl.trans(acc).to(out_ptr.dtype.element_ty)
    tl.store(out, values, mask=(r[:, None] < R) & (n[None, :] < N))


def launch_fwd(
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
    config: _grouped.GroupedConfig | _parts.PartsConfig | _parts.NarrowConfig | None = None,
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
) -> None:
    """Write the forward into ``out``; see ``bayes_dc.ops.linear.reference.forward``.

    ``epilogue``: see ``_epilogue.Epilogue``.
    """
    P, S, R, K = x.shape
    N = w.shape[0]
    if P * S * R == 0 or N == 0:
        return
    ending = _epilogue.options(epilogue, out)
    operands = (x, w, bias, key, sample_ids, pass_ids, out)
    options: dict[str, Any] = {"keep": keep, "bits": bits, "scale": scale, "ending": ending}
    if config is None:
        config = _parts.fwd_config(P, S, R, N, K, x.stride(0) == 0, x.dtype, x.device)
    if isinstance(config, _parts.NarrowConfig):
        triton_narrow_fwd.launch(*operands, **options, config=config)
        return
    if isinstance(config, _parts.PartsConfig):
        if triton_wgmma_parts.suits(x, w, out, config):
            triton_wgmma_parts.launch(*operands, **options, config=config)
            return
        config = None
    chosen = config or _grouped.fwd_config(P * S, R, N, K, x.dtype, x.device)
    if triton_wgmma_gemm.suits(x, w, out, chosen, transposed=False):
        triton_wgmma_gemm.launch(*operands, **options, transposed=False, config=chosen)
        return
    config = config or _grouped.for_portable_kernel(
        "linear_grouped_fwd", chosen, R, x.dtype, x.device
    )
    grid = (triton.cdiv(N, config.outputs) * triton.cdiv(R, config.rows) * P * S,)
    with _launch.on_device_of(x):
        grouped_linear_fwd_kernel[grid](
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
            UNIT_OUT=out.stride(3) == 1,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            **ending,
            num_warps=config.warps,
            num_stages=config.stages,
        )
