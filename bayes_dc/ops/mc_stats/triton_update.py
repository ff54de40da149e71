"""Streaming statistics of Monte Carlo passes: add one chunk of passes, in place.

Shapes      y [passes, B, C], any strides; mean, m2, votes [B, C]; expected [B]; probs [J, B, C];
            entropies [J, B]; ranges [3, B] or null; samples [passes, B, C] or null. All but y
            float64 and contiguous, votes int64.
Update      for t = first … first + passes − 1, with p the softmax of a row of y, or the row:
                δ = p − mean;   mean += δ / (t + 1);   m2 += δ (p − mean)
                expected += (H(p) − expected) / (t + 1);   votes[argmax p] += 1
                probs[t mod J] += p;   entropies[t mod J] += H(p)
            ranges: least and largest sum, and least entry, of the rows without NaN. With
            first = 0 from a state of no passes, whatever lies there.
Grid        up to MAX_BLOCK classes as in triton_passes.py, where the work of a pass is shared out;
            above, one program for each input, which goes through the passes.
Precision   float64 from the first operation on y.
Order       passes ascend, one after another; classes add as a tree (triton_rows.py); no fused
            multiply-add, no atomics: how T is cut into chunks, and which inputs lie beside, changes
            no bit.
Cost        exponentials, a logarithm, two divisions and 2 log2 C steps of sums for each (pass,
            input, class), float64; bound by the chain of those steps.
Limits      C < 2**30; row offsets are int64.
Source      Welford 1962, *Note on a method for calculating corrected sums of squares*.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.mc_stats.triton_notes import (
    NO_NAN,
    POINTERS,
    RUNTIME,
    mc_stats_rows_kernel,
    vote_key,
)
from bayes_dc.ops.mc_stats.triton_passes import mc_stats_passes_kernel
from bayes_dc.ops.mc_stats.triton_rows import RowLayout, entropy_terms, row_layout, sum_pairs

_TILE, _MOST_ROWS = 64, 16


@triton.jit(do_not_specialize=RUNTIME, do_not_specialize_on_alignment=POINTERS)
def mc_stats_update_blocks_kernel(
    y_ptr,
    mean_ptr,
    m2_ptr,
    votes_ptr,
    expected_ptr,
    probs_ptr,
    entropies_ptr,
    ranges_ptr,
    samples_ptr,
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
    SAMPLES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """All passes of the chunk for one input, its classes in blocks of 2**STEPS."""
    BLOCK: tl.constexpr = 1 << STEPS
    b = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)[None, :]
    inputs = tl.cast(B, tl.int64)
    size = inputs * C
    number = tl.cast(first, tl.int64)
    old = number > 0
    if number == 0:  # whatever lies there
        for start in range(0, C, BLOCK):
            c = start + lanes
            zero, at = tl.zeros([1, BLOCK], tl.float64), b * C + c
            tl.store(mean_ptr + at, zero, mask=c < C)
            tl.store(m2_ptr + at, zero, mask=c < C)
            tl.store(votes_ptr + at, zero.to(tl.int64), mask=c < C)
            for j in range(0, J):
                tl.store(probs_ptr + j * size + at, zero, mask=c < C)
        for j in range(0, J):
            tl.store(entropies_ptr + j * inputs + b, 0.0)
    expected = tl.load(expected_ptr + b, mask=old, other=0.0)
    if RANGES:
        low = tl.load(ranges_ptr + b, mask=old, other=float("inf"))
        high = tl.load(ranges_ptr + inputs + b, mask=old, other=-float("inf"))
        least = tl.load(ranges_ptr + 2 * inputs + b, mask=old, other=float("inf"))
    for t in range(0, passes):
        tl.debug_barrier()  # what the pass before wrote is read, perhaps by another thread
        y = y_ptr + t * tl.cast(stride_yp, tl.int64) + b * stride_yb
        group = number % J
        number += 1
        count = number.to(tl.float64)
        # Largest entry, then sum: of exponentials, or of the entries themselves.
        most = tl.full([1, BLOCK], -float("inf"), tl.float64)
        smallest = tl.full([1, BLOCK], float("inf"), tl.float64)
        for start in range(0, C, BLOCK):
            c = start + lanes
            p = tl.load(y + c * tl.cast(stride_yc, tl.int64), mask=c < C, other=-float("inf"))
            most = tl.maximum(most, p.to(tl.float64))
            if RANGES:
                smallest = tl.minimum(smallest, tl.where(c < C, p.to(tl.float64), float("inf")))
        top = tl.max(most, axis=1)[:, None]
        sums = tl.zeros([1, BLOCK], tl.float64)
        if SOFTMAX or RANGES:
            for start in range(0, C, BLOCK):
                c = start + lanes
                p = tl.load(y + c * tl.cast(stride_yc, tl.int64), mask=c < C, other=0.0)
                p = p.to(tl.float64)
                if SOFTMAX:
                    p = tl.exp(p - top)
                sums += tl.where(c < C, p, 0.0)
        total = sum_pairs(sums, 1, STEPS)[:, None]
        peak = 1.0 / total if SOFTMAX else top
        terms = tl.zeros([1, BLOCK], tl.float64)
        keys = tl.full([1, BLOCK], 2147483647, tl.int32)
        for start in range(0, C, BLOCK):
            c = start + lanes
            valid = c < C
            at = b * C + c
            p = tl.load(y + c * tl.cast(stride_yc, tl.int64), mask=valid, other=0.0).to(tl.float64)
            if SOFTMAX:
                p = tl.exp(p - top) * peak
            p = tl.where(valid, p, 0.0)
            terms += entropy_terms(p)
            keys = tl.minimum(keys, vote_key(p, peak, c, valid))
            if SAMPLES:
                tl.store(samples_ptr + t * size + at, p, mask=valid)
            mean = tl.load(mean_ptr + at, mask=valid, other=0.0)
            m2 = tl.load(m2_ptr + at, mask=valid, other=0.0)
            group_probs = tl.load(probs_ptr + group * size + at, mask=valid, other=0.0)
            delta = p - mean
            mean += delta / count
            tl.store(mean_ptr + at, mean, mask=valid)
            tl.store(m2_ptr + at, m2 + delta * (p - mean), mask=valid)
            tl.store(probs_ptr + group * size + at, group_probs + p, mask=valid)
        entropy = tl.sum(sum_pairs(terms, 1, STEPS), axis=0)
        key = tl.min(tl.min(keys, axis=1), axis=0)
        chosen = votes_ptr + b * C + (key & (NO_NAN - 1))
        tl.store(chosen, tl.load(chosen) + 1)
        expected += (entropy - expected) / count
        to_entropies = entropies_ptr + group * inputs + b
        tl.store(to_entropies, tl.load(to_entropies) + entropy)
        if RANGES:
            known = key >= NO_NAN
            row = tl.sum(tl.sum(total, axis=1), axis=0)
            entry = tl.min(tl.min(smallest, axis=1), axis=0)
            low = tl.where(known, tl.minimum(low, row), low)
            high = tl.where(known, tl.maximum(high, row), high)
            least = tl.where(known, tl.minimum(least, entry), least)
    tl.store(expected_ptr + b, expected)
    if RANGES:
        tl.store(ranges_ptr + b, low)
        tl.store(ranges_ptr + inputs + b, high)
        tl.store(ranges_ptr + 2 * inputs + b, least)


class PassesConfig(NamedTuple):
    """Launch configuration of ``mc_stats_passes_kernel``: speed only.

    Attributes:
        block: Pairs of an input and a class.
        unroll: Passes whose entries are loaded at once.
        many: The same for votes.
        ahead: Whether they are loaded while those before are added.
    """

    block: int
    unroll: int
    many: int
    ahead: bool


def passes_config(passes: int, *, kept: bool) -> PassesConfig:
    """Measured: many passes wait for the chain of one after another, few for the launch."""
    if not kept:  # exponentials fill the time of the loads
        return PassesConfig(32, 8, 8, ahead=False)
    if passes <= 8:
        return PassesConfig(64, 8, 8, ahead=False)
    return PassesConfig(32, 10, 16, ahead=True)


def rows_of_tile(layout: RowLayout) -> int:
    """Rows of a program of one warp, or of all its warps: two numbers for a thread."""
    return max(1, min(_TILE // layout.block, _MOST_ROWS))


def launch_update(
    y: Tensor,
    mean: Tensor,
    m2: Tensor,
    votes: Tensor,
    expected: Tensor,
    probs: Tensor,
    entropies: Tensor,
    ranges: Tensor | None,
    samples: Tensor | None,
    *,
    first: int,
    softmax: bool,
    rows: Tensor,
) -> None:
    """Add the passes of ``y`` to the state; see the module and ``op.update``.

    ``rows``, float64 ``[op.row_entries(…)]``, is written over.
    """
    B, C = mean.shape
    if B == 0 or C == 0:  # the entropy of no classes is 0, as the state has it
        return
    passes, J = y.shape[0], probs.shape[0]
    layout = row_layout(C)
    kind = {"SOFTMAX": softmax, "RANGES": ranges is not None}
    state = (mean, m2, votes, expected, probs, entropies, mean if ranges is None else ranges)
    into = mean if samples is None else samples
    options = {"num_warps": layout.warps, "enable_fp_fusion": False}
    total = passes * B
    needed = (4 if ranges is None else 6) * total + passes
    kept = rows.numel() >= needed + total * C
    with _launch.on_device_of(y):
        if C > layout.block:
            mc_stats_update_blocks_kernel[(B,)](
                *(y, *state, into, first, passes, B, C, J, *y.stride()),
                **kind,
                SAMPLES=samples is not None,
                STEPS=layout.steps,
                **options,
            )
            return
        tile = rows_of_tile(layout)
        mc_stats_rows_kernel[(triton.cdiv(total, tile),)](
            *(y, rows, into, first, passes, B, C, *y.stride()),
            **kind,
            SAMPLES=samples is not None,
            KEPT=kept,
            ROWS=tile,
            STEPS=layout.steps,
            **options,
        )
        config = passes_config(passes, kept=kept)
        mc_stats_passes_kernel[(triton.cdiv(B * C, config.block), J + 3)](
            *(y, rows, *state, first, passes, B, C, J, *y.stride()),
            **kind,
            KEPT=kept,
            FUSED=not _launch.INTERPRETED,  # whose fma rounds twice
            BLOCK=config.block,
            UNROLL=config.unroll,
            MANY=config.many,
            AHEAD=config.ahead,
            num_warps=1,
            enable_fp_fusion=False,
        )
