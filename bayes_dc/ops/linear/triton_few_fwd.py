"""Per-row DropConnect linear with few rows and outputs, forward: a row to a program.

Shapes      as in triton_fwd.py; x and W are read in quads: last strides 1, K a multiple of 4.
Mask        words of rng/SPEC.md v1. A thread makes those of one quad of inputs; the threads that
            sum them, one for each of 16 outputs, find them in shared memory.
Grid        cdiv(N, 16) · M programs of 16 × 16 threads: ranges of inputs × outputs (or, of what is
            copied and of words, × quads). All that a row needs is on its way at once, up to 4·QUADS
            inputs of every range: with few rows, time goes by in waiting.
Precision   as in triton_fwd.py.
Order       that of triton_fwd.py: the same ranges, in each k ascending, added in order. Same bits.
Cost        M·N·K masked multiply-adds of two instructions, 3 / 4 of a load from shared memory for
            each; W is read by every row.
Limits      as in triton_fwd.py, and M · cdiv(N, 16) < 2**31.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.linear.triton_ends import finished, of_outputs
from bayes_dc.ops.linear.triton_kept import read_kept, write_kept
from bayes_dc.ops.linear.triton_stage import (
    barrier,
    commit_copies,
    copy_from,
    shared_memory,
    take_quad,
    take_words,
    wait_copies,
    wait_for_last,
    write_words,
)
from bayes_dc.ops.linear.triton_sums import dot_words, first_of, words_of

_RUNTIME = (
    *("S", "R", "N", "K", "ranges", "length", "extra", "nil"),
    *("stride_xp", "stride_xs", "stride_xr", "stride_wn", "stride_b"),
    *("stride_sample", "stride_pass"),
    *("stride_op", "stride_os", "stride_or", "stride_on"),
)
_MOST_BYTES = 48 << 10


@triton.jit(do_not_specialize=_RUNTIME)
def few_outputs_fwd_kernel(
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
    ranges,
    length,
    extra,
    nil,
    stride_xp,
    stride_xs,
    stride_xr,
    stride_wn,
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
    TILES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    QUADS: tl.constexpr,
    RANGES: tl.constexpr,
    factors_ptr=None,
    summands_ptr=None,
    EPILOGUE: tl.constexpr = 0,
    EARLY: tl.constexpr = False,
):
    """OUTPUTS outputs of one row, 4·QUADS inputs of each range at a time."""
    ELEMENT: tl.constexpr = x_ptr.dtype.element_ty
    SIZE: tl.constexpr = ELEMENT.primitive_bitwidth // 8
    QUAD: tl.constexpr = 4 * SIZE
    ROW: tl.constexpr = RANGES * QUADS * QUAD  # of x, or of W
    WARPS: tl.constexpr = RANGES // 2
    if EARLY:
        wait_for_last()
    pid = tl.program_id(0)
    pn = pid % TILES
    p, s, r = row_coordinates(pid // TILES, S, R)
    thread = tl.arange(0, 16 * RANGES)
    number = thread // 16
    one = thread % 16
    n = pn * 16 + one
    quad = tl.minimum(one, QUADS - 1)  # that the thread makes ready
    mine = tl.minimum(one, OUTPUTS - 1)  # output that it sums
    first = first_of(number, length, extra)
    end = tl.where(number < ranges, tl.minimum(first_of(number + 1, length, extra), K), 0)
    most = length + tl.minimum(extra, 1) * 16
    base = shared_memory((OUTPUTS + 1) * ROW + RANGES * QUADS * 16) + thread * 0
    words_at = base + (OUTPUTS + 1) * ROW
    x = x_ptr + p * stride_xp + s * stride_xs + r * stride_xr
    w = w_ptr + (pn * 16).to(tl.int64) * stride_wn
    _begin_copies(
        base, x, w, stride_wn, N - pn * 16, first, number, quad, K, SIZE, OUTPUTS, QUADS, RANGES,
        TILES > 1,
    )  # fmt: skip
    sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
    step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    bias, factor, summand = of_outputs(
        b_ptr, factors_ptr, summands_ptr, n, N, stride_b, HAS_BIAS, EPILOGUE
    )
    bit = (thread * 0 + 1) << (pn % 2 * 16 + one)
    acc = tl.zeros([16 * RANGES], tl.float32)
    for done in tl.range(0, most, 4 * QUADS):
        a, b, c, d = words_of(
            first + done + 4 * quad, k0, k1, (pn // 2).to(tl.uint32), sample, step, thread, end,
            nil, KEEP, BITS, False,
        )  # fmt: skip
        write_words(words_at + (number * QUADS + quad) * 16, a, b, c, d)
        at = wait_copies(base, WARPS)
        w_at = at + mine * ROW + number * QUADS * QUAD
        x_at = at + OUTPUTS * ROW + number * QUADS * QUAD
        all_at = at + (OUTPUTS + 1) * ROW + number * QUADS * 16
        for q in tl.static_range(QUADS):
            acc = dot_words(
                acc,
                take_words(all_at + q * 16),
                bit,
                take_quad(x_at + q * QUAD, ELEMENT),
                take_quad(w_at + (q ^ (mine % QUADS)) * QUAD, ELEMENT),
            )
        if done + 4 * QUADS < most:
            _begin_copies(
                barrier(base, WARPS), x, w, stride_wn, N - pn * 16, first + done + 4 * QUADS,
                number, quad, K, SIZE, OUTPUTS, QUADS, RANGES, TILES > 1,
            )  # fmt: skip
    write_kept(barrier(base + thread * 4, WARPS), acc)
    at = barrier(base + one * 4, WARPS)
    value = tl.zeros([16 * RANGES], tl.float32)
    for i in tl.static_range(RANGES):
        value += read_kept(at + i * 64)
    value = finished(value, bias, factor, summand, SCALE, HAS_BIAS, EPILOGUE)
    out = out_ptr + p * stride_op + s * stride_os + r * stride_or + n.to(tl.int64) * stride_on
    tl.store(out, value.to(out_ptr.dtype.element_ty), mask=(number == 0) & (n < N))


@triton.jit
def _begin_copies(
    at, x, w, stride_wn, rows, first, number, quad, K, SIZE: tl.constexpr, OUTPUTS: tl.constexpr,
    QUADS: tl.constexpr, RANGES: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """Begin to copy the inputs from ``first`` on: of OUTPUTS rows of W, then of x.

    The quads of a row of W are exchanged so that lanes that read one quad of different rows meet
    different banks. CHECK: there may be fewer ``rows``.
    """
    QUAD: tl.constexpr = 4 * SIZE
    offset = tl.minimum(first + 4 * quad, K - 4).to(tl.int64)
    to = at + number * QUADS * QUAD
    source = w + offset
    for i in tl.static_range(OUTPUTS):
        copy_from(to + i * RANGES * QUADS * QUAD + (quad ^ (i % QUADS)) * QUAD, source, SIZE)
        source += tl.where(i + 1 < rows, stride_wn, 0) if CHECK else stride_wn
    copy_from(to + OUTPUTS * RANGES * QUADS * QUAD + quad * QUAD, x + offset, SIZE)
    commit_copies(0)


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
    order: tuple[int, int, int],
    most: int,
    ending: dict[str, object],
) -> None:
    """Write the forward into ``out``, whose size is not 0, on the current device.

    ``order``: number of ranges, their length and how many are longer, of at most ``most`` ranges;
    ``ending``: of ``_epilogue.options``.
    """
    P, S, R, K = x.shape
    N = w.shape[0]
    outputs = min(16, N)
    row = 4 * most * x.element_size()
    quads = 16 if (outputs + 1) * 16 * row + 256 * most <= _MOST_BYTES else 8
    tiles = triton.cdiv(N, 16)
    few_outputs_fwd_kernel[(P * S * R * tiles,)](
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
        *order,
        0,
        *x.stride()[:3],
        w.stride(0),
        bias.stride(0) if bias is not None else 0,
        sample_ids.stride(0),
        pass_ids.stride(0),
        *out.stride(),
        KEEP=keep,
        BITS=bits,
        SCALE=scale,
        HAS_BIAS=bias is not None,
        TILES=tiles,
        OUTPUTS=outputs,
        QUADS=quads,
        RANGES=most,
        **ending,
        **_launch.early(x.device),
        num_warps=most // 2,
    )
