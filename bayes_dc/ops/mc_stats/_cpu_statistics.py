"""Pass statistics on the CPU, compiled: the rows of an input one pass after another."""

import math
from typing import Any

import numpy as np

from bayes_dc.rng.numba_jit import compiled, inlined

GROUPS = 32
"""Room for the values without each jackknife group: at least MAX_GROUPS of mc.statistics."""


@inlined
def _entropy_term(p: float) -> float:
    """−p log p as torch.special.entr: 0 at 0, −inf below, NaN for NaN."""
    if p > 0.0:
        return -p * math.log(p)
    if p == 0.0:
        return 0.0
    if p < 0.0:
        return -np.inf
    return p


@compiled
def update_inputs(
    start: int,
    stop: int,
    y: Any,
    mean: Any,
    m2: Any,
    votes: Any,
    expected: Any,
    probs: Any,
    entropies: Any,
    ranges: Any,
    samples: Any,
    first: int,
    softmax: bool,
) -> None:
    """Add the passes of y [passes, B, C] to inputs start … stop − 1; empty: not asked for."""
    passes, _, C = y.shape
    J = probs.shape[0]
    for b in range(start, stop):
        if first == 0:  # whatever lies there
            mean[b], m2[b], votes[b], expected[b] = 0.0, 0.0, 0, 0.0
            probs[:, b], entropies[:, b] = 0.0, 0.0
            if ranges.shape[0] > 0:
                ranges[0, b], ranges[1, b], ranges[2, b] = np.inf, -np.inf, np.inf
        for t in range(passes):
            group = (first + t) % J
            count = float(first + t + 1)
            # The peak as torch finds it: NaN if there is one.
            top: Any = -np.inf
            for c in range(C):
                v = np.float64(y[t, b, c])
                if v > top or v != v:
                    top = v
                if top != top:
                    break
            total = 0.0
            if softmax:
                for c in range(C):
                    total += math.exp(np.float64(y[t, b, c]) - top)
            entropy = 0.0
            row_sum = 0.0
            least: Any = np.inf
            best: Any = -np.inf
            chosen = 0
            unknown = False
            for c in range(C):
                p: Any = np.float64(y[t, b, c])
                if softmax:
                    p = math.exp(p - top) / total
                entropy += _entropy_term(p)
                row_sum += p
                least = min(least, p)
                if not unknown and (p > best or p != p):
                    best = p
                    chosen = c
                    unknown = p != p
                if samples.shape[0] > 0:
                    samples[t, b, c] = p
                delta = p - mean[b, c]
                mean[b, c] += delta / count
                m2[b, c] += delta * (p - mean[b, c])
                probs[group, b, c] += p
            votes[b, chosen] += 1
            expected[b] += (entropy - expected[b]) / count
            entropies[group, b] += entropy
            if ranges.shape[0] > 0 and not unknown:
                ranges[0, b] = min(ranges[0, b], row_sum)
                ranges[1, b] = max(ranges[1, b], row_sum)
                ranges[2, b] = min(ranges[2, b], least)


@inlined
def _jackknife(full: float, without: Any, J: int, T: int) -> Any:
    """Corrected value and standard error from the values without each group."""
    small, rest = T // J, T % J
    parts = 0.0
    for j in range(J):
        h = T / (small + 1 if j < rest else small)
        parts += (1.0 - 1.0 / h) * without[j]
    corrected = J * full - parts
    squares = 0.0
    for j in range(J):
        h = T / (small + 1 if j < rest else small)
        gap = h * full - (h - 1.0) * without[j] - corrected
        squares += gap * gap / (h - 1.0)
    return corrected, math.sqrt(squares / J)


@compiled
def summarise_inputs(
    start: int,
    stop: int,
    mean: Any,
    m2: Any,
    votes: Any,
    expected: Any,
    probs: Any,
    entropies: Any,
    classes: Any,
    inputs: Any,
    T: int,
) -> None:
    """Write the summary of inputs start … stop − 1."""
    J, _, C = probs.shape
    without_total = np.empty(GROUPS)
    without_information = np.empty(GROUPS)
    small, rest = T // J, T % J
    for b in range(start, stop):
        total = 0.0
        most = 0
        unknown = False
        for c in range(C):
            p = mean[b, c]
            variance = m2[b, c] / max(T - 1, 1)
            classes[0, b, c] = p
            classes[1, b, c] = variance
            classes[2, b, c] = math.sqrt(variance / T)
            total += _entropy_term(p)
            most = max(most, votes[b, c])
            unknown = unknown or p != p
        difference = total - expected[b]
        information = 0.0 if difference < 0.0 else difference
        corrected, entropy_se, information_se = information, 0.0, 0.0
        if J > 1:
            for j in range(J):
                without_total[j] = 0.0
            for c in range(C):
                together = 0.0
                for j in range(J):
                    together += probs[j, b, c]
                for j in range(J):
                    left = float(T - (small + 1 if j < rest else small))
                    without_total[j] += _entropy_term((together - probs[j, b, c]) / left)
            together = 0.0
            for j in range(J):
                together += entropies[j, b]
            for j in range(J):
                left = float(T - (small + 1 if j < rest else small))
                without_information[j] = without_total[j] - (together - entropies[j, b]) / left
            _, entropy_se = _jackknife(total, without_total, J, T)
            corrected, information_se = _jackknife(difference, without_information, J, T)
        inputs[0, b] = total
        inputs[1, b] = expected[b]
        inputs[2, b] = information
        inputs[3, b] = corrected
        inputs[4, b] = np.nan if unknown else 1.0 - most / T
        inputs[5, b] = entropy_se
        inputs[6, b] = information_se
