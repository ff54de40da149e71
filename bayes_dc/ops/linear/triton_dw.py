"""Per-row DropConnect linear, weight gradient: dW[n, k] = s · Σ_m D[m, n, k] dy[m, n] x[m, k].

Shapes      dy [P, S, R, N], x [P, S, R, K], any strides; out [N, K] or, with ``splits`` > 1,
            partial [splits, N, K] float32, then reduced into out; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1, made again in registers.
Tile        a lane owns four inputs of one word, 128 sums in registers. dy is the same for all
            lanes and is read from shared memory as a broadcast, where it arrives, as x does, by
            asynchronous copies, ROWS rows ahead.
Grid        cdiv(N, 32) · cdiv(K, 4·LANES) · splits programs of one warp.
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
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops._splits import launch_sum_splits
from bayes_dc.ops.linear.triton_fma import load_quad
from bayes_dc.ops.linear.triton_staged_dw import add_row, sum_rows
from bayes_dc.rng.device import mask_words

_RUNTIME = (
    *("S", "R", "M", "N", "K", "chunk", "nil", "stride_gp", "stride_gs", "stride_gr", "stride_gn"),
    *("stride_xp", "stride_xs", "stride_xr", "stride_xk", "stride_sample", "stride_pass"),
    *("stride_oz", "stride_on", "stride_ok"),
)


@triton.jit
def _direct(
    acc, gy, x, sample_ptr, pass_ptr, k0, k1, pn, quad, first, last, S, R, N, K,
    stride_gp, stride_gs, stride_gr, stride_gn, stride_xp, stride_xs, stride_xr, stride_xk,
    stride_sample, stride_pass,
    KEEP: tl.constexpr, BITS: tl.constexpr, ACC: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """The rows of a split, each element by a load of its own."""
    k = 4 * quad
    n = pn * 32
    stride_gn = tl.cast(stride_gn, tl.int64)
    x += k.to(tl.int64) * stride_xk
    gy += tl.cast(n, tl.int64) * stride_gn
    p, s, r = row_coordinates(first, S, R)
    for _ in range(first, last):
        sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
        step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
        words = mask_words(k0, k1, quad.to(tl.uint32), pn.to(tl.uint32), sample, step, KEEP, BITS)
        row = x + (p * stride_xp + s * stride_xs + r * stride_xr)
        row_gy = gy + (p * stride_gp + s * stride_gs + r * stride_gr)
        x_quad = load_quad(row, row, stride_xk, quad * 0 + 1, k, K, ACC, False, PTX)
        quads = ()
        for q in tl.static_range(8):
            g = row_gy + 4 * q * stride_gn
            at = n + 4 * q
            quads = quads + (
                (
                    tl.load(g, mask=at < N, other=0).to(ACC),
                    tl.load(g + stride_gn, mask=at + 1 < N, other=0).to(ACC),
                    tl.load(g + 2 * stride_gn, mask=at + 2 < N, other=0).to(ACC),
                    tl.load(g + 3 * stride_gn, mask=at + 3 < N, other=0).to(ACC),
                ),
            )
        acc = add_row(acc, words, x_quad, quads, PTX)
        r += 1
        s += (r == R).to(tl.int64)
        r = tl.where(r == R, 0, r)
        p += (s == S).to(tl.int64)
        s = tl.where(s == S, 0, s)
    return acc


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
    nil,
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
    STAGED: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One word column (32 outputs) × 4·LANES inputs over one run of ``chunk`` rows."""
    n_words = tl.cdiv(N, 32)
    tiles = tl.cdiv(K, 4 * LANES)
    pid = tl.program_id(0)
    pn = pid % n_words
    pk = pid // n_words % tiles
    pz = pid // n_words // tiles
    lane = tl.arange(0, LANES)
    quad = pk * LANES + lane
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    first = pz * chunk
    last = tl.minimum(first + chunk, M)
    acc = ((((tl.zeros([LANES], ACC),) * 8),) * 4,) * 4
    if STAGED:
        tl.static_assert(LANES == 32)
        tl.static_assert(ROWS % 4 == 0, "four rows are copied at a time")
        acc = sum_rows(
            acc, gy_ptr, x_ptr, sample_ptr, pass_ptr, k0, k1, pn.to(tl.uint32), lane, quad,
            first, last, S, R, N, K, nil, stride_gp, stride_gs, stride_gr,
            stride_xp, stride_xs, stride_xr, stride_sample, stride_pass, KEEP, BITS, EVEN, ROWS,
        )  # fmt: skip
    else:
        acc = _direct(
            acc, gy_ptr, x_ptr, sample_ptr, pass_ptr, k0, k1, pn, quad, first, last, S, R, N, K,
            stride_gp, stride_gs, stride_gr, stride_gn, stride_xp, stride_xs, stride_xr, stride_xk,
            stride_sample, stride_pass, KEEP, BITS, ACC, PTX,
        )  # fmt: skip
    k = 4 * quad
    out = out_ptr + pz.to(tl.int64) * stride_oz + k.to(tl.int64) * stride_ok
    for part in tl.static_range(4):
        for j in tl.static_range(8):
            n = pn * 32 + 8 * part + j
            to = out + tl.cast(n, tl.int64) * stride_on
            for i in tl.static_range(4):
                value = (acc[part][i][j] * SCALE).to(out_ptr.dtype.element_ty)
                tl.store(to + i * stride_ok, value, mask=(n < N) & (k + i < K))


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
    _, S, R, N = gy.shape
    K = x.shape[3]
    M = _launch.count_rows(gy)
    if M == 0 or N == 0 or K == 0:
        out.zero_()
        return
    config = config or _launch.dw_config(M, N, K, gy.dtype, gy.device)
    splits = 1 if partial is None else partial.shape[0]
    target = out if partial is None else partial
    staged = _launch.use_ptx(gy) and config.lanes == 32 and _launch.quads(gy) and _launch.quads(x)
    chunk = triton.cdiv(M, splits)
    grid = (triton.cdiv(N, 32) * triton.cdiv(K, 4 * config.lanes) * splits,)
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
            chunk,
            0,
            *gy.stride(),
            *x.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *((0, *out.stride()) if partial is None else partial.stride()),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            ACC=_launch.accumulator(gy.dtype),
            STAGED=staged,
            EVEN=M % splits == 0 and chunk % config.rows == 0,
            PTX=_launch.use_ptx(gy),
            LANES=config.lanes,
            ROWS=config.rows,
            num_warps=1,
            maxnreg=(config.registers or None) if staged else None,
        )
        if partial is not None:
            launch_sum_splits(partial, out)
