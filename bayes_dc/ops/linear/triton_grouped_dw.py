"""DropConnect linear with masks shared by R rows, weight gradient, on tensor cores.

    dW[n, k] = s · Σ_g D[g, n, k] · Σ_r dy[g, r, n] · x[g, r, k]

Shapes      dy [P, S, R, N], x [P, S, R, K], any strides; out [N, K] or, with ``partial``,
            [splits, N, K] float32, then reduced into out; g counts the P·S groups.
Mask        words of rng/SPEC.md v1, applied to the products of each group, in registers.
Grid        cdiv(N, BN) · cdiv(K, BK) · splits programs.
Precision   products in the input type (float32: PRECISION), sums in float32; s applied once, at
            the end.
Order       a split owns a contiguous run of groups and adds them in ascending order, rows
            ascending inside a group; the splits are added in ascending order by a second kernel.
            The number of splits is a function of the shape alone, so `out` repeats bit for bit.
Cost        as the forward, and N·K masked additions for every group.
Limits      as the forward.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _grouped, _launch
from bayes_dc.ops._splits import launch_sum_splits
from bayes_dc.ops._tiles import group_ids, keep_tile, product, round_tf32
from bayes_dc.ops.linear import triton_wgmma_dw

_RUNTIME = (
    *("S", "groups", "chunk", "stride_gn", "stride_xk", "stride_sample", "stride_pass"),
    *("stride_oz", "stride_ok"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def grouped_linear_dw_kernel(
    gy_ptr,
    x_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    N,
    K,
    groups,
    chunk,
    stride_gp,
    stride_gs,
    stride_gr,
    stride_gn,
    stride_xp,
    stride_xs,
    stride_xr,
    stride_xk,
    stride_sample,
    stride_pass,
    stride_oz,
    stride_on,
    stride_ok,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT_GY: tl.constexpr,
    UNIT_X: tl.constexpr,
    UNIT_OUT: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BN outputs × BK inputs over one run of ``chunk`` groups."""
    n_tiles = tl.cdiv(N, BN)
    k_tiles = tl.cdiv(K, BK)
    pid = tl.program_id(0)
    pk = pid % k_tiles
    pn = pid // k_tiles % n_tiles
    pz = pid // k_tiles // n_tiles
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    n = pn * BN + tl.arange(0, BN)
    k = pk * BK + tl.arange(0, BK)
    rows = tl.arange(0, BR)
    next_gy = 1 if UNIT_GY else stride_gn
    next_x = 1 if UNIT_X else stride_xk
    gy_tile = rows.to(tl.int64)[:, None] * stride_gr + n.to(tl.int64)[None, :] * next_gy
    x_tile = rows.to(tl.int64)[:, None] * stride_xr + k.to(tl.int64)[None, :] * next_x
    step_gy = tl.cast(stride_gr, tl.int64) * BR
    step_x = tl.cast(stride_xr, tl.int64) * BR
    acc = tl.zeros([BN, BK], tl.float32)
    for g in range(pz * chunk, tl.minimum(pz * chunk + chunk, groups)):
        p, s, sample, step = group_ids(g, S, sample_ptr, pass_ptr, stride_sample, stride_pass)
        gy = gy_ptr + p * stride_gp + s * stride_gs + gy_tile
        x = x_ptr + p * stride_xp + s * stride_xs + x_tile
        products = tl.zeros([BN, BK], tl.float32)
        for first in range(0, R, BR):
            inside = (first + rows)[:, None] < R
            left = tl.load(gy, mask=inside & (n[None, :] < N), other=0)
            right = tl.load(x, mask=inside & (k[None, :] < K), other=0)
            products = product(tl.trans(left), right, products, PRECISION)
            gy += step_gy
            x += step_x
        kept = keep_tile(k0, k1, pn * (BN // 32), pk * (BK // 4), sample, step, KEEP, BITS, BN, BK)
        acc += tl.where(kept, products, 0.0)
    next_out = 1 if UNIT_OUT else stride_ok
    out = out_ptr + pz.to(tl.int64) * stride_oz
    out += n.to(tl.int64)[:, None] * stride_on + k.to(tl.int64)[None, :] * next_out
    values = (acc * SCALE).to(out_ptr.dtype.element_ty)
    tl.store(out, values, mask=(n[:, None] < N) & (k[None, :] < K))


@triton.jit(do_not_specialize=["S", "stride_tc"])
def along_rows_kernel(
    t_ptr,
    out_ptr,
    S,
    R,
    C,
    stride_tp,
    stride_ts,
    stride_tr,
    stride_tc,
    stride_op,
    stride_os,
    stride_oc,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[p, s, c, r] = t[p, s, r, c], rounded to TensorFloat-32."""
    c_tiles = tl.cdiv(C, BLOCK)
    r_tiles = tl.cdiv(R, BLOCK)
    pid = tl.program_id(0)
    g = pid // c_tiles // r_tiles
    p = (g // S).to(tl.int64)
    s = g - p * S
    c = pid % c_tiles * BLOCK + tl.arange(0, BLOCK)
    r = pid // c_tiles % r_tiles * BLOCK + tl.arange(0, BLOCK)
    t = t_ptr + p * stride_tp + s * stride_ts
    t += r.to(tl.int64)[:, None] * stride_tr + c.to(tl.int64)[None, :] * (1 if UNIT else stride_tc)
    v = tl.load(t, mask=(r[:, None] < R) & (c[None, :] < C), other=0)
    out = out_ptr + p * stride_op + s * stride_os
    out += c.to(tl.int64)[:, None] * stride_oc + r.to(tl.int64)[None, :]
    tl.store(out, tl.trans(round_tf32(v)), mask=(c[:, None] < C) & (r[None, :] < R))


def launch_along_rows(t: Tensor, out: Tensor) -> None:
    """Copy float32 ``t`` [P, S, R, C], rounded, into ``out``; see ``_grouped.room_along_rows``."""
    p, s, R, C = out.shape
    if out.numel() == 0:
        return
    with _launch.on_device_of(t):
        along_rows_kernel[(p * s * triton.cdiv(R, 64) * triton.cdiv(C, 64),)](
            t,
            out,
            s,
            R,
            C,
            *t.stride(),
            out.stride(0),
            out.stride(1),
            out.stride(3),
            UNIT=t.stride(3) == 1,
            BLOCK=64,
        )


def launch_dw(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    partial: Tensor | None = None,
    config: _grouped.GroupedConfig | None = None,
) -> None:
    """Write the weight gradient into ``out``; see ``bayes_dc.ops.linear.reference.grad_weight``.

    ``partial`` [splits, N, K], contiguous float32, is overwritten; None means no split.
    """
    P, S, R, N = gy.shape
    K = x.shape[3]
    if P * S * R == 0 or N == 0 or K == 0:
        out.zero_()
        return
    chosen = config or _grouped.dw_config(P * S, R, N, K, gy.dtype, gy.device)
    target = out[None] if partial is None else partial
    if triton_wgmma_dw.suits(gy, x, target, chosen):
        triton_wgmma_dw.launch(
            gy,
            x,
            key,
            sample_ids,
            pass_ids,
            target,
            keep=keep,
            bits=bits,
            scale=scale,
            config=chosen,
        )
    else:
        config = config or _grouped.for_portable_kernel(
            "linear_grouped_dw", chosen, R, gy.dtype, gy.device
        )
        _launch_portable(
            gy, x, key, sample_ids, pass_ids, target, keep, bits, scale, config
        )  # fmt: skip
    if partial is not None:
        with _launch.on_device_of(gy):
            launch_sum_splits(partial, out)


def _launch_portable(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    keep: int,
    bits: int,
    scale: float,
    config: _grouped.GroupedConfig,
) -> None:
    """Write the splits of the weight gradient into ``out`` [splits, N, K]."""
    P, S, R, N = gy.shape
    K = x.shape[3]
    splits = out.shape[0]
    grid = (triton.cdiv(N, config.outputs) * triton.cdiv(K, config.inputs) * splits,)
    with _launch.on_device_of(gy):
        grouped_linear_dw_kernel[grid](
            gy,
            x,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            N,
            K,
            P * S,
            triton.cdiv(P * S, splits),
            *gy.stride(),
            *x.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            PRECISION=_grouped.precision(gy.dtype),
            UNIT_GY=gy.stride(3) == 1,
            UNIT_X=x.stride(3) == 1,
            UNIT_OUT=out.stride(2) == 1,
            BR=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            num_warps=config.warps,
            num_stages=config.stages,
        )
