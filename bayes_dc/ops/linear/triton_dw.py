"""Per-row DropConnect linear, weight gradient: dW[n, k] = s · Σ_m D[m, n, k] dy[m, n] x[m, k].

Shapes      dy [P, S, R, N], x [P, S, R, K], any strides; out [N, K] or, with ``splits`` > 1,
            partial [splits, N, K] float32, then reduced into out; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1, made again in registers.
Grid        cdiv(N, 32) · cdiv(K, 4·QUADS) · splits programs; lanes own four inputs, registers own
            the 32 outputs of a word.
Precision   products and sums in float32 (float64 for float64); s applied once, at the end.
Order       a split owns a contiguous run of rows and adds them in ascending order; the splits are
            added in ascending order by the second kernel. The number of splits is a function of
            the shape alone, so `out` repeats bit for bit. No atomics.
Cost        M·N·K masked multiply-adds, as the forward.
Limits      as the forward.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.linear.triton_fma import below, fma_if4, load_quad, row_coordinates
from bayes_dc.rng.device import mask_words

_RUNTIME = (
    *("S", "R", "M", "N", "K", "chunk", "stride_gp", "stride_gs", "stride_gr", "stride_gn"),
    *("stride_xp", "stride_xs", "stride_xr", "stride_xk", "stride_sample", "stride_pass"),
    *("stride_oz", "stride_on", "stride_ok"),
)


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_linear_dw_kernel(
    gy_ptr,
    x_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    N,
    K,
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
    ACC: tl.constexpr,
    VECTOR_GY: tl.constexpr,
    VECTOR_X: tl.constexpr,
    PTX: tl.constexpr,
    QUADS: tl.constexpr,
):
    """One word column (32 outputs) × 4·QUADS inputs over one run of ``chunk`` rows."""
    n_words = tl.cdiv(N, 32)
    tiles = tl.cdiv(K, 4 * QUADS)
    pid = tl.program_id(0)
    pn = pid % n_words
    pk = pid // n_words % tiles
    pz = pid // n_words // tiles
    zero = tl.zeros([8, QUADS], tl.int32)
    quad = (pk * QUADS + tl.arange(0, QUADS))[None, :] + zero  # [8, QUADS]
    k = 4 * quad
    n = pn * 32 + 4 * tl.arange(0, 8)[:, None] + zero
    bit = 1 << (4 * tl.arange(0, 8)[:, None] + zero)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    gy = gy_ptr + (tl.minimum(n, N - 4) if VECTOR_GY else n).to(tl.int64) * stride_gn
    x = x_ptr + (tl.minimum(k, K - 4) if VECTOR_X else k).to(tl.int64) * stride_xk
    a00 = tl.zeros([8, QUADS], ACC)
    a10 = tl.zeros([8, QUADS], ACC)
    a20 = tl.zeros([8, QUADS], ACC)
    a30 = tl.zeros([8, QUADS], ACC)
    a01 = tl.zeros([8, QUADS], ACC)
    a11 = tl.zeros([8, QUADS], ACC)
    a21 = tl.zeros([8, QUADS], ACC)
    a31 = tl.zeros([8, QUADS], ACC)
    a02 = tl.zeros([8, QUADS], ACC)
    a12 = tl.zeros([8, QUADS], ACC)
    a22 = tl.zeros([8, QUADS], ACC)
    a32 = tl.zeros([8, QUADS], ACC)
    a03 = tl.zeros([8, QUADS], ACC)
    a13 = tl.zeros([8, QUADS], ACC)
    a23 = tl.zeros([8, QUADS], ACC)
    a33 = tl.zeros([8, QUADS], ACC)
    everywhere = below(k, K, False)
    first = pz * chunk
    last = tl.minimum(first + chunk, M)
    p, s, r = row_coordinates(first, S, R)
    for _ in range(first, last):
        sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
        step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
        d0, d1, d2, d3 = mask_words(
            k0, k1, quad.to(tl.uint32), pn.to(tl.uint32), sample, step, KEEP, BITS
        )
        row_x = x + (p * stride_xp + s * stride_xs + r * stride_xr)
        row_gy = gy + (p * stride_gp + s * stride_gs + r * stride_gr)
        x0, x1, x2, x3 = load_quad(row_x, row_x, stride_xk, everywhere, k, K, ACC, VECTOR_X, PTX)
        g0, g1, g2, g3 = load_quad(row_gy, row_gy, stride_gn, everywhere, n, N, ACC, VECTOR_GY, PTX)
        a00, a10, a20, a30 = fma_if4(a00, a10, a20, a30, d0, bit, x0, g0, g1, g2, g3, PTX)
        a01, a11, a21, a31 = fma_if4(a01, a11, a21, a31, d1, bit, x1, g0, g1, g2, g3, PTX)
        a02, a12, a22, a32 = fma_if4(a02, a12, a22, a32, d2, bit, x2, g0, g1, g2, g3, PTX)
        a03, a13, a23, a33 = fma_if4(a03, a13, a23, a33, d3, bit, x3, g0, g1, g2, g3, PTX)
        r += 1
        s += (r == R).to(tl.int64)
        r = tl.where(r == R, 0, r)
        p += (s == S).to(tl.int64)
        s = tl.where(s == S, 0, s)
    out = out_ptr + pz.to(tl.int64) * stride_oz
    out += n.to(tl.int64) * stride_on + k.to(tl.int64) * stride_ok
    _store_quad(out, stride_ok, n < N, k, K, a00 * SCALE, a01 * SCALE, a02 * SCALE, a03 * SCALE)
    out += stride_on
    _store_quad(out, stride_ok, n + 1 < N, k, K, a10 * SCALE, a11 * SCALE, a12 * SCALE, a13 * SCALE)
    out += stride_on
    _store_quad(out, stride_ok, n + 2 < N, k, K, a20 * SCALE, a21 * SCALE, a22 * SCALE, a23 * SCALE)
    out += stride_on
    _store_quad(out, stride_ok, n + 3 < N, k, K, a30 * SCALE, a31 * SCALE, a32 * SCALE, a33 * SCALE)


@triton.jit
def _store_quad(p, stride, inside, k, K, v0, v1, v2, v3):
    """Store four neighbours along k, cast to the pointer's type."""
    tl.store(p, v0.to(p.dtype.element_ty), mask=inside & (k < K))
    tl.store(p + stride, v1.to(p.dtype.element_ty), mask=inside & (k + 1 < K))
    tl.store(p + 2 * stride, v2.to(p.dtype.element_ty), mask=inside & (k + 2 < K))
    tl.store(p + 3 * stride, v3.to(p.dtype.element_ty), mask=inside & (k + 3 < K))


@triton.jit(do_not_specialize=["N", "K", "splits", "stride_on", "stride_ok"])
def sum_splits_kernel(
    partial_ptr, out_ptr, N, K, splits, stride_on, stride_ok, BLOCK: tl.constexpr
):
    """out[n, k] = Σ_z partial[z, n, k], z ascending; partial is contiguous."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.cast(N, tl.int64) * K
    inside = index < size
    total = tl.zeros([BLOCK], partial_ptr.dtype.element_ty)
    for z in range(splits):
        total += tl.load(partial_ptr + z * size + index, mask=inside, other=0)
    n = index // K
    out = out_ptr + n * stride_on + (index - n * K) * stride_ok
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=inside)


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
    config: _launch.RowConfig | None = None,
) -> None:
    """Write the weight gradient into ``out``; see ``bayes_dc.ops.linear.reference.grad_weight``.

    ``partial`` [splits, N, K], contiguous, in the accumulation type, is overwritten; None means no
    split.
    """
    P, S, R, N = gy.shape
    K = x.shape[3]
    M = P * S * R
    if M == 0 or N == 0 or K == 0:
        out.zero_()
        return
    config = config or _launch.dw_config(M, N, K)
    splits = 1 if partial is None else partial.shape[0]
    target = out if partial is None else partial
    grid = (triton.cdiv(N, 32) * triton.cdiv(K, 4 * config.quads) * splits,)
    with _launch.on_device_of(gy):
        dropconnect_linear_dw_kernel[grid](
            gy,
            x,
            key,
            sample_ids,
            pass_ids,
            target,
            S,
            R,
            M,
            N,
            K,
            triton.cdiv(M, splits),
            *gy.stride(),
            *x.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *((0, *out.stride()) if partial is None else partial.stride()),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            ACC=_launch.accumulator(gy.dtype),
            VECTOR_GY=_launch.quads(gy),
            VECTOR_X=_launch.quads(x),
            PTX=_launch.use_ptx(gy),
            QUADS=config.quads,
            num_warps=config.warps,
        )
        if partial is not None:
            sum_splits_kernel[(triton.cdiv(N * K, 1024),)](
                partial, out, N, K, splits, *out.stride(), BLOCK=1024
            )
