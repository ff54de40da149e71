"""Streaming statistics of Monte Carlo passes: what T passes say, from the state of the update.

Shapes      state as in triton_update.py; out_classes [3, B, C]: mean, variance, its standard error;
            out_inputs [7, B]: the other fields of Summary, in its order. float64, contiguous.
Summary     H(mean), its difference from the expected entropy, and the jackknife of both over J
            groups of m_j passes: θ_(j) from (Σ_i probs[i] − probs[j]) / (T − m_j); see op.summary.
Grid        one program for each input, over blocks of classes, for what is one number for it; then
            one for each PAIRS entries of out_classes.
Precision   float64.
Order       groups ascend; classes add as a tree, that of triton_update.py for H(mean): equal passes
            have exactly no mutual information. No fused multiply-add, no atomics. Sums over classes
            depend on C alone: not on B, nor on the warps.
Cost        J logarithms and divisions for each (input, class); with few inputs bound by a chain of
            latencies, so that everything is read before anything is computed.
Limits      J is a constant: 20 kernels at most, one from 20 passes on.
Source      Busing, Meijer, van der Leeden 1999, *Delete-m jackknife for unequal m*.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.mc_stats.triton_rows import RowLayout, entropy_terms, row_layout, sum_pairs

GROUP_STEPS = 5
"""Logarithm of the groups in a tile: at least MAX_GROUPS of bayes_dc.mc.statistics."""

PAIRS = 128
_FEW, _MANY = 128, 512
_RUNTIME = ("T", "B", "C")
_POINTERS = (
    *("mean_ptr", "m2_ptr", "votes_ptr", "expected_ptr", "probs_ptr", "entropies_ptr"),
    *("classes_ptr", "inputs_ptr"),
)


@triton.jit
def _group_sums(probs_ptr, at, valid, size, group, J: tl.constexpr):
    """Sums of the J groups, one by one and as a tile [GROUPS, TILE]."""
    each = ()
    for j in tl.static_range(J):
        each = each + (tl.load(probs_ptr + j * size + at, mask=valid, other=0.0),)
    there = (group < J)[:, None] & valid[None, :]
    from_group = probs_ptr + group[:, None] * size + at[None, :]
    return each, tl.load(from_group, mask=there, other=0.0)


@triton.jit
def _in_order(each, J: tl.constexpr):
    together = each[0]
    for j in tl.static_range(1, J):
        together += each[j]
    return together


@triton.jit
def _jackknife(full, without, h, shrink, real, J: tl.constexpr, STEPS: tl.constexpr):
    """Corrected values [2, 1] and standard errors [2], from values without each group, h = T / m.

    ``full`` is [2, 1], ``without`` [2, 2**STEPS], ``shrink`` = 1 − 1 / h.
    """
    groups = J + tl.zeros([2], tl.float64)
    parts = tl.where(real, shrink * without, 0.0)
    corrected = groups[:, None] * full - sum_pairs(parts, 2, STEPS)[:, None]
    pseudo = h * full - (h - 1.0) * without
    gap = pseudo - corrected
    squares = tl.where(real, gap * gap / (h - 1.0), 0.0)
    return corrected, tl.sqrt(sum_pairs(squares, 2, STEPS) / groups)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)
def mc_stats_summary_kernel(
    mean_ptr,
    m2_ptr,
    votes_ptr,
    expected_ptr,
    probs_ptr,
    entropies_ptr,
    classes_ptr,
    inputs_ptr,
    T,
    B,
    C,
    J: tl.constexpr,
    ONE: tl.constexpr,
    STEPS: tl.constexpr,
    TILE_STEPS: tl.constexpr,
    GROUP_STEPS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """All fields of one input, of a tile of classes (ONE) or several; or those of PAIRS entries."""
    BLOCK: tl.constexpr = 1 << STEPS
    TILE: tl.constexpr = 1 << TILE_STEPS
    one = tl.arange(0, 1)
    inputs = tl.cast(B, tl.int64)  # multiples of B, as of B · C, pass 2**31
    size = inputs * C
    program = tl.program_id(0).to(tl.int64)
    if program >= inputs:
        pair = (program - inputs) * PAIRS + tl.arange(0, PAIRS)
        inside = pair < size
        count = (tl.zeros([PAIRS], tl.int64) + T).to(tl.float64)
        entry = tl.load(mean_ptr + pair, mask=inside, other=0.0)
        squares = tl.load(m2_ptr + pair, mask=inside, other=0.0)
        variance = squares / tl.maximum(count - 1.0, 1.0)
        tl.store(classes_ptr + pair, entry, mask=inside)
        tl.store(classes_ptr + size + pair, variance, mask=inside)
        tl.store(classes_ptr + 2 * size + pair, tl.sqrt(variance / count), mask=inside)
    else:
        b = program
        passes = (one + tl.cast(T, tl.int64)).to(tl.float64)
        lanes, tile = tl.arange(0, BLOCK)[None, :], tl.arange(0, TILE)
        group = tl.arange(0, 1 << GROUP_STEPS)
        real = group < J
        # All that is read, on its way at once.
        mean = tl.load(mean_ptr + b * C + lanes, mask=lanes < C, other=0.0)
        most = tl.load(votes_ptr + b * C + lanes, mask=lanes < C, other=0)
        expected = tl.load(expected_ptr + b + one)
        if J > 1:
            if ONE:
                each, of_group = _group_sums(probs_ptr, b * C + tile, tile < C, size, group, J)
            each_h = ()
            for j in tl.static_range(J):
                each_h = each_h + (tl.load(entropies_ptr + j * inputs + b + one),)
            of_group_h = tl.load(entropies_ptr + group * inputs + b, mask=real, other=0.0)
            m = (tl.cast(T, tl.int64) // J + (group < tl.cast(T, tl.int64) % J)).to(tl.float64)
            left, h = passes - m, tl.where(real, passes / m, 2.0)
            shrink = 1.0 - 1.0 / h
        terms = entropy_terms(mean)
        bad = (mean != mean).to(tl.int32)
        for start in range(BLOCK, C, BLOCK):
            c = start + lanes
            more = tl.load(mean_ptr + b * C + c, mask=c < C, other=0.0)
            votes = tl.load(votes_ptr + b * C + c, mask=c < C, other=0)
            terms += entropy_terms(more)
            bad |= (more != more).to(tl.int32)
            most = tl.maximum(most, votes)
        total = sum_pairs(terms, 1, STEPS)
        ratio = 1.0 - tl.max(most, axis=1).to(tl.float64) / passes
        ratio = tl.where(tl.max(bad, axis=1) > 0, float("nan"), ratio)
        difference = total - expected
        information = tl.where(difference < 0.0, 0.0, difference)
        to = inputs_ptr + b + one
        tl.store(to, total)
        tl.store(to + inputs, expected)
        tl.store(to + 2 * inputs, information)
        tl.store(to + 4 * inputs, ratio)
        if J > 1:
            if ONE:
                left_out = _in_order(each, J)[None, :] - of_group
                sums = entropy_terms(left_out / left[:, None])
            else:
                sums = tl.zeros([1 << GROUP_STEPS, TILE], tl.float64)
                for start in range(0, C, TILE):
                    c = start + tile
                    parts, of_part = _group_sums(probs_ptr, b * C + c, c < C, size, group, J)
                    left_out = _in_order(parts, J)[None, :] - of_part
                    sums += entropy_terms(left_out / left[:, None])
            without = sum_pairs(sums, 1 << GROUP_STEPS, TILE_STEPS)
            without_h = (_in_order(each_h, J) - of_group_h) / left
            # The entropy, and its difference from the expected one, side by side.
            first = tl.arange(0, 2)[:, None] == 0
            full = tl.where(first, total[None, :], difference[None, :])
            values = tl.where(first, without[None, :], (without - without_h)[None, :])
            corrected, error = _jackknife(
                full, values, h[None, :], shrink[None, :], real[None, :], J, GROUP_STEPS
            )
            which = tl.arange(0, 2)
            tl.store(inputs_ptr + b + (5 + which) * inputs, error)
            to_corrected = inputs_ptr + b + (3 * inputs + which * 0)[:, None]
            tl.store(to_corrected, corrected, mask=(which == 1)[:, None])
        else:
            tl.store(to + 3 * inputs, information)
            tl.store(to + 5 * inputs, tl.zeros([1], tl.float64))
            tl.store(to + 6 * inputs, tl.zeros([1], tl.float64))


def tile_steps(layout: RowLayout) -> int:
    """Logarithm of the classes in a tile of groups: a function of C, as is the order of sums."""
    return min(layout.steps, 2 + max(4, layout.warps // 2).bit_length())


def warps_of(layout: RowLayout, B: int) -> int:
    """Two numbers of a tile for a thread with few inputs, whose time is that of one; then more."""
    numbers = 2 if B <= _FEW else 4 if B < _MANY else 8
    return max(1, min((1 << tile_steps(layout)) // numbers, 8))


def launch_summary(
    mean: Tensor,
    m2: Tensor,
    votes: Tensor,
    expected: Tensor,
    probs: Tensor,
    entropies: Tensor,
    out_classes: Tensor,
    out_inputs: Tensor,
    *,
    T: int,
) -> None:
    """Write every field into the two outputs; see the module."""
    B, C = mean.shape
    if B == 0:
        return
    layout = row_layout(C)
    tile = tile_steps(layout)
    with _launch.on_device_of(mean):
        mc_stats_summary_kernel[(B + triton.cdiv(B * C, PAIRS),)](
            mean,
            m2,
            votes,
            expected,
            probs,
            entropies,
            out_classes,
            out_inputs,
            T,
            B,
            C,
            J=probs.shape[0],
            ONE=C <= 1 << tile,
            STEPS=layout.steps,
            TILE_STEPS=tile,
            GROUP_STEPS=GROUP_STEPS,
            PAIRS=PAIRS,
            num_warps=warps_of(layout, B),
            enable_fp_fusion=False,
        )
