"""Streaming statistics of Monte Carlo passes, up to MAX_BLOCK classes: what is noted of each row.

Shapes      y [passes, B, C], any strides; samples [passes, B, C] or null; rows float64: what the
            kernel of triton_passes.py needs, FIELDS [passes, B], then 1 / (t + 1) [passes], then,
            where there is room for them, probabilities [passes, B, C] (KEPT).
Fields      largest entry and 1 / Σ exp(y − largest) (written unless KEPT), entropy, class voted
            for; with RANGES sum and least entry too, a NaN sum for a row with NaN.
Grid        (cdiv(passes · B, ROWS)).
Precision   float64 from the first operation on y.
Order       classes add as a tree (triton_rows.py); no fused multiply-add.
Cost        an exponential and a logarithm for each (pass, input, class).
Limits      C ≤ MAX_BLOCK; row offsets are int64.
"""

import triton
import triton.language as tl

from bayes_dc.ops.mc_stats.triton_rows import entropy_terms, sum_pairs

RUNTIME = ("first", "passes", "B", "C", "J", "stride_yp", "stride_yb", "stride_yc")
POINTERS = (
    *("y_ptr", "rows_ptr", "mean_ptr", "m2_ptr", "votes_ptr", "expected_ptr", "probs_ptr"),
    *("entropies_ptr", "ranges_ptr", "samples_ptr"),
)
NO_NAN = tl.constexpr(1 << 30)


@triton.jit
def vote_key(p, top, c, valid):
    """Least where torch.argmax points: at the first NaN, else (from NO_NAN on) at the largest."""
    return tl.where(p != p, c, tl.where(valid & (p == top), c + NO_NAN, 2147483647))


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def mc_stats_rows_kernel(
    y_ptr,
    rows_ptr,
    samples_ptr,
    first,
    passes,
    B,
    C,
    stride_yp,
    stride_yb,
    stride_yc,
    SOFTMAX: tl.constexpr,
    RANGES: tl.constexpr,
    SAMPLES: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """What a row of at most 2**STEPS classes says, ROWS of them."""
    inputs = tl.cast(B, tl.int64)
    total = tl.cast(passes, tl.int64) * inputs
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < total
    t, b = row // inputs, row % inputs
    c = tl.arange(0, 1 << STEPS)
    real = (c < C)[None, :]
    valid = there[:, None] & real
    y = y_ptr + (t * stride_yp + b * stride_yb)[:, None]
    p = tl.load(y + c[None, :] * tl.cast(stride_yc, tl.int64), mask=valid, other=0.0)
    p = tl.where(real, p.to(tl.float64), -float("inf"))
    top = tl.max(p, axis=1)
    peak = top
    to = rows_ptr + row
    if SOFTMAX:
        e = tl.where(real, tl.exp(p - top[:, None]), 0.0)
        peak = 1.0 / sum_pairs(e, ROWS, STEPS)
        p = e * peak[:, None]
        if not KEPT:
            tl.store(to, top, mask=there)
            tl.store(to + total, peak, mask=there)
    else:
        p = tl.where(real, p, 0.0)
    key = tl.min(vote_key(p, peak[:, None], c[None, :], real), axis=1)
    tl.store(to + 2 * total, sum_pairs(entropy_terms(p), ROWS, STEPS), mask=there)
    tl.store(to + 3 * total, (key & (NO_NAN - 1)).to(tl.float64), mask=there)
    if RANGES:
        sums = tl.where(key >= NO_NAN, sum_pairs(p, ROWS, STEPS), float("nan"))
        tl.store(to + 4 * total, sums, mask=there)
        entry = tl.min(tl.where(real, p, float("inf")), axis=1)
        tl.store(to + 5 * total, entry, mask=there)
    FIELDS: tl.constexpr = 6 if RANGES else 4
    inverse = 1.0 / (tl.cast(first, tl.int64) + t + 1).to(tl.float64)
    tl.store(rows_ptr + FIELDS * total + t, inverse, mask=there & (b == 0))
    place = row[:, None] * C + c[None, :]
    if KEPT:
        tl.store(rows_ptr + FIELDS * total + passes + place, p, mask=valid)
    if SAMPLES:
        tl.store(samples_ptr + place, p, mask=valid)
