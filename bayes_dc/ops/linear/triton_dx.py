"""Per-row DropConnect linear, input gradient: dx[m, k] = s · Σ_n D[m, n, k] W[n, k] dy[m, n].

Shapes      dy [P, S, R, N], any strides; W [N, K]; out [P, S, R, K]; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1, made again in registers. Their bits lie along the contraction.
Tile        a lane owns one quad (four inputs) of ROWS rows; the 32 lanes of a warp are QUADS quads
            × LANES row groups.
Grid        cdiv(K, 4 · QUADS) · cdiv(M, ROWS · LANES) programs.
Precision   products and sums in float32 (float64 for float64); s applied once, at the end.
Order       n ascends inside one program: no atomics, no split; `out` repeats bit for bit.
Cost        M·N·K masked multiply-adds, as the forward.
Limits      as the forward.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.linear.triton_fma import below, dot_if4, load_id, load_quad
from bayes_dc.rng.device import mask_words

_RUNTIME = (
    *("S", "R", "M", "N", "K", "nil", "stride_gp", "stride_gs", "stride_gr", "stride_gn"),
    *("stride_wn", "stride_wk", "stride_sample", "stride_pass"),
    *("stride_op", "stride_os", "stride_or", "stride_ok"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_linear_dx_kernel(
    gy_ptr,
    w_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    N,
    K,
    nil,
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
    ACC: tl.constexpr,
    VECTOR_GY: tl.constexpr,
    VECTOR_W: tl.constexpr,
    TAIL: tl.constexpr,
    STRIDE_WN: tl.constexpr,
    PTX: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """4 · QUADS inputs of ROWS · LANES rows."""
    tiles = tl.cdiv(K, 4 * QUADS)
    pid = tl.program_id(0)
    pk = pid % tiles
    pm = pid // tiles
    zero = tl.zeros([ROWS, QUADS, LANES], tl.int32)
    row = tl.arange(0, ROWS)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]
    m = pm * (ROWS * LANES) + row + zero
    quad = pk * QUADS + tl.arange(0, QUADS)[None, :, None] + zero
    k = 4 * quad
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    sample = load_id(sample_ptr + s * stride_sample, PTX)
    step = load_id(pass_ptr + p * stride_pass, PTX)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    gy = gy_ptr + p * stride_gp + s * stride_gs + r * stride_gr
    if STRIDE_WN > 0:
        next_w = STRIDE_WN
    else:
        next_w = tl.cast(stride_wn, tl.int64)
    # With VECTOR_W a quad is read whole: where it lies beyond the end, the last one stands in.
    w = w_ptr + (tl.minimum(k, K - 4) if VECTOR_W else k).to(tl.int64) * stride_wk
    a0 = tl.zeros([ROWS, QUADS, LANES], ACC)
    a1 = tl.zeros([ROWS, QUADS, LANES], ACC)
    a2 = tl.zeros([ROWS, QUADS, LANES], ACC)
    a3 = tl.zeros([ROWS, QUADS, LANES], ACC)
    if VECTOR_GY:
        step_g = 1
    else:
        step_g = tl.cast(stride_gn, tl.int64)
    for nw in range(0, tl.cdiv(N, 32)):
        d0, d1, d2, d3 = mask_words(
            k0,
            k1,
            quad.to(tl.uint32),
            (nw + zero).to(tl.uint32),
            sample,
            step,
            KEEP,
            BITS,
            nil,
            PTX,
        )
        # Bits beyond N are cleared: whatever is read for them, NaN included, is never multiplied.
        left = N - nw * 32
        valid = tl.where(left < 32, (1 << tl.minimum(left, 31)) - 1, -1).to(tl.uint32)
        d0 &= valid
        d1 &= valid
        d2 &= valid
        d3 &= valid
        for i in tl.static_range(8):
            n = nw * 32 + 4 * i + zero
            valid0 = below(n, N, TAIL)
            valid1 = below(n + 1, N, TAIL)
            valid2 = below(n + 2, N, TAIL)
            valid3 = below(n + 3, N, TAIL)
            g = gy + 4 * i * step_g
            g0, g1, g2, g3 = load_quad(g, gy, stride_gn, valid0, n, N, ACC, VECTOR_GY, PTX)
            u = w + 4 * i * next_w
            u00, u01, u02, u03 = load_quad(u, w, stride_wk, valid0, k, K, ACC, VECTOR_W, PTX)
            u = w + (4 * i + 1) * next_w
            u10, u11, u12, u13 = load_quad(u, w, stride_wk, valid1, k, K, ACC, VECTOR_W, PTX)
            u = w + (4 * i + 2) * next_w
            u20, u21, u22, u23 = load_quad(u, w, stride_wk, valid2, k, K, ACC, VECTOR_W, PTX)
            u = w + (4 * i + 3) * next_w
            u30, u31, u32, u33 = load_quad(u, w, stride_wk, valid3, k, K, ACC, VECTOR_W, PTX)
            bit = (zero + 1) << (4 * i)
            a0 = dot_if4(a0, d0, bit, g0, g1, g2, g3, u00, u10, u20, u30, PTX)
            a1 = dot_if4(a1, d1, bit, g0, g1, g2, g3, u01, u11, u21, u31, PTX)
            a2 = dot_if4(a2, d2, bit, g0, g1, g2, g3, u02, u12, u22, u32, PTX)
            a3 = dot_if4(a3, d3, bit, g0, g1, g2, g3, u03, u13, u23, u33, PTX)
        gy += 32 * step_g
        w += 32 * next_w
    out = out_ptr + p * stride_op + s * stride_os + r * stride_or + k.to(tl.int64) * stride_ok
    inside = m < M
    tl.store(out, (a0 * SCALE).to(out_ptr.dtype.element_ty), mask=inside & (k < K))
    out += stride_ok
    tl.store(out, (a1 * SCALE).to(out_ptr.dtype.element_ty), mask=inside & (k + 1 < K))
    out += stride_ok
    tl.store(out, (a2 * SCALE).to(out_ptr.dtype.element_ty), mask=inside & (k + 2 < K))
    out += stride_ok
    tl.store(out, (a3 * SCALE).to(out_ptr.dtype.element_ty), mask=inside & (k + 3 < K))


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
    config: _launch.RowConfig | None = None,
) -> None:
    """Write the input gradient into ``out``; see ``bayes_dc.ops.linear.reference.grad_input``."""
    _, S, R, N = gy.shape
    K = w.shape[1]
    M = _launch.count_rows(gy)
    if M == 0 or K == 0:
        return
    config = config or _launch.dx_config(M, N, K, gy.dtype, gy.device)
    grid = (triton.cdiv(K, 4 * config.quads) * triton.cdiv(M, config.rows * config.lanes),)
    with _launch.on_device_of(gy):
        dropconnect_linear_dx_kernel[grid](
            gy,
            w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
            N,
            K,
            0,
            *gy.stride(),
            *w.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            ACC=_launch.accumulator(gy.dtype),
            VECTOR_GY=_launch.quads(gy),
            VECTOR_W=_launch.quads(w),
            TAIL=N % 32 != 0,
            STRIDE_WN=_launch.constant_stride(w),
            PTX=_launch.use_ptx(gy),
            ROWS=config.rows,
            QUADS=config.quads,
            LANES=config.lanes,
            num_warps=config.warps,
        )
