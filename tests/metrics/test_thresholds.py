"""Policies: by hand, ties, and by simulation that what is promised holds as often as is said."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc import metrics as m
from bayes_dc.metrics import (
    Policy,
    PolicyError,
    binomial_lower,
    binomial_upper,
    policy_for_coverage,
    policy_for_risk,
    risk_bounds,
)
from bayes_dc.metrics.thresholds import THRESHOLDS

RUNS = 200


def population(n, seed, *, slope=0.3):
    """Uncertainty uniform on 0 … 1, wrong with probability slope · u²: all risks are known."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    return u, torch.rand(n, generator=generator, dtype=torch.float64) < slope * u**2


def true_risk(threshold, slope=0.3):
    """Mean of slope · u² for u up to the threshold."""
    return slope / 3 * min(threshold, 1.0) ** 2


def allowed(share, runs=RUNS):
    """Failures that a share of failures stays under in all but 1 of 10 000 simulations."""
    return share * runs + 3.8 * math.sqrt(share * (1 - share) * runs)


def test_by_hand():
    """Forty sure inputs without a mistake, ten unsure ones of which half are wrong."""
    u = torch.tensor([0.1 + k / 1000 for k in range(40)] + [0.8] * 10, dtype=torch.float64)
    wrong = torch.tensor([False] * 40 + [True, False] * 5)
    policy = policy_for_risk(u, wrong, 0.2, score="entropy", confidence=0.9)
    assert (policy.accepted, policy.errors, policy.n) == (40, 0, 50)
    assert policy.bound == binomial_upper(0, 40, 1 - 0.1 / THRESHOLDS)
    assert 0.139 < policy.threshold < 0.8
    assert policy.accepts(u).tolist() == [True] * 40 + [False] * 10
    bounds = risk_bounds(u, wrong, 0.9)
    assert [bounds[0].accepted, bounds[0].errors] == [50, 5]
    assert bounds[0].threshold == math.inf
    # 95, 90 and 85 % cut among equals, which lie above together: 40 are left, as at 80 %
    assert [b.accepted for b in bounds[1:6]] == [40, 40, 40, 40, 38]


def test_coverage_by_hand():
    """The least rank whose lower bound reaches the target, whatever the labels."""
    u = torch.arange(200, dtype=torch.float64)
    policy = policy_for_coverage(u, u > 150, 0.8, score="entropy", confidence=0.95)
    k = policy.accepted
    assert policy.threshold == u[k - 1]
    assert policy.bound == binomial_lower(k, 200, 0.95) >= 0.8 > binomial_lower(k - 1, 200, 0.95)
    assert policy.errors == int((u[:k] > 150).sum())
    # 10 inputs cannot promise 99 % unless all are accepted
    few = policy_for_coverage(u[:10], u[:10] > 8, 0.99, score="entropy")
    assert (few.threshold, few.bound, few.accepted, few.errors) == (math.inf, 1.0, 10, 1)


@pytest.mark.parametrize(("risk", "confidence"), [(0.05, 0.8), (0.08, 0.9)])
def test_the_risk_is_kept_as_often_as_promised(risk, confidence):
    failures = chosen = 0
    for seed in range(RUNS):
        u, wrong = population(400, seed)
        try:
            policy = policy_for_risk(u, wrong, risk, score="entropy", confidence=confidence)
        except PolicyError:
            continue
        chosen += 1
        failures += true_risk(policy.threshold) > policy.bound
        assert policy.bound <= risk
    assert failures <= allowed(1 - confidence)
    assert chosen > RUNS / 5  # a procedure that refuses everything keeps every promise


def test_the_risk_is_kept_where_every_threshold_is_just_too_risky():
    """An uncertainty that says nothing, of a network a little worse than asked for."""
    failures, confidence, risk = 0, 0.8, 0.1
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(200, generator=generator)
        wrong = torch.rand(200, generator=generator) < risk + 0.001
        try:
            policy_for_risk(u, wrong, risk, score="entropy", confidence=confidence)
        except PolicyError:
            continue
        failures += 1
    assert 0 < failures <= allowed(1 - confidence)


def test_all_bounds_hold_at_once():
    confidence, broken = 0.8, 0
    for seed in range(RUNS):
        bounds = risk_bounds(*population(300, seed), confidence)
        broken += any(true_risk(one.threshold) > one.bound for one in bounds)
    assert broken <= allowed(1 - confidence)


@pytest.mark.parametrize("levels", [None, 7], ids=["continuous", "ties"])
def test_the_coverage_is_kept_as_often_as_promised(levels):
    """Also where many inputs share a value: the share at or below it is then larger."""
    confidence, target, failures = 0.8, 0.7, 0
    for seed in range(RUNS):
        u, wrong = population(150, seed)
        if levels:
            u = (u * levels).ceil() / levels
        policy = policy_for_coverage(u, wrong, target, score="entropy", confidence=confidence)
        failures += min(policy.threshold, 1.0) < target
    assert failures <= allowed(1 - confidence)
    if levels is None:
        assert failures > 0  # no more is kept back than the promise needs


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=60))
def test_bounds_are_those_of_their_own_inputs(inputs):
    """Any ties, any order: counts agree with the threshold, and coverage falls."""
    u = torch.tensor([float(a) for a, _ in inputs])
    wrong = torch.tensor([b for _, b in inputs])
    bounds = risk_bounds(u, wrong, 0.9)
    tests = len({-(-len(u) * j // THRESHOLDS) for j in range(1, THRESHOLDS + 1)})
    assert bounds[0].accepted == len(u)
    for one in bounds:
        accepted = u.double() <= one.threshold
        assert one.accepted == int(accepted.sum()) > 0
        assert one.errors == int((accepted & wrong).sum())
        assert one.bound == binomial_upper(one.errors, one.accepted, 1 - (1 - 0.9) / tests)
    coverages = [one.accepted for one in bounds]
    assert coverages == sorted(coverages, reverse=True)
    shuffled = torch.randperm(len(u), generator=torch.Generator().manual_seed(0))
    again = [
        (b.threshold, b.accepted, b.bound) for b in risk_bounds(u[shuffled], wrong[shuffled], 0.9)
    ]
    assert again == [(b.threshold, b.accepted, b.bound) for b in bounds]


POLICY = Policy("entropy", 0.5, "risk", 0.1, 0.95, 100, 0.09, 80, 3)


def test_decisions():
    """At the threshold is accepted; NaN never, not even where everything is."""
    u = torch.tensor([0.5, 0.5000001, 0.0, torch.nan, torch.inf])
    assert POLICY.accepts(u).tolist() == [True, False, True, False, False]
    everything = Policy("entropy", math.inf, "coverage", 0.1, 0.95, 100, 1.0, 100, 3)
    assert everything.accepts(u).tolist() == [True, True, True, False, True]


def test_outcomes():
    u = torch.tensor([0.1, 0.2, 0.3, 0.9, torch.nan])
    wrong = torch.tensor([True, False, False, True, True])
    got = POLICY.outcome(u, wrong)
    assert (got.n, got.accepted, got.errors) == (5, 3, 1)
    assert (got.coverage, got.risk) == (3 / 5, 1 / 3)
    assert got.coverage_interval == m.binomial_interval(3, 5)
    assert got.risk_interval == m.binomial_interval(1, 3)
    none = POLICY.outcome(u[3:], wrong[3:])
    assert (none.accepted, none.coverage, none.risk, none.risk_interval) == (0, 0.0, None, None)


def test_too_few_inputs_are_said():
    u, wrong = torch.rand(100), torch.zeros(100).bool()
    with pytest.raises(PolicyError) as caught:
        policy_for_risk(u, wrong, 0.01, score="entropy")
    bound = 1 - (0.05 / THRESHOLDS) ** (1 / 100)
    need = math.ceil(math.log(0.05 / THRESHOLDS) / math.log(0.99))
    assert str(caught.value) == (
        "100 calibration inputs are too few to promise a risk of 0.01 with confidence 0.95: even "
        f"without a mistake the bound would be {bound:.4f}. It takes at least {need} inputs, or a "
        "higher risk or lower confidence."
    )
    enough = torch.rand(need), torch.zeros(need).bool()
    assert policy_for_risk(*enough, 0.01, score="entropy").accepted == need
    with pytest.raises(PolicyError):
        policy_for_risk(enough[0][1:], enough[1][1:], 0.01, score="entropy")


def test_the_best_attainable_risk_is_said_and_can_be_promised():
    u, wrong = population(500, 0)
    with pytest.raises(PolicyError, match="cannot be promised") as caught:
        policy_for_risk(u, wrong, 0.02, score="entropy")
    best = min(risk_bounds(u, wrong), key=lambda b: b.bound)
    said = math.ceil(best.bound * 1e4) / 1e4
    assert str(caught.value) == (
        "a risk of 0.02 cannot be promised with confidence 0.95: the least bound that 500 "
        f"calibration inputs give is {said:.4f}, at a coverage of {best.accepted / 500:.0%} "
        f"({best.errors} of {best.accepted} wrong there). Ask for at least that, calibrate on more "
        "inputs, or train a better network."
    )
    assert policy_for_risk(u, wrong, said, score="entropy").bound == best.bound


def test_arguments_are_refused():
    u, wrong = torch.rand(50), torch.zeros(50).bool()
    text = r"the target risk must be a number between 0 and 1 \(excluded\), such as 0.01; got 5\."
    with pytest.raises(ValueError, match=text):
        policy_for_risk(u, wrong, 5, score="entropy")
    text = r"the target coverage must be .*, such as 0.9; got True\."
    with pytest.raises(ValueError, match=text):
        policy_for_coverage(u, wrong, True, score="entropy")
    for choose in (policy_for_risk, policy_for_coverage):
        with pytest.raises(ValueError, match=r"score must be one of \('entropy', .*; got 'energy'"):
            choose(u, wrong, 0.5, score="energy")
        with pytest.raises(ValueError, match=r"confidence must be a number between 0 and 1"):
            choose(u, wrong, 0.5, score="entropy", confidence=95)
    with pytest.raises(ValueError, match=r"wrong must be a bool tensor of shape \[50\] .*float32"):
        risk_bounds(u, wrong.float())
    with pytest.raises(ValueError, match=r"wrong must be .*; got list\."):
        risk_bounds(u, [True] * 50)
    with pytest.raises(ValueError, match="uncertainty holds 1 NaN"):
        risk_bounds(torch.tensor([torch.nan]), torch.zeros(1).bool())
