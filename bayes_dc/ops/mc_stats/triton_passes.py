"""Streaming statistics of Monte Carlo passes, up to MAX_BLOCK classes: rows first, then the sums.

Shapes      y [passes, B, C], any strides; the state as in triton_update.py; rows float64: what the
            first kernel leaves for the second, FIELDS [passes, B], then 1 / (t + 1) [passes], then,
            where there is room for them, probabilities [passes, B, C] (KEPT).
Rows        largest entry, 1 / Σ exp(y − largest), entropy, class voted for; with RANGES sum and
            least entry too, a NaN sum for a row with NaN.
Passes      the update of triton_update.py. The J sums over groups, mean and m2, votes, and what
            there is once for an input are made by programs of their own: J + 3 of them for a block
            of (input, class) pairs, each of which goes through its passes.
Grid        rows: (cdiv(passes · B, ROWS)); passes: (cdiv(B · C, BLOCK), J + 3).
Precision   float64 from the first operation on y; probabilities that are not kept are made again.
            A division by t + 1 is the product with its inverse, corrected by two fused operations:
            that rounds as a division does, in a quarter of the time (Markstein 1990).
Order       passes ascend, one after another; classes add as a tree (triton_rows.py); no fused
            multiply-add, no atomics.
Cost        an exponential (three, if not kept) and a logarithm for each (pass, input, class);
            bound by the chain of one pass after another, whose loads are made UNROLL passes ahead.
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


@triton.jit
def _probability(
    y, rows, kept, t, passes, inputs, size, stride_yp, inside,
    SOFTMAX: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """Entries of pass t, 0 behind the last; ``rows`` and ``kept`` point at those of pass 0."""
    valid = inside & (t < passes)
    step = tl.cast(t, tl.int64)
    if KEPT:
        p = tl.load(kept + step * size, mask=valid, other=0.0)
    else:
        p = tl.load(y + step * stride_yp, mask=valid, other=0.0).to(tl.float64)
        if SOFTMAX:
            total = tl.cast(passes, tl.int64) * inputs
            top = tl.load(rows + step * inputs, mask=valid, other=0.0)
            p = tl.exp(p - top) * tl.load(rows + total + step * inputs, mask=valid, other=0.0)
    return p


@triton.jit
def _divided(a, count, inverse, FUSED: tl.constexpr):
    """Quotient a / count, rounded once."""
    if FUSED:
        q = a * inverse
        better = tl.fma(tl.fma(-q, count, a), inverse, q)
        return tl.where(tl.abs(q) < float("inf"), better, q)
    else:
        return a / count


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def mc_stats_passes_kernel(
    y_ptr,
    rows_ptr,
    mean_ptr,
    m2_ptr,
    votes_ptr,
    expected_ptr,
    probs_ptr,
    entropies_ptr,
    ranges_ptr,
    first,
    passes,
    B,
    C,
    J,
    stride_yp,
    stride_yb,
    stride_yc,
    SOFTMAX: tl.constexpr,
    RANGES: tl.constexpr,
    KEPT: tl.constexpr,
    FUSED: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """One part of the state, of BLOCK pairs of an input and a class."""
    part = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inputs = tl.cast(B, tl.int64)
    size, total = inputs * C, tl.cast(passes, tl.int64) * inputs
    inside, one = at < size, at < inputs  # pairs; inputs, where there is one entry for each
    b, c = at // C, at % C
    y = y_ptr + b * stride_yb + c * stride_yc
    rows = rows_ptr + b
    begun = tl.cast(first, tl.int64)
    stride = tl.cast(stride_yp, tl.int64)
    FIELDS: tl.constexpr = 6 if RANGES else 4
    inverses = rows_ptr + FIELDS * total
    kept = inverses + passes + at
    if part < J:
        to_probs = probs_ptr + part * size + at
        to_entropies = entropies_ptr + part * inputs + at
        sums = tl.load(to_probs, mask=inside, other=0.0)
        total_h = tl.load(to_entropies, mask=one, other=0.0)
        lowest = ((part - begun % J + J) % J).to(tl.int32)
        for start in range(lowest, passes, UNROLL * J):
            p, h = (), ()
            for i in tl.static_range(UNROLL):
                t = start + i * J
                one_p = _probability(
                    y, rows, kept, t, passes, inputs, size, stride, inside, SOFTMAX, KEPT
                )
                p = p + (one_p,)
                from_h = rows_ptr + 2 * total + tl.cast(t, tl.int64) * inputs + at
                h = h + (tl.load(from_h, mask=one & (t < passes), other=0.0),)
            for i in tl.static_range(UNROLL):
                there = start + i * J < passes
                sums = tl.where(there, sums + p[i], sums)
                total_h = tl.where(there, total_h + h[i], total_h)
        tl.store(to_probs, sums, mask=inside)
        tl.store(to_entropies, total_h, mask=one)
    elif part == J:
        mean = tl.load(mean_ptr + at, mask=inside, other=0.0)
        m2 = tl.load(m2_ptr + at, mask=inside, other=0.0)
        for start in range(0, passes, UNROLL):
            p, inverse = (), ()
            for i in tl.static_range(UNROLL):
                t = start + i
                inverse = inverse + (tl.load(inverses + t, mask=t < passes, other=0.0),)
                one_p = _probability(
                    y, rows, kept, t, passes, inputs, size, stride, inside, SOFTMAX, KEPT
                )
                p = p + (one_p,)
            for i in tl.static_range(UNROLL):
                there = start + i < passes
                delta = p[i] - mean
                count = (begun + start + i + 1).to(tl.float64)
                moved = mean + _divided(delta, count, inverse[i], FUSED)
                m2 = tl.where(there, m2 + delta * (p[i] - moved), m2)
                mean = tl.where(there, moved, mean)
        tl.store(mean_ptr + at, mean, mask=inside)
        tl.store(m2_ptr + at, m2, mask=inside)
    elif part == J + 1:
        votes = tl.load(votes_ptr + at, mask=inside, other=0)
        for start in range(0, passes, UNROLL):
            chosen = ()
            for i in tl.static_range(UNROLL):
                t = start + i
                valid = inside & (t < passes)
                from_row = rows + 3 * total + tl.cast(t, tl.int64) * inputs
                chosen = chosen + (tl.load(from_row, mask=valid, other=-1.0),)
            for i in tl.static_range(UNROLL):
                votes += (chosen[i].to(tl.int64) == c).to(tl.int64)
        tl.store(votes_ptr + at, votes, mask=inside)
    else:
        expected = tl.load(expected_ptr + at, mask=one, other=0.0)
        if RANGES:
            low = tl.load(ranges_ptr + at, mask=one, other=0.0)
            high = tl.load(ranges_ptr + inputs + at, mask=one, other=0.0)
            least = tl.load(ranges_ptr + 2 * inputs + at, mask=one, other=0.0)
        for start in range(0, passes, UNROLL):
            h, inverse, sums, entries = (), (), (), ()
            for i in tl.static_range(UNROLL):
                t = start + i
                inverse = inverse + (tl.load(inverses + t, mask=t < passes, other=0.0),)
                valid = one & (t < passes)
                from_row = rows_ptr + tl.cast(t, tl.int64) * inputs + at
                h = h + (tl.load(from_row + 2 * total, mask=valid, other=0.0),)
                if RANGES:
                    nan = float("nan")
                    sums = sums + (tl.load(from_row + 4 * total, mask=valid, other=nan),)
                    entries = entries + (tl.load(from_row + 5 * total, mask=valid, other=nan),)
            for i in tl.static_range(UNROLL):
                there = start + i < passes
                count = (begun + start + i + 1).to(tl.float64)
                step = _divided(h[i] - expected, count, inverse[i], FUSED)
                expected = tl.where(there, expected + step, expected)
                if RANGES:
                    known = sums[i] == sums[i]
                    low = tl.where(known, tl.minimum(low, sums[i]), low)
                    high = tl.where(known, tl.maximum(high, sums[i]), high)
                    least = tl.where(known, tl.minimum(least, entries[i]), least)
        tl.store(expected_ptr + at, expected, mask=one)
        if RANGES:
            tl.store(ranges_ptr + at, low, mask=one)
            tl.store(ranges_ptr + inputs + at, high, mask=one)
            tl.store(ranges_ptr + 2 * inputs + at, least, mask=one)
