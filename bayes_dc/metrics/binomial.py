"""Exact bounds of a probability from a count: Clopper and Pearson.

Of n independent trials k succeeded. With X ~ Binomial(n, p)::

    upper bound at confidence 1 − δ: the p with P(X ≤ k) = δ, or 1 if k = n
    lower bound at confidence 1 − δ: the p with P(X ≥ k) = δ, or 0 if k = 0

Whatever p is, each lies on its side of p with probability at least 1 − δ, for any n: nothing is
asymptotic.
Source: Clopper & Pearson 1934, "The use of confidence or fiducial limits illustrated in the case of
the binomial", Biometrika 26.
"""

import math

import torch

from bayes_dc.metrics._checks import check_confidence, is_integer

_MOST_STEPS = 60

_COUNT = (
    "successes and n must be integers with 0 ≤ successes ≤ n and n ≥ 1; got {successes!r} of {n!r}."
)


def binomial_upper(successes: int, n: int, confidence: float = 0.95) -> float:
    """One-sided upper bound of a probability; see the module.

    Args:
        successes: Trials that succeeded, such as mistakes.
        n: Number of trials, at least 1.
        confidence: Between 0 and 1; at 0.95 the bound is too low in at most 5 of 100 repetitions.

    Returns:
        A probability, at least ``successes / n``.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check(successes, n)
    tail = 1.0 - check_confidence(confidence)
    if successes == n:
        return 1.0
    return _upper(successes, n, tail)


def binomial_lower(successes: int, n: int, confidence: float = 0.95) -> float:
    """One-sided lower bound of a probability; see the module.

    Args:
        successes: Trials that succeeded.
        n: Number of trials, at least 1.
        confidence: Between 0 and 1.

    Returns:
        A probability, at most ``successes / n``.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check(successes, n)
    return 1.0 - binomial_upper(n - successes, n, confidence)


def binomial_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of a probability: both bounds, each at half the tail.

    Args:
        successes: Trials that succeeded.
        n: Number of trials, at least 1.
        level: Confidence level, between 0 and 1.

    Returns:
        Lower and upper end, 0 … 1.

    Raises:
        ValueError: If an argument is out of range.
    """
    one_sided = (1.0 + check_confidence(level)) / 2
    return binomial_lower(successes, n, one_sided), binomial_upper(successes, n, one_sided)


def _upper(k: int, n: int, tail: float) -> float:
    """The p with P(X ≤ k) = tail, k < n, by Newton's method on the logarithm."""
    # log P(X ≤ k) is concave in p and falls, so from the right of the root every step stays there.
    # Right of it are the p of Hoeffding's inequality and that of P(X < n) = tail.
    i = torch.arange(k + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    goal = math.log(tail)
    p = min(k / n + math.sqrt(-goal / (2 * n)), (1 - tail) ** (1 / n))
    for _ in range(_MOST_STEPS):
        terms = ways + i * math.log(p) + (n - i) * math.log1p(-p)
        value = terms.logsumexp(dim=0).item()
        # dP(X ≤ k)/dp = −(n − k) / (1 − p) · P(X = k)
        slope = -(n - k) / (1 - p) * math.exp(terms[-1].item() - value)
        step = (value - goal) / slope
        if not p - step < p:  # what is left is rounding
            break
        p -= step
    return p


def _check(successes: object, n: object) -> None:
    """Raise unless the counts are counts."""
    numbers = [is_integer(v) for v in (successes, n)]
    if not all(numbers) or not 0 <= successes <= n or n < 1:  # type: ignore[operator]
        raise ValueError(_COUNT.format(successes=successes, n=n))
