"""Risk and coverage against all orders of ties, worked numbers, and many samples."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc.metrics import (
    aurc,
    auroc,
    coverage_at_risk,
    excess_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)


def mean_over_orders(uncertainty, loss):
    """Selective risks averaged over every order that sorts the uncertainty."""
    n, curves = len(loss), []
    for order in itertools.permutations(range(n)):
        ranked = uncertainty[list(order)]
        if (ranked[1:] >= ranked[:-1]).all():
            curves.append(loss[list(order)].cumsum() / np.arange(1, n + 1))
    return np.mean(curves, axis=0)


small = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(small, st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.integers(1, 20))
def test_ties_count_by_expectation(pairs, risk, twentieths):
    uncertainty, loss = np.array(pairs, dtype=float).T
    want = mean_over_orders(uncertainty, loss)
    arguments = torch.from_numpy(uncertainty), torch.from_numpy(loss)
    curve = risk_coverage_curve(*arguments)
    n = len(loss)
    # the mean over up to 720 orders rounds more than the closed form
    room = 1000 * 2.0**-53
    np.testing.assert_allclose(curve.risk.numpy(), want, rtol=0, atol=room)
    assert curve.coverage.tolist() == [k / n for k in range(1, n + 1)]
    assert curve.uncertainty.tolist() == sorted(uncertainty)
    assert aurc(*arguments).item() == pytest.approx(want.mean(), abs=room)
    best = (np.sort(loss).cumsum() / np.arange(1, n + 1)).mean()
    excess = excess_aurc(*arguments).item()
    assert excess == pytest.approx(want.mean() - best, abs=room)
    assert excess >= 0.0
    safe = [k / n for k in range(1, n + 1) if curve.risk[k - 1] <= risk]
    assert coverage_at_risk(*arguments, risk).item() == max(safe, default=0.0)
    k = next(k for k in range(1, n + 1) if k / n >= twentieths / 20)
    assert risk_at_coverage(*arguments, twentieths / 20).item() == curve.risk[k - 1].item()


def test_worked_example():
    """Errors (0, 0, 1): mean of 0, 0, 1/3; trapezoids would give 0.0833."""
    uncertainty, loss = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([False, False, True])
    assert aurc(uncertainty, loss).item() == pytest.approx(1 / 9, rel=2.0**-52)
    assert excess_aurc(uncertainty, loss).item() == 0.0
    worst = aurc(-uncertainty, loss).item()
    assert worst == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, rel=2.0**-51)
    assert coverage_at_risk(uncertainty, loss, 0.0).item() == 2 / 3
    assert coverage_at_risk(-uncertainty, loss, 0.1).item() == 0.0
    assert coverage_at_risk(-uncertainty, loss, 1 / 3).item() == 1.0


def test_a_constant_uncertainty_gives_a_flat_curve():
    loss = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0])
    curve = risk_coverage_curve(torch.full((5,), 0.3), loss)
    assert curve.risk.tolist() == [0.4] * 5
    assert coverage_at_risk(torch.zeros(5), loss, 0.4).item() == 1.0
    assert coverage_at_risk(torch.zeros(5), loss, 0.39).item() == 0.0


def test_the_best_ranking_has_no_excess_at_all():
    """Exactly 0, and the AURC approaches e + (1 − e) ln(1 − e)."""
    n, errors = 100_000, 5_000
    loss = torch.arange(n) >= n - errors
    assert excess_aurc(torch.arange(n, dtype=torch.float64), loss).item() == 0.0
    limit = 0.05 + 0.95 * math.log(0.95)
    # the sum over k is within one step of the integral: 1/n of the largest risk
    assert aurc(torch.arange(n, dtype=torch.float64), loss).item() == pytest.approx(
        limit, abs=0.05 / n
    )


def test_coverage_is_rounded_up_without_losing_a_sample():
    """0.07 · 100 is 7.000000000000001 in float64, and 7 of 100 are enough."""
    uncertainty, loss = torch.arange(100.0), torch.arange(100) >= 7
    assert risk_at_coverage(uncertainty, loss, 0.07).item() == 0.0
    assert risk_at_coverage(uncertainty, loss, 0.071).item() == 1 / 8
    assert risk_at_coverage(uncertainty, loss, 1.0).item() == 0.93
    assert risk_at_coverage(uncertainty, loss, 1).item() == 0.93


def test_infinite_uncertainty_is_ranked_last():
    loss = torch.tensor([1.0, 0.0, 0.0])
    curve = risk_coverage_curve(torch.tensor([math.inf, -math.inf, 0.0]), loss)
    assert curve.risk.tolist() == [0.0, 0.0, 1 / 3]


def test_the_loss_may_be_any_number():
    """NLL as the loss: risk at full coverage is its mean."""
    loss = torch.tensor([3.5, 0.25, -1.0, 8.0])
    assert risk_at_coverage(torch.rand(4), loss, 1.0).item() == loss.double().mean().item()


def test_better_ranking_means_lower_aurc_and_higher_auroc():
    rng = np.random.default_rng(0)
    wrong = torch.from_numpy(rng.random(500) < 0.2)
    noise = torch.from_numpy(rng.normal(size=500))
    areas, rankings = [], []
    for signal in (0.0, 1.0, 3.0):
        uncertainty = noise + signal * wrong
        areas.append(excess_aurc(uncertainty, wrong).item())
        rankings.append(auroc(uncertainty[~wrong], uncertainty[wrong]).item())
    assert areas == sorted(areas, reverse=True)
    assert rankings == sorted(rankings)


@pytest.mark.slow
def test_more_samples_than_torch_quantile_takes():
    n = 16_777_217
    uncertainty = torch.rand(n, generator=torch.Generator().manual_seed(0))
    loss = uncertainty > 0.75
    safe = int((~loss).sum())
    assert coverage_at_risk(uncertainty, loss, 0.0).item() == safe / n


def test_rounding_leaves_no_negative_excess():
    """Five losses of 0.7 in single steps and as one tie round to areas 2⁻⁵³ apart."""
    loss = torch.full((5,), 0.7, dtype=torch.float64)
    steps, tie = aurc(torch.arange(5.0), loss), aurc(torch.zeros(5), loss)
    assert steps.item() < tie.item()
    assert excess_aurc(torch.arange(5.0), loss).item() == 0.0
