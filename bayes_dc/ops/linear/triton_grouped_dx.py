"""DropConnect linear with masks shared by R rows, input gradient, on tensor cores.

    dx[g, r, k] = s · Σ_n D[g, n, k] · W[n, k] · dy[g, r, n]

Shapes      dy [P, S, R, N], any strides; W [N, K]; out [P, S, R, K]; g counts the P·S groups.
Mask        words of rng/SPEC.md v1, made again on the weight tile. Their bits lie along the
            contraction.
Grid        cdiv(K, BK) · cdiv(R, BR) · P·S programs, inputs fastest.
Precision   products in the input type (float32: PRECISION), sums in float32; s applied once, at
            the end.
Order       n ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        as the forward.
Limits      as the forward.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _grouped, _launch
from bayes_dc.ops._tiles import group_ids, keep_tile, product
from bayes_dc.ops.linear import triton_wgmma_gemm

_RUNTIME = ("S", "stride_gn", "stride_wk", "stride_sample", "stride_pass", "stride_ok")


@triton.jit(do_not_specialize=_RUNTIME)
def grouped_linear_dx_kernel(
    gy_ptr,
    w_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    N,
    K,
    stride_gp,
    stride_gs,
    stride_gr,
    stride_gn,
    stride_wn,
    stride_wk,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    stride_ok,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT_GY: tl.constexpr,
    UNIT_W: tl.constexpr,
    UNIT_OUT: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BK inputs of BR rows of one group."""
    k_tiles = tl.cdiv(K, BK)
    r_tiles = tl.cdiv(R, BR)
    pid = tl.program_id(0)
    pk = pid % k_tiles
    pr = pid // k_tiles % r_tiles
    p, s, sample, step = group_ids(
        pid // k_tiles // r_tiles, S, sample_ptr, pass_ptr, stride_sample, stride_pass
    )
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    k = pk * BK + tl.arange(0, BK)
    r = pr * BR + tl.arange(0, BR)
    n = tl.arange(0, BN)
    next_gy = 1 if UNIT_GY else stride_gn
    next_w = 1 if UNIT_W else stride_wk
    gy = gy_ptr + p * stride_gp + s * stride_gs
    gy += r.to(tl.int64)[:, None] * stride_gr + n.to(tl.int64)[None, :] * next_gy
    w = w_ptr + n.to(tl.int64)[:, None] * stride_wn + k.to(tl.int64)[None, :] * next_w
    step_gy = tl.cast(next_gy, tl.int64) * BN
    step_w = tl.cast(stride_wn, tl.int64) * BN
    acc = tl.zeros([BK, BR], tl.float32)
    for first in range(0, N, BN):
        inside = first + n < N
        weights = tl.load(w, mask=inside[:, None] & (k[None, :] < K), other=0)
        rows = tl.load(gy, mask=(r[:, None] < R) & inside[None, :], other=0)
        kept = keep_tile(k0, k1, first // 32, pk * (BK // 4), sample, step, KEEP, BITS, BN, BK)
        weights = tl.where(kept, weights, 0).to(weights.dtype)
        acc = product(tl.trans(weights), tl.trans(rows), acc, PRECISION)
        gy += step_gy
        w += step_w
    next_out = 1 if UNIT_OUT else stride_ok
    out = out_ptr + p * stride_op + s * stride_os
    out += r.to(tl.int64)[:, None] * stride_or + k.to(tl.int64)[None, :] * next_out
    values = tl.trans(acc * SCALE).to(out_ptr.dtype.element_ty)
    tl.store(out, values, mask=(r[:, None] < R) & (k[None, :] < K))


def launch_dx(
    gy: Tensor,
    w: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    config: _grouped.GroupedConfig | None = None,
) -> None:
    """Write the input gradient into ``out``; see ``bayes_dc.ops.linear.reference.grad_input``."""
    P, S, R, N = gy.shape
    K = w.shape[1]
    if P * S * R == 0 or K == 0:
        return
    chosen = config or _grouped.dx_config(P * S, R, N, K, gy.dtype, gy.device)
    if triton_wgmma_gemm.suits(gy, w, out, chosen, transposed=True):
        triton_wgmma_gemm.launch(
            gy,
            w,
            None,
            key,
            sample_ids,
            pass_ids,
            out,
            keep=keep,
            bits=bits,
            scale=scale,
            transposed=True,
            config=chosen,
        )
        return
    config = config or _grouped.for_portable_kernel(
        "linear_grouped_dx", chosen, R, gy.dtype, gy.device
    )
    grid = (triton.cdiv(K, config.inputs) * triton.cdiv(R, config.rows) * P * S,)
    with _launch.on_device_of(gy):
        grouped_linear_dx_kernel[grid](
            gy,
            w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            N,
            K,
            *gy.stride(),
            *w.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            PRECISION=_grouped.precision(gy.dtype),
            UNIT_GY=gy.stride(3) == 1,
            UNIT_W=w.stride(1) == 1,
            UNIT_OUT=out.stride(3) == 1,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            num_warps=config.warps,
            num_stages=config.stages,
        )
