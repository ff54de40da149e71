"""Per-row DropConnect linear, forward: y[m, n] = s · Σ_k D[m, n, k] W[n, k] x[m, k] + b[n].

Shapes      x [P, S, R, K], any strides (0 over P shares the input); W [N, K]; b [N] or null;
            out [P, S, R, N]; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), made in registers.
Tile        a lane owns one word (32 outputs) of BM / 32 rows: the bit of an output is a constant
            of the code, and a value of W loaded into a register serves BM / 32 rows.
Grid        cdiv(N, 32) · cdiv(M, BM) programs.
Precision   products and sums in float32 (float64 for float64); s and b applied once, at the end.
Order       k ascends inside one program: no atomics, no split; `out` repeats bit for bit and a
            row's bits do not depend on the other rows.
Cost        M·N·K masked multiply-adds: 1 FFMA + 1/7 R2P + 0.4 B Philox instructions each.
Limits      N < 2**29, K < 2**31, M < 2**31; row offsets are int64.
Source      Wan et al. 2013, ICML. There p is the keep probability; here p is the drop
            probability, biases are kept, and s makes E[y] = W x + b.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.linear.triton_fma import (
    below,
    fma_if4,
    load_id,
    load_quad,
    load_scalar,
    row_coordinates,
)
from bayes_dc.rng.device import mask_words

_RUNTIME = (
    *("S", "R", "M", "N", "K", "stride_xp", "stride_xs", "stride_xr", "stride_xk"),
    *("stride_wn", "stride_wk", "stride_b", "stride_sample", "stride_pass"),
    *("stride_op", "stride_os", "stride_or", "stride_on"),
)


@triton.jit
def _add_part(
    a0, a1, a2, a3, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, k, N, K,
    FIRST: tl.constexpr, ACC: tl.constexpr, VECTOR: tl.constexpr, TAIL: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """Add four inputs k … k + 3 to the outputs n + FIRST … n + FIRST + 3."""
    n += FIRST
    u = w + FIRST * next_w
    u00, u01, u02, u03 = load_quad(u, w, stride_wk, below(n, N, TAIL), k, K, ACC, VECTOR, PTX)
    u += next_w
    u10, u11, u12, u13 = load_quad(u, w, stride_wk, below(n + 1, N, TAIL), k, K, ACC, VECTOR, PTX)
    u += next_w
    u20, u21, u22, u23 = load_quad(u, w, stride_wk, below(n + 2, N, TAIL), k, K, ACC, VECTOR, PTX)
    u += next_w
    u30, u31, u32, u33 = load_quad(u, w, stride_wk, below(n + 3, N, TAIL), k, K, ACC, VECTOR, PTX)
    bit = k * 0 + (1 << FIRST)
    a0, a1, a2, a3 = fma_if4(a0, a1, a2, a3, d0, bit, x0, u00, u10, u20, u30, PTX)
    a0, a1, a2, a3 = fma_if4(a0, a1, a2, a3, d1, bit, x1, u01, u11, u21, u31, PTX)
    a0, a1, a2, a3 = fma_if4(a0, a1, a2, a3, d2, bit, x2, u02, u12, u22, u32, PTX)
    a0, a1, a2, a3 = fma_if4(a0, a1, a2, a3, d3, bit, x3, u03, u13, u23, u33, PTX)
    return a0, a1, a2, a3


@triton.jit
def _store_part(
    out, b_ptr, stride_on, stride_b, n, N, inside, a0, a1, a2, a3,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, ACC: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Scale, add the bias and store the outputs n … n + 3."""
    _store_one(out, b_ptr, stride_on, stride_b, n, N, inside, a0, SCALE, HAS_BIAS, ACC, PTX)
    _store_one(out, b_ptr, stride_on, stride_b, n + 1, N, inside, a1, SCALE, HAS_BIAS, ACC, PTX)
    _store_one(out, b_ptr, stride_on, stride_b, n + 2, N, inside, a2, SCALE, HAS_BIAS, ACC, PTX)
    _store_one(out, b_ptr, stride_on, stride_b, n + 3, N, inside, a3, SCALE, HAS_BIAS, ACC, PTX)


@triton.jit
def _store_one(
    out, b_ptr, stride_on, stride_b, n, N, inside, a,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, ACC: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Scale, add the bias and store output n."""
    a *= SCALE
    if HAS_BIAS:
        valid = below(n, N, True)
        a += load_scalar(b_ptr + n.to(tl.int64) * stride_b, valid, ACC, PTX)
    p = out + n.to(tl.int64) * stride_on
    tl.store(p, a.to(p.dtype.element_ty), mask=inside & (n < N))


@triton.jit(do_not_specialize=_RUNTIME)
def dropconnect_linear_fwd_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
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
    ACC: tl.constexpr,
    VECTOR: tl.constexpr,
    TAIL: tl.constexpr,
    STRIDE_WN: tl.constexpr,
    PTX: tl.constexpr,
    BM: tl.constexpr,
):
    """One word column (32 outputs) of BM rows."""
    n_words = tl.cdiv(N, 32)
    pid = tl.program_id(0)
    pn = pid % n_words
    pm = pid // n_words
    m = pm * BM + tl.arange(0, BM)
    zero = m * 0
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    sample = load_id(sample_ptr + s * stride_sample, PTX)
    step = load_id(pass_ptr + p * stride_pass, PTX)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    x = x_ptr + p * stride_xp + s * stride_xs + r * stride_xr
    out = out_ptr + p * stride_op + s * stride_os + r * stride_or
    if STRIDE_WN > 0:
        next_w = STRIDE_WN
    else:
        next_w = tl.cast(stride_wn, tl.int64)
    n = pn * 32 + zero
    w = w_ptr + (tl.cast(pn * 32, tl.int64) * next_w + zero)
    a00 = tl.zeros([BM], ACC)
    a01 = tl.zeros([BM], ACC)
    a02 = tl.zeros([BM], ACC)
    a03 = tl.zeros([BM], ACC)
    a10 = tl.zeros([BM], ACC)
    a11 = tl.zeros([BM], ACC)
    a12 = tl.zeros([BM], ACC)
    a13 = tl.zeros([BM], ACC)
    a20 = tl.zeros([BM], ACC)
    a21 = tl.zeros([BM], ACC)
    a22 = tl.zeros([BM], ACC)
    a23 = tl.zeros([BM], ACC)
    a30 = tl.zeros([BM], ACC)
    a31 = tl.zeros([BM], ACC)
    a32 = tl.zeros([BM], ACC)
    a33 = tl.zeros([BM], ACC)
    a40 = tl.zeros([BM], ACC)
    a41 = tl.zeros([BM], ACC)
    a42 = tl.zeros([BM], ACC)
    a43 = tl.zeros([BM], ACC)
    a50 = tl.zeros([BM], ACC)
    a51 = tl.zeros([BM], ACC)
    a52 = tl.zeros([BM], ACC)
    a53 = tl.zeros([BM], ACC)
    a60 = tl.zeros([BM], ACC)
    a61 = tl.zeros([BM], ACC)
    a62 = tl.zeros([BM], ACC)
    a63 = tl.zeros([BM], ACC)
    a70 = tl.zeros([BM], ACC)
    a71 = tl.zeros([BM], ACC)
    a72 = tl.zeros([BM], ACC)
    a73 = tl.zeros([BM], ACC)
    # Two steps at a time: a 32-byte sector of W serves both.
    for k in tl.range(0, K, 4, loop_unroll_factor=2):
        d0, d1, d2, d3 = mask_words(
            k0, k1, (k // 4 + zero).to(tl.uint32), pn.to(tl.uint32), sample, step, KEEP, BITS
        )
        kk = k + zero
        x0, x1, x2, x3 = load_quad(x, x, stride_xk, zero + 1, kk, K, ACC, VECTOR, PTX)
        a00, a01, a02, a03 = _add_part(
            a00, a01, a02, a03, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            0, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a10, a11, a12, a13 = _add_part(
            a10, a11, a12, a13, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            4, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a20, a21, a22, a23 = _add_part(
            a20, a21, a22, a23, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            8, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a30, a31, a32, a33 = _add_part(
            a30, a31, a32, a33, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            12, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a40, a41, a42, a43 = _add_part(
            a40, a41, a42, a43, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            16, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a50, a51, a52, a53 = _add_part(
            a50, a51, a52, a53, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            20, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a60, a61, a62, a63 = _add_part(
            a60, a61, a62, a63, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            24, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        a70, a71, a72, a73 = _add_part(
            a70, a71, a72, a73, d0, d1, d2, d3, x0, x1, x2, x3, w, next_w, stride_wk, n, kk, N, K,
            28, ACC, VECTOR, TAIL, PTX,
        )  # fmt: skip
        x += tl.cast(4, tl.int64) * stride_xk
        w += tl.cast(4, tl.int64) * stride_wk
    inside = m < M
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 0, N, inside, a00, a01, a02, a03,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 4, N, inside, a10, a11, a12, a13,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 8, N, inside, a20, a21, a22, a23,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 12, N, inside, a30, a31, a32, a33,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 16, N, inside, a40, a41, a42, a43,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 20, N, inside, a50, a51, a52, a53,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 24, N, inside, a60, a61, a62, a63,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip
    _store_part(
        out, b_ptr, stride_on, stride_b, n + 28, N, inside, a70, a71, a72, a73,
        SCALE, HAS_BIAS, ACC, PTX,
    )  # fmt: skip


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
    config: _launch.RowConfig | None = None,
) -> None:
    """Write the forward into ``out``; see ``bayes_dc.ops.linear.reference.forward``."""
    P, S, R, K = x.shape
    N = w.shape[0]
    M = P * S * R
    if M == 0 or N == 0:
        return
    config = config or _launch.fwd_config(M, N, K)
    grid = (triton.cdiv(N, 32) * triton.cdiv(M, config.rows * config.lanes),)
    with _launch.on_device_of(x):
        dropconnect_linear_fwd_kernel[grid](
            x,
            w,
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
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
            ACC=_launch.accumulator(x.dtype),
            VECTOR=_launch.quads(x) and _launch.quads(w),
            TAIL=N % 32 != 0,
            STRIDE_WN=_launch.constant_stride(w),
            PTX=_launch.use_ptx(x),
            BM=config.rows * config.lanes,
            num_warps=config.warps,
        )
