"""Streaming statistics of Monte Carlo passes, up to MAX_BLOCK classes: the passes, one by one.

Shapes      the state as in triton_update.py; rows as triton_notes.py left them.
Passes      the update of triton_update.py. The J sums over groups, mean and m2, votes, and what
            there is once for an input are made by programs of their own: J + 3 of them for a block
            of (input, class) pairs, each of which goes through its passes.
Grid        (cdiv(B · C, BLOCK), J + 3).
Precision   float64; probabilities that are not kept are made again. A division by t + 1 is the
            product with its inverse, corrected by two fused operations: that rounds as a division
            does, in a quarter of the time (Markstein 1990). Where a mean is not finite at the end
            the passes are gone through again, with the one case that these two get wrong.
Order       passes ascend, one after another; no other fused multiply-add, no atomics.
Cost        five dependent operations a pass: bound by that chain where there are few inputs. The
            entries of UNROLL passes are on their way while those before are added (AHEAD), which
            takes twice the registers; the chain waits for nothing else.
Limits      C ≤ MAX_BLOCK; row offsets are int64.
"""

import triton
import triton.language as tl

from bayes_dc.ops.mc_stats.triton_notes import POINTERS, RUNTIME

FEW = tl.constexpr(8)


@triton.jit
def _taken(
    source, peaks, step, peak_step, between, left,
    ALL: tl.constexpr, EXP: tl.constexpr, OTHER: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """COUNT entries, ``step`` apart; OTHER behind the first ``left``, unless ALL are there."""
    found = ()
    for i in tl.static_range(COUNT):
        if ALL:
            p = tl.load(source).to(tl.float64)
            if EXP:
                p = tl.exp(p - tl.load(peaks)) * tl.load(peaks + between)
        else:
            p = tl.load(source, mask=i < left, other=OTHER).to(tl.float64)
            if EXP:
                top = tl.load(peaks, mask=i < left, other=0.0)
                p = tl.exp(p - top) * tl.load(peaks + between, mask=i < left, other=0.0)
        source += step
        peaks += peak_step
        found = found + (p,)
    return found


@triton.jit
def _added(
    mean, m2, entries, inverses, count, left,
    ALL: tl.constexpr, FUSED: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Moments with COUNT entries more; with the first ``left`` of them, unless ALL are there."""
    for i in tl.static_range(COUNT):
        delta = entries[i] - mean
        number = count + (i + 1.0)
        if FUSED:
            q = delta * inverses[i]
            moved = mean + tl.fma(tl.fma(q, -number, delta), inverses[i], q)
        else:
            moved = mean + delta / number
        squares = m2 + delta * (entries[i] - moved)
        mean = moved if ALL else tl.where(i < left, moved, mean)
        m2 = squares if ALL else tl.where(i < left, squares, m2)
    return mean, m2


@triton.jit
def _divided(a, count, inverse):
    """Quotient a / count, rounded once, of any numbers."""
    q = a * inverse
    better = tl.fma(tl.fma(q, -count, a), inverse, q)
    return tl.where(tl.abs(q) < float("inf"), better, q)


@triton.jit
def _block(
    source, peaks, inverses, step, peak_step, between, EXP: tl.constexpr, COUNT: tl.constexpr
):
    """COUNT entries that are all there, and what divides by the numbers of their passes."""
    p = _taken(source, peaks, step, peak_step, between, 0, True, EXP, 0.0, COUNT)
    return p, _taken(inverses, inverses, 1, 0, 0, 0, True, False, 0.0, COUNT)


@triton.jit
def _moments(
    source, peaks, inverses, step, peak_step, between, mean_0, m2_0, begun, passes,
    EXP: tl.constexpr, FUSED: tl.constexpr, UNROLL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations with ``passes`` entries more, UNROLL of them ahead."""
    mean, m2, count = mean_0, m2_0, begun.to(tl.float64)
    begin, begin_peaks, begin_inverses = source, peaks, inverses
    whole = passes - passes % UNROLL
    if AHEAD:
        if whole > 0:
            p, inverse = _block(source, peaks, inverses, step, peak_step, between, EXP, UNROLL)
            for _ in range(UNROLL, whole, UNROLL):
                source += UNROLL * step
                peaks += UNROLL * peak_step
                inverses += UNROLL
                next_p, next_inverse = _block(
                    source, peaks, inverses, step, peak_step, between, EXP, UNROLL
                )
                mean, m2 = _added(mean, m2, p, inverse, count, 0, True, FUSED, UNROLL)
                count += UNROLL
                p, inverse = next_p, next_inverse
            mean, m2 = _added(mean, m2, p, inverse, count, 0, True, FUSED, UNROLL)
            count += UNROLL
            source += UNROLL * step
            peaks += UNROLL * peak_step
            inverses += UNROLL
    else:
        for _ in range(0, whole, UNROLL):
            now, now_inverse = _block(
                source, peaks, inverses, step, peak_step, between, EXP, UNROLL
            )
            mean, m2 = _added(mean, m2, now, now_inverse, count, 0, True, FUSED, UNROLL)
            count += UNROLL
            source += UNROLL * step
            peaks += UNROLL * peak_step
            inverses += UNROLL
    left = passes - whole
    if left > 0:
        last = _taken(source, peaks, step, peak_step, between, left, False, EXP, 0.0, UNROLL)
        last_inverse = _taken(inverses, inverses, 1, 0, 0, left, False, False, 0.0, UNROLL)
        mean, m2 = _added(mean, m2, last, last_inverse, count, left, False, FUSED, UNROLL)
    if FUSED:  # of infinite entries and NaN the two fused operations make NaN
        finite = tl.min((tl.abs(mean) < float("inf")).to(tl.int32), axis=0)
        if finite == 0:
            mean, m2 = mean_0, m2_0
            for t in range(0, passes):
                at = tl.cast(t, tl.int64)
                again = _taken(
                    begin + at * step, begin_peaks + at * peak_step, step, peak_step, between, 0,
                    True, EXP, 0.0, 1,
                )  # fmt: skip
                delta = again[0] - mean
                mean += _divided(delta, (begun + t + 1).to(tl.float64), tl.load(begin_inverses + t))
                m2 += delta * (again[0] - mean)
    return mean, m2


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
    MANY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """One part of the state, of BLOCK pairs of an input and a class."""
    part = J + 2 - tl.program_id(1)  # the longest first
    block, lane = tl.program_id(0), tl.arange(0, BLOCK)
    inputs = tl.cast(B, tl.int64)
    size, total = inputs * C, tl.cast(passes, tl.int64) * inputs
    at = block.to(tl.int64) * BLOCK + lane
    inside, one = at < size, at < inputs  # pairs; inputs, where there is one entry for each
    # What is not inside reads the last pair, or the last input, and is not stored.
    pair, each = tl.minimum(at, size - 1), tl.minimum(at, inputs - 1)
    within = block % C * BLOCK + lane  # of BLOCK inputs: a division of 64 bits is slow
    b, c = block // C * tl.cast(BLOCK, tl.int64) + within // C, within % C
    b, c = tl.where(inside, b, 0), tl.where(inside, c, 0)
    begun = tl.cast(first, tl.int64)
    old = begun > 0  # else the state is that of no passes, whatever lies there
    FIELDS: tl.constexpr = 6 if RANGES else 4
    EXP: tl.constexpr = SOFTMAX and not KEPT
    inverses = rows_ptr + FIELDS * total
    peaks, notes = rows_ptr + b, rows_ptr + each
    if KEPT:
        source, step = inverses + passes + pair, size
    else:
        source = y_ptr + b * stride_yb + c * tl.cast(stride_yc, tl.int64)
        step = tl.cast(stride_yp, tl.int64)
    if part < J:
        to_probs = probs_ptr + part * size + at
        to_entropies = entropies_ptr + part * inputs + at
        sums = tl.load(to_probs, mask=inside & old, other=0.0)
        total_h = tl.load(to_entropies, mask=one & old, other=0.0)
        lowest = ((part - begun % J + J) % J).to(tl.int32)
        for start in range(lowest, passes, J * FEW):
            left, t = (passes - start + J - 1) // J, tl.cast(start, tl.int64)
            p = _taken(
                source + t * step, peaks + t * inputs, J * step, J * inputs, total, left,
                False, EXP, 0.0, FEW,
            )  # fmt: skip
            h = _taken(
                notes + 2 * total + t * inputs, notes, J * inputs, 0, 0, left,
                False, False, 0.0, FEW,
            )  # fmt: skip
            for i in tl.static_range(FEW):  # + 0.0 changes no sum: none is −0.0
                sums += p[i]
                total_h += h[i]
        tl.store(to_probs, sums, mask=inside)
        tl.store(to_entropies, total_h, mask=one)
    elif part == J:
        mean = tl.load(mean_ptr + at, mask=inside & old, other=0.0)
        m2 = tl.load(m2_ptr + at, mask=inside & old, other=0.0)
        mean, m2 = _moments(
            source, peaks, inverses + lane * 0, step, inputs, total, mean, m2, begun, passes,
            EXP, FUSED, UNROLL, AHEAD,
        )  # fmt: skip
        tl.store(mean_ptr + at, mean, mask=inside)
        tl.store(m2_ptr + at, m2, mask=inside)
    elif part == J + 1:
        votes = tl.load(votes_ptr + at, mask=inside & old, other=0)
        mine, more = c.to(tl.float64), tl.zeros([BLOCK], tl.int32)
        for start in range(0, passes, MANY):
            from_row = peaks + 3 * total + tl.cast(start, tl.int64) * inputs
            chosen = _taken(from_row, peaks, inputs, 0, 0, passes - start, False, False, -1.0, MANY)
            for i in tl.static_range(MANY):
                more += (chosen[i] == mine).to(tl.int32)
        tl.store(votes_ptr + at, votes + more, mask=inside)
    else:
        expected = tl.load(expected_ptr + at, mask=one & old, other=0.0)
        expected, _ = _moments(
            notes + 2 * total, notes, inverses + lane * 0, inputs, 0, 0, expected, expected, begun,
            passes, False, FUSED, UNROLL, AHEAD,
        )  # fmt: skip
        tl.store(expected_ptr + at, expected, mask=one)
        if RANGES:
            low = tl.load(ranges_ptr + at, mask=one & old, other=float("inf"))
            high = tl.load(ranges_ptr + inputs + at, mask=one & old, other=-float("inf"))
            least = tl.load(ranges_ptr + 2 * inputs + at, mask=one & old, other=float("inf"))
            for start in range(0, passes, FEW):
                from_row, nan = notes + tl.cast(start, tl.int64) * inputs, float("nan")
                left = passes - start
                sums = _taken(
                    from_row + 4 * total, notes, inputs, 0, 0, left, False, False, nan, FEW
                )
                entries = _taken(
                    from_row + 5 * total, notes, inputs, 0, 0, left, False, False, nan, FEW
                )
                for i in tl.static_range(FEW):
                    known = sums[i] == sums[i]
                    low = tl.where(known, tl.minimum(low, sums[i]), low)
                    high = tl.where(known, tl.maximum(high, sums[i]), high)
                    least = tl.where(known, tl.minimum(least, entries[i]), least)
            tl.store(ranges_ptr + at, low, mask=one)
            tl.store(ranges_ptr + inputs + at, high, mask=one)
            tl.store(ranges_ptr + 2 * inputs + at, least, mask=one)
