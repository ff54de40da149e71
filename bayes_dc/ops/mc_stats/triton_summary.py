"""Streaming statistics of Monte Carlo passes: what T passes say, from the state of the update.

Shapes      state as in triton_update.py; out_classes [3, B, C]: mean, variance, its standard error;
            out_inputs [7, B]: the other fields of Summary, in its order. float64, contiguous.
Summary     H(mean), its difference from the expected entropy, and the jackknife of both over J
            groups of m_j passes: θ_(j) from (Σ_i probs[i] − probs[j]) / (T − m_j); see op.summary.
Grid        one program for each input, over blocks of classes.
Precision   float64.
Order       groups ascend; classes add as a tree, that of triton_update.py for H(mean): equal passes
            have exactly no mutual information. No fused multiply-add, no atomics.
Cost        J logarithms and divisions for each (input, class).
Source      Busing, Meijer, van der Leeden 1999, *Delete-m jackknife for unequal m*.
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops.mc_stats.triton_rows import RowLayout, entropy_terms, row_layout, sum_pairs

GROUP_STEPS = 5
"""Logarithm of the groups in a tile: at least MAX_GROUPS of bayes_dc.mc.statistics."""

_MANY = 512
AHEAD = tl.constexpr(5)
_RUNTIME = ("T", "B", "C", "J")
_POINTERS = (
    *("mean_ptr", "m2_ptr", "votes_ptr", "expected_ptr", "probs_ptr", "entropies_ptr"),
    *("classes_ptr", "inputs_ptr"),
)


@triton.jit
def _jackknife(full, without, h, J, real, STEPS: tl.constexpr):
    """Corrected value and standard error from the values ``without`` each group, h = T / m."""
    parts = tl.where(real, (1.0 - 1.0 / h) * without, 0.0)
    corrected = J * full - sum_pairs(parts, 1, STEPS)
    pseudo = h * full[:, None] - (h - 1.0) * without
    gap = pseudo - corrected[:, None]
    squares = tl.where(real, gap * gap / (h - 1.0), 0.0)
    return corrected, tl.sqrt(sum_pairs(squares, 1, STEPS) / J)


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
    J,
    STEPS: tl.constexpr,
    TILE_STEPS: tl.constexpr,
    GROUP_STEPS: tl.constexpr,
):
    """All fields of one input."""
    BLOCK: tl.constexpr = 1 << STEPS
    TILE: tl.constexpr = 1 << TILE_STEPS
    GROUPS: tl.constexpr = 1 << GROUP_STEPS
    b = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    inputs = tl.cast(B, tl.int64)  # multiples of B, as of B · C, pass 2**31
    size = inputs * C
    lanes = tl.arange(0, BLOCK)[None, :]
    passes = (one + tl.cast(T, tl.int64)).to(tl.float64)
    freedom = tl.maximum(passes - 1.0, 1.0)
    terms = tl.zeros([1, BLOCK], tl.float64)
    most = tl.zeros([1, BLOCK], tl.int64)
    bad = tl.zeros([1, BLOCK], tl.int32)
    for start in range(0, C, BLOCK):
        c = start + lanes
        valid = c < C
        at = b * C + c
        mean = tl.load(mean_ptr + at, mask=valid, other=0.0)
        variance = tl.load(m2_ptr + at, mask=valid, other=0.0) / freedom[:, None]
        terms += entropy_terms(mean)
        bad |= (mean != mean).to(tl.int32)
        most = tl.maximum(most, tl.load(votes_ptr + at, mask=valid, other=0))
        tl.store(classes_ptr + at, mean, mask=valid)
        tl.store(classes_ptr + size + at, variance, mask=valid)
        tl.store(classes_ptr + 2 * size + at, tl.sqrt(variance / passes[:, None]), mask=valid)
    total = sum_pairs(terms, 1, STEPS)
    expected = tl.load(expected_ptr + b + one)
    ratio = 1.0 - tl.max(most, axis=1).to(tl.float64) / passes
    ratio = tl.where(tl.max(bad, axis=1) > 0, float("nan"), ratio)
    difference = total - expected
    information = tl.where(difference < 0.0, 0.0, difference)
    corrected = information
    entropy_se = tl.zeros([1], tl.float64)
    information_se = tl.zeros([1], tl.float64)
    if J > 1:
        group = tl.arange(0, GROUPS)
        real = group < J
        m = (tl.cast(T, tl.int64) // J + (group < tl.cast(T, tl.int64) % J)).to(tl.float64)
        left = passes - m
        sums = tl.zeros([GROUPS, TILE], tl.float64)
        for start in range(0, C, TILE):
            c = start + tl.arange(0, TILE)
            at = b * C + c
            together = tl.zeros([TILE], tl.float64)
            for first in range(0, J, AHEAD):
                for i in tl.static_range(AHEAD):  # their loads are on their way at once
                    valid = (c < C) & (first + i < J)
                    from_group = probs_ptr + (first + i) * size + at
                    together += tl.load(from_group, mask=valid, other=0.0)
            of_group = tl.load(
                probs_ptr + group[:, None] * size + at[None, :],
                mask=real[:, None] & (c < C)[None, :],
                other=0.0,
            )
            sums += entropy_terms((together[None, :] - of_group) / left[:, None])
        without = sum_pairs(sums, GROUPS, TILE_STEPS)
        together_h = tl.zeros([1], tl.float64)
        for first in range(0, J, AHEAD):
            for i in tl.static_range(AHEAD):
                there = first + i + one < J
                from_group = entropies_ptr + (first + i) * inputs + b + one
                together_h += tl.load(from_group, mask=there, other=0.0)
        of_group_h = tl.load(entropies_ptr + group * inputs + b, mask=real, other=0.0)
        without_h = (together_h - of_group_h) / left
        h = tl.where(real, passes / m, 2.0)[None, :]
        groups = J + tl.zeros([1], tl.float64)
        _, entropy_se = _jackknife(total, without[None, :], h, groups, real[None, :], GROUP_STEPS)
        corrected, information_se = _jackknife(
            difference, (without - without_h)[None, :], h, groups, real[None, :], GROUP_STEPS
        )
    to = inputs_ptr + b + one
    tl.store(to, total)
    tl.store(to + inputs, expected)
    tl.store(to + 2 * inputs, information)
    tl.store(to + 3 * inputs, corrected)
    tl.store(to + 4 * inputs, ratio)
    tl.store(to + 5 * inputs, entropy_se)
    tl.store(to + 6 * inputs, information_se)


def tile_steps(layout: RowLayout, warps: int) -> int:
    """Logarithm of the classes in a tile of groups: at most 8 for a warp, 8 numbers a thread."""
    return min(layout.steps, 2 + warps.bit_length())


def warps_of(layout: RowLayout, B: int) -> int:
    """Four for few inputs, whose time is that of one; then as few as hold a tile in registers."""
    return max(4 if B < _MANY else 1, layout.warps // 2)


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
    warps = warps_of(layout, B)
    with _launch.on_device_of(mean):
        mc_stats_summary_kernel[(B,)](
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
            probs.shape[0],
            STEPS=layout.steps,
            TILE_STEPS=tile_steps(layout, warps),
            GROUP_STEPS=GROUP_STEPS,
            num_warps=warps,
            enable_fp_fusion=False,
        )
