"""Clopper–Pearson: closed forms, scipy's beta quantiles, and the promise counted exactly."""

import math

import pytest
from scipy import stats

from bayes_dc.metrics import binomial_interval, binomial_lower, binomial_upper

COUNTS = [(0, 1), (0, 10), (1, 10), (9, 10), (3, 100), (50, 1000), (999, 1000), (1200, 60_000)]


@pytest.mark.parametrize(("k", "n"), COUNTS)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9975])
def test_quantiles_of_the_beta_distribution(k, n, confidence):
    # lgamma(n) is about n log n and is rounded to 2⁻⁵²; the density turns that into an error of p
    slack = 8 * n * math.log(n + 1) * 2.0**-52
    upper = binomial_upper(k, n, confidence)
    assert upper == pytest.approx(stats.beta.ppf(confidence, k + 1, n - k), rel=1e-9, abs=slack)
    lower = binomial_lower(k, n, confidence)
    want = stats.beta.ppf(1 - confidence, k, n - k + 1) if k else 0.0
    assert lower == pytest.approx(want, rel=1e-9, abs=slack)
    assert lower <= k / n <= upper


@pytest.mark.parametrize("n", [1, 7, 300])
def test_closed_forms(n):
    """No success: (1 − p)^n = δ. All: 1 above, and p^n = δ below."""
    assert binomial_upper(0, n, 0.95) == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-12)
    assert binomial_upper(n, n, 0.95) == 1.0
    assert binomial_lower(0, n, 0.95) == 0.0
    assert binomial_lower(n, n, 0.95) == pytest.approx(0.05 ** (1 / n), rel=1e-12)


@pytest.mark.parametrize("p", [0.003, 0.1, 0.5, 0.93])
def test_the_bound_is_too_low_as_rarely_as_it_says(p):
    """Summed over all outcomes of 40 trials, not drawn."""
    n, tail = 40, 0.05
    outcomes = stats.binom.pmf(range(n + 1), n, p)
    missed = sum(outcomes[k] for k in range(n + 1) if binomial_upper(k, n, 1 - tail) < p)
    assert missed <= tail
    outside = 0.0
    for k in range(n + 1):
        low, high = binomial_interval(k, n, 1 - tail)
        outside += outcomes[k] * (not low <= p <= high)
    assert outside <= tail


def test_an_interval_is_two_bounds_at_half_the_tail():
    assert binomial_interval(3, 50, 0.9) == (
        binomial_lower(3, 50, 0.95),
        binomial_upper(3, 50, 0.95),
    )


@pytest.mark.parametrize("counts", [(-1, 5), (6, 5), (0, 0), (1.0, 5), (True, 5), (1, "5")])
def test_counts_are_refused(counts):
    with pytest.raises(ValueError, match="successes and n must be integers") as caught:
        binomial_upper(*counts)
    assert str(caught.value) == (
        "successes and n must be integers with 0 ≤ successes ≤ n and n ≥ 1; got "
        f"{counts[0]!r} of {counts[1]!r}."
    )
    with pytest.raises(ValueError, match="successes and n must be integers"):
        binomial_lower(*counts)


@pytest.mark.parametrize("confidence", [0, 1, 95, True, "0.9", math.nan])
def test_confidences_are_refused(confidence):
    text = rf"confidence must be a number between 0 and 1 \(excluded\), .*; got {confidence!r}\."
    for function in (binomial_upper, binomial_lower, binomial_interval):
        with pytest.raises(ValueError, match=text):
            function(1, 5, confidence)
