"""Per-row DropConnect linear, forward: y[m, n] = s · Σ_k D[m, n, k] W[n, k] x[m, k] + b[n].

Shapes      x [P, S, R, K], any strides (0 over P shares the input); W [N, K]; b [N] or null;
            out [P, S, R, N]; m counts the P·S·R rows.
Mask        words of rng/SPEC.md v1 at (sample_ids[s], pass_ids[p]), made in registers.
Tile        a lane owns one word (32 outputs) of ROWS rows: the bit of an output is a constant of
            the code. W is the same for all lanes and is read from shared memory as a broadcast,
            where it arrives, as x does, by asynchronous copies, 4·QUADS inputs ahead. Of the last
            16 outputs or fewer only so many are summed (GROUPS of eight).
Grid        cdiv(N, 32) · cdiv(M, LANES·ROWS) programs. Many rows: of one warp, LANES = 32. Few
            rows: WARPS · 32 / LANES parts, which make different ranges of the inputs. Few rows and
            outputs: triton_few_fwd.py. EARLY: programs begin while the launch before ends.
Precision   products and sums in float32 (float64 for float64); s, b and the epilogue
            (_epilogue.py) applied once, at the end.
Order       up to sixteen ranges of inputs, k ascending in each, a function of K alone; their sums
            are added in order, whoever made them. No atomics; `out` repeats bit for bit, and a
            row's bits depend neither on the other rows nor on the configuration.
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
from bayes_dc.ops.linear import triton_few_fwd
from bayes_dc.ops.linear.triton_elements_fwd import sum_elements
from bayes_dc.ops.linear.triton_ends import finished, of_outputs
from bayes_dc.ops.linear.triton_fma import load_id
from bayes_dc.ops.linear.triton_parts_fwd import sum_parts
from bayes_dc.ops.linear.triton_stage import wait_for_last
from bayes_dc.ops.linear.triton_staged_fwd import sum_inputs

_RANGES = 16
"""Most ranges of inputs with a sum of their own, whatever the configuration."""

_LENGTH = 32
"""Least inputs of a range, if there are as many."""

_RUNTIME = (
    *("S", "R", "M", "N", "K", "ranges", "length", "extra", "nil"),
    *("stride_xp", "stride_xs", "stride_xr", "stride_xk", "stride_wn", "stride_wk", "stride_b"),
    *("stride_sample", "stride_pass"),
    *("stride_op", "stride_os", "stride_or", "stride_on"),
)


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
    ranges,
    length,
    extra,
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
    ONE_X: tl.constexpr,
    PTX: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
    WARPS: tl.constexpr,
    GROUPS: tl.constexpr,
    RANGES: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
    EARLY: tl.constexpr = False,
):
    """8·GROUPS outputs of one word, of LANES·ROWS rows; for the ranges see ``first_of``."""
    if EARLY:
        wait_for_last()
    n_words = tl.cdiv(N, 32)
    pid = tl.program_id(0)
    pn = pid % n_words
    pm = pid // n_words
    ELEMENTS: tl.constexpr = 32 * ROWS * WARPS if STAGED else LANES * ROWS
    element = tl.arange(0, ELEMENTS)
    part = element // (LANES * ROWS)
    row = element % (LANES * ROWS)
    m = pm * (LANES * ROWS) + row
    inside = m < M
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    sample = load_id(sample_ptr + s * stride_sample, PTX, False)
    step = load_id(pass_ptr + p * stride_pass, PTX, False)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    x = x_ptr + p * stride_xp + s * stride_xs + r * stride_xr
    out = out_ptr + p * stride_op + s * stride_os + r * stride_or
    n = pn * 32
    next_w = tl.cast(stride_wn, tl.int64)
    zeros = ((tl.zeros([ELEMENTS], ACC),) * 8,) * GROUPS
    if STAGED:
        tl.static_assert(ROWS == 1 or (WARPS == 1 and LANES == 32), "several rows or several parts")
        tl.static_assert(QUADS <= 4, "a range of inputs is a multiple of 16")
        lane = tl.arange(0, 32 * WARPS) % 32
        w = w_ptr + tl.minimum(n + lane, N - 1).to(tl.int64) * next_w
        if WARPS == 1 and LANES == 32:
            acc = sum_inputs(
                zeros, x, w, k0, k1, pn.to(tl.uint32), sample, step, row, lane, K,
                ranges, length, extra, nil, KEEP, BITS, EVEN, ROWS, QUADS, GROUPS,
            )  # fmt: skip
        else:
            COLUMNS: tl.constexpr = 8 * GROUPS
            at = n + element % COLUMNS
            bias, factor, summand = of_outputs(
                b_ptr, factors_ptr, summands_ptr, at, N, stride_b, HAS_BIAS, EPILOGUE
            )
            sums, rows = sum_parts(
                zeros, x, w, out, k0, k1, pn.to(tl.uint32), sample, step, element, row, part, K,
                ranges, length, extra, nil,
                KEEP, BITS, EVEN, ONE_X, LANES, QUADS, WARPS, GROUPS, RANGES,
            )  # fmt: skip
            EACH: tl.constexpr = COLUMNS * LANES // ELEMENTS
            for j in tl.static_range(EACH):
                y = finished(sums[j], bias, factor, summand, SCALE, HAS_BIAS, EPILOGUE)
                known = pm * LANES + element // COLUMNS + j * (LANES // EACH) < M
                to = rows[j] + at.to(tl.int64) * stride_on
                tl.store(to, y.to(out.dtype.element_ty), mask=known & (at < N))
    else:
        tl.static_assert(WARPS == 1)
        acc = sum_elements(
            zeros, x, stride_xk, w_ptr + tl.cast(n, tl.int64) * next_w, next_w, stride_wk,
            k0, k1, pn, n, sample, step, row, N, K, ranges, length, extra,
            KEEP, BITS, ACC, GROUPS, PTX,
        )  # fmt: skip
    if WARPS == 1 and (LANES == 32 or not STAGED):
        groups = ()  # of loads, before a store that could be to the same place
        for i in tl.static_range(GROUPS):
            eight = _finish(
                acc[i], b_ptr, n + 8 * i, N, stride_b, factors_ptr, summands_ptr,
                SCALE, HAS_BIAS, EPILOGUE, ACC, 8,
            )  # fmt: skip
            groups = groups + (eight,)
        for i in tl.static_range(GROUPS):
            _store(groups[i], out, n + 8 * i, N, stride_on, inside, 8)


@triton.jit
def _finish(
    a, b_ptr, n, N, stride_b, factors_ptr, summands_ptr,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, EPILOGUE: tl.constexpr, ACC: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Scale the COUNT outputs from n on, add the bias, apply the epilogue."""
    result = ()
    for j in tl.static_range(COUNT):
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
        result = result + (value,)
    return result


@triton.jit
def _store(values, out, n, N, stride_on, inside, COUNT: tl.constexpr):
    """Store the COUNT outputs from n on."""
    for j in tl.static_range(COUNT):
        at = n + j
        to = out + at.to(tl.int64) * stride_on
        tl.store(to, values[j].to(out.dtype.element_ty), mask=inside & (at < N))


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
    staged = _launch.use_ptx(x) and _launch.quads(x) and _launch.quads(w)
    staged = staged and (config.lanes == 32 or config.rows == config.quads == 1)
    warps = config.warps if staged else 1
    tiles = triton.cdiv(K, 16)
    ranges = max(1, min(_RANGES, triton.cdiv(K, _LENGTH)))
    order = (ranges, tiles // ranges * 16, tiles % ranges)
    ending = _epilogue.options(epilogue, out)
    sizes = zip(x.shape[:3], x.stride()[:3], strict=True)
    one_x = all(stride == 0 or size == 1 for size, stride in sizes)
    if staged and config.lanes == 1:
        with _launch.on_device_of(x):
            triton_few_fwd.launch(
                *(x, w, bias, key, sample_ids, pass_ids, out),
                keep=keep,
                bits=bits,
                scale=scale,
                order=order,
                most=_RANGES,
                ending=ending,
            )
        return
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
            *order,
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
            EVEN=K % (4 * config.quads) == 0,
            ONE_X=one_x,
            PTX=_launch.use_ptx(x),
            LANES=config.lanes,
            ROWS=config.rows,
            QUADS=config.quads,
            WARPS=warps,
            GROUPS=2 if N <= 16 else 4,
            RANGES=_RANGES,
            **ending,
            **_launch.early(x.device),
            num_warps=warps,
            maxnreg=(config.registers or None) if staged else None,
        )
