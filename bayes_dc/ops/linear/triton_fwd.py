"""Per-row DropConnect linear, forward: y[m, n] = s · Σ_k D[m, n, k] W[n, k] x[m, k] + b[n].

Shapes      x [P, S, R, K], any strides (0 over P shares the input); W [N, K]; b [N] or null;
            out [P, S, R, N]; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), made in registers.
Tile        a lane owns one word (32 outputs) of ROWS rows: the bit of an output is a constant of
            the code. W is the same for all lanes and is read from shared memory as a broadcast,
            where it arrives, as x does, by asynchronous copies, 4·QUADS inputs ahead.
Grid        cdiv(N, 32) · cdiv(M, 32·ROWS) programs of one warp, or of four with a range of the
            inputs each.
Precision   products and sums in float32 (float64 for float64); s, b and the epilogue
            (_epilogue.py) applied once, at the end.
Order       four ranges of inputs, k ascending in each; their sums are added in order, whoever
            made them. No atomics; `out` repeats bit for bit, and a row's bits depend neither on
            the other rows nor on the configuration.
Cost        M·N·K masked multiply-adds: 1 FFMA + 1/7 R2P + 0.4 B Philox instructions each.
Limits      N < 2**29, K < 2**31, M ≤ 2**31 − 256; row offsets are int64.
Source      Wan et al. 2013, ICML. There p is the keep probability; here p is the drop
            probability, biases are kept, and s makes E[y] = W x + b.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _epilogue, _launch
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.linear.triton_fma import load_id, load_quad
from bayes_dc.ops.linear.triton_staged_fwd import add_inputs, sum_inputs
from bayes_dc.rng.device import mask_words

_RANGES = 4
"""Ranges of inputs with a sum of their own, whatever the configuration."""

_RUNTIME = (
    *("S", "R", "M", "N", "K", "length", "nil", "stride_xp", "stride_xs", "stride_xr", "stride_xk"),
    *("stride_wn", "stride_wk", "stride_b", "stride_sample", "stride_pass"),
    *("stride_op", "stride_os", "stride_or", "stride_on"),
)


@triton.jit
def _load_weights(w, stride_wn, stride_wk, n, k, N, K, ACC: tl.constexpr):
    """Quads k … k + 3 of W's rows n … n + 31, the first at ``w``; 0 outside."""
    result = ()
    for j in tl.static_range(32):
        p = w + j * stride_wn
        row = n + j < N
        result = result + (
            (
                tl.load(p, mask=row & (k < K), other=0).to(ACC),
                tl.load(p + stride_wk, mask=row & (k + 1 < K), other=0).to(ACC),
                tl.load(p + 2 * stride_wk, mask=row & (k + 2 < K), other=0).to(ACC),
                tl.load(p + 3 * stride_wk, mask=row & (k + 3 < K), other=0).to(ACC),
            ),
        )
    return result


@triton.jit
def _direct(
    zeros, x, stride_xk, w, stride_wn, stride_wk, k0, k1, pn, n, sample, step, row, N, K, length,
    KEEP: tl.constexpr, BITS: tl.constexpr, ACC: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Sums of all inputs, range by range, each element by a load of its own."""
    stride_xk = tl.cast(stride_xk, tl.int64)
    stride_wk = tl.cast(stride_wk, tl.int64)
    total = zeros
    for first in range(0, K, length):
        acc = zeros
        for k in range(first, tl.minimum(first + length, K), 4):
            k4 = k // 4 + row * 0
            words = mask_words(k0, k1, k4.to(tl.uint32), pn.to(tl.uint32), sample, step, KEEP, BITS)
            x_quad = load_quad(
                x + k * stride_xk, x, stride_xk, row * 0 + 1, 4 * k4, K, ACC, False, PTX
            )
            w_quads = _load_weights(w + k * stride_wk, stride_wn, stride_wk, n, k, N, K, ACC)
            acc = add_inputs(acc, words, x_quad, w_quads, PTX)
        total = _add(total, acc)
    return total


@triton.jit
def _add(a, b):
    """Sums of 4 × 8 tensors."""
    result = ()
    for i in tl.static_range(4):
        eight = ()
        for j in tl.static_range(8):
            eight = eight + (a[i][j] + b[i][j],)
        result = result + (eight,)
    return result


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
    length,
    nil,
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
    STAGED: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
    SLICES: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
):
    """One word column (32 outputs) of LANES·ROWS rows; ``length`` inputs for each slice."""
    n_words = tl.cdiv(N, 32)
    pid = tl.program_id(0)
    pn = pid % n_words
    pm = pid // n_words
    element = tl.arange(0, LANES * ROWS * SLICES)
    part = element // (LANES * ROWS)
    row = element % (LANES * ROWS)
    m = pm * (LANES * ROWS) + row
    inside = m < M
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    sample = load_id(sample_ptr + s * stride_sample, PTX)
    step = load_id(pass_ptr + p * stride_pass, PTX)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    x = x_ptr + p * stride_xp + s * stride_xs + r * stride_xr
    out = out_ptr + p * stride_op + s * stride_os + r * stride_or
    n = pn * 32
    next_w = tl.cast(stride_wn, tl.int64)
    zeros = ((tl.zeros([LANES * ROWS * SLICES], ACC),) * 8,) * 4
    if STAGED:
        tl.static_assert(LANES == 32)
        tl.static_assert(SLICES == 1 or (SLICES == 4 and ROWS == 1), "one warp, or four of one row")
        tl.static_assert(QUADS <= 4, "a range of inputs is a multiple of 16")
        lane = tl.arange(0, 32 * SLICES) % 32
        w = w_ptr + tl.minimum(n + lane, N - 1).to(tl.int64) * next_w
        acc = sum_inputs(
            zeros, x, w, k0, k1, pn.to(tl.uint32), sample, step, row, part, lane, K, length, nil,
            KEEP, BITS, EVEN, ROWS, QUADS, SLICES,
        )  # fmt: skip
        if SLICES == 1:
            for i in tl.static_range(4):
                at = n + 8 * i
                _store8(
                    out, b_ptr, at, N, stride_on, stride_b, inside, acc[i], factors_ptr,
                    summands_ptr, SCALE, HAS_BIAS, EPILOGUE, ACC,
                )  # fmt: skip
        else:
            at = n + 8 * part
            _store8(
                out, b_ptr, at, N, stride_on, stride_b, inside, acc, factors_ptr, summands_ptr,
                SCALE, HAS_BIAS, EPILOGUE, ACC,
            )  # fmt: skip
    else:
        tl.static_assert(SLICES == 1)
        total = _direct(
            zeros, x, stride_xk, w_ptr + tl.cast(n, tl.int64) * next_w, next_w, stride_wk,
            k0, k1, pn, n, sample, step, row, N, K, length, KEEP, BITS, ACC, PTX,
        )  # fmt: skip
        for i in tl.static_range(4):
            at = n + 8 * i
            _store8(
                out, b_ptr, at, N, stride_on, stride_b, inside, total[i], factors_ptr, summands_ptr,
                SCALE, HAS_BIAS, EPILOGUE, ACC,
            )  # fmt: skip


@triton.jit
def _store8(
    out, b_ptr, n, N, stride_on, stride_b, inside, a, factors_ptr, summands_ptr,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, EPILOGUE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Scale, add the bias, finish and store the outputs n … n + 7."""
    for j in tl.static_range(8):
        at = n + j
        value = a[j] * SCALE
        if HAS_BIAS:
            b = b_ptr + at.to(tl.int64) * stride_b
            value += tl.load(b, mask=at < N, other=0).to(ACC)
        if EPILOGUE & 1:
            value *= tl.load(factors_ptr + at, mask=at < N, other=0).to(ACC)
        if EPILOGUE & 2:
            value += tl.load(summands_ptr + at, mask=at < N, other=0).to(ACC)
        if EPILOGUE & 4:
            value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
        to = out + at.to(tl.int64) * stride_on
        tl.store(to, value.to(out.dtype.element_ty), mask=inside & (at < N))


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
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
) -> None:
    """Write the forward into ``out``; see ``bayes_dc.ops.linear.reference.forward``.

    ``epilogue``: see ``_epilogue.Epilogue``.
    """
    _, S, R, K = x.shape
    N = w.shape[0]
    M = _launch.count_rows(x)
    if M == 0 or N == 0:
        return
    config = config or _launch.fwd_config(M, N, K, x.dtype, x.device)
    staged = _launch.use_ptx(x) and config.lanes == 32 and _launch.quads(x) and _launch.quads(w)
    slices = config.warps if staged else 1
    length = max(1, triton.cdiv(K, _RANGES * 16)) * 16
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
            length,
            0,
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
            STAGED=staged,
            EVEN=K % (4 * config.quads) == 0 and (slices == 1 or K == slices * length),
            PTX=_launch.use_ptx(x),
            LANES=config.lanes,
            ROWS=config.rows,
            QUADS=config.quads,
            SLICES=slices,
            **_epilogue.options(epilogue, out),
            num_warps=slices,
            maxnreg=(config.registers or None) if staged else None,
        )
