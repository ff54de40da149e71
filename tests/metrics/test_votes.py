"""Votes and rank correlations against scipy, naive counting and values by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayes_dc.metrics import (
    Streaming,
    bootstrap_metric,
    entropy,
    kendall_tau_b,
    nll,
    spearman,
    vote_distribution,
    vote_entropy,
    vote_nll,
    vote_nll_per_sample,
    votes,
)

PAIRS = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=40)
# Ranks and pairs are whole numbers, so only the quotient, two roots and a product round.
ROUNDING = 8 * 2.0**-53


def vectors(pairs):
    return [torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True)]


def naive_kendall(a, b):
    """τ_b by the pairs, as in the definition."""
    alike = ties_a = ties_b = 0
    n = len(a)
    for i in range(n):
        for j in range(i):
            product = np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
            alike += product
            ties_a += a[i] == a[j]
            ties_b += b[i] == b[j]
    pairs = n * (n - 1) / 2
    scale = math.sqrt((pairs - ties_a) * (pairs - ties_b))
    return alike / scale if scale else 0.0


def naive_ranks(a):
    """Mean of the ranks that equal values share."""
    return np.array([(a < value).sum() + ((a == value).sum() + 1) / 2 for value in a])


def naive_spearman(a, b):
    ra, rb = naive_ranks(a), naive_ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    scale = math.sqrt((ra @ ra) * (rb @ rb))
    return (ra @ rb) / scale if scale else 0.0


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_equal_definitions_and_scipy_with_many_ties(pairs):
    a, b = vectors(pairs)
    x, y = a.numpy(), b.numpy()
    rho, tau = spearman(a, b).item(), kendall_tau_b(a, b).item()
    assert tau == pytest.approx(naive_kendall(x, y), abs=ROUNDING)
    # both sides sum up to 40 ranks that are no whole numbers after the mean is taken
    assert rho == pytest.approx(naive_spearman(x, y), abs=40 * ROUNDING)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert tau == pytest.approx(stats.kendalltau(x, y).statistic, abs=40 * ROUNDING)
        assert rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=40 * ROUNDING)
    else:
        assert rho == tau == 0


@settings(max_examples=30, deadline=None)
@given(PAIRS, st.integers(0, 2**32))
def test_they_are_symmetric_and_free_of_order_and_scale(pairs, seed):
    a, b = vectors(pairs)
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
    for metric in (spearman, kendall_tau_b):
        value = metric(a, b)
        assert metric(b, a) == value
        assert metric(a[order], b[order]) == value
        assert metric(a.exp(), 2 * b - 1) == value
        assert metric(-a, b) == -value


def test_infinite_scores_are_ranked():
    a = torch.tensor([-math.inf, 0.0, 1.0, math.inf])
    for metric in (spearman, kendall_tau_b):
        assert metric(a, torch.tensor([1.0, 2.0, 3.0, 4.0])) == 1
        assert metric(a, torch.tensor([4.0, 3.0, 2.0, 1.0])) == -1


def test_kendall_in_blocks(monkeypatch):
    a, b = torch.rand(2, 101, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    b = (b + a).mul(10).round()
    whole = kendall_tau_b(a, b)
    monkeypatch.setattr(votes, "SIGN_ELEMENTS", 3 * 101)
    assert kendall_tau_b(a, b) == whole
    assert whole.item() == pytest.approx(stats.kendalltau(a, b).statistic, abs=101 * ROUNDING)


@pytest.mark.parametrize("metric", [spearman, kendall_tau_b])
def test_a_weighted_sample_is_the_repeated_one(metric):
    """The bootstrap counts copies instead of making them; copies are ties of each other."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(0, 6, (30,), generator=generator).double()
    b = torch.randint(0, 6, (30,), generator=generator).double() + a
    weights = torch.randint(0, 4, (5, 30), generator=generator)
    kind = {spearman: votes.SPEARMAN, kendall_tau_b: votes.KENDALL_TAU_B}[metric]
    values = kind.value(a, b, weights.double())
    for row, value in zip(weights, values, strict=True):
        assert value == metric(a.repeat_interleave(row), b.repeat_interleave(row))


@pytest.mark.parametrize("metric", [spearman, kendall_tau_b])
def test_interval_and_stream(metric):
    generator = torch.Generator().manual_seed(2)
    a = torch.rand(200, generator=generator, dtype=torch.float64)
    b = a + torch.rand(200, generator=generator, dtype=torch.float64)
    interval = bootstrap_metric(metric, a, b, resamples=200, seed=3)
    assert interval.low < metric(a, b).item() < interval.high
    stream = Streaming(metric)
    for part in torch.arange(200).split(37):
        stream.update(a[part], b[part])
    assert stream.compute() == metric(a, b)
    assert stream.interval(resamples=200, seed=3) == interval


def test_interval_of_kendall_covers_like_the_normal_one():
    """For two normal variables the bootstrap's width is near the known deviation of τ."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 400))
    interval = bootstrap_metric(kendall_tau_b, torch.tensor(a), torch.tensor(b), resamples=400)
    n = 400
    deviation = math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))  # of independent variables
    width = (interval.high - interval.low) / (2 * 1.96)
    # 400 resamples know a deviation to 1 / √800 = 3.5 %; τ's own deviation varies by a few more
    assert width == pytest.approx(deviation, rel=0.2)


VOTES = torch.tensor([[10, 0, 0], [5, 5, 0], [1, 2, 1]])


def test_vote_entropy_by_hand():
    want = [0.0, math.log(2), 1.5 * math.log(2)]
    assert vote_entropy(VOTES).tolist() == pytest.approx(want, abs=2**-52)
    assert torch.equal(vote_distribution(VOTES).sum(1), torch.ones(3, dtype=torch.float64))


def test_vote_nll_by_hand():
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    want = [math.log(2), 1.5 * math.log(2), 1.5 * math.log(2)]
    assert vote_nll_per_sample(probs, VOTES).tolist() == pytest.approx(want, abs=2**-51)
    assert vote_nll(probs, VOTES).item() == pytest.approx(sum(want) / 3, abs=2**-51)
    impossible = torch.tensor([[0.0, 1.0, 0.0]])
    assert vote_nll(impossible, VOTES[:1]) == math.inf


def test_votes_of_one_person_give_the_usual_nll():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(50, 4, generator=generator, dtype=torch.float64).softmax(1)
    labels = torch.randint(0, 4, (50,), generator=generator)
    one = torch.nn.functional.one_hot(labels, 4)
    assert torch.allclose(vote_nll(probs, one), nll(probs, labels), rtol=2**-50)
    assert (vote_entropy(one) == 0).all()


def test_the_votes_themselves_are_the_best_prediction():
    """Gibbs: the NLL is the entropy of the votes there, and larger anywhere else."""
    shares = vote_distribution(VOTES)
    least = entropy(shares).mean()
    assert vote_nll(shares, VOTES).item() == pytest.approx(least.item(), abs=2**-51)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        other = torch.rand(3, 3, generator=generator, dtype=torch.float64).softmax(1)
        assert vote_nll(other, VOTES) > least


def test_vote_nll_streams_and_has_an_interval():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(60, 4, generator=generator, dtype=torch.float64).softmax(1)
    people = torch.randint(0, 9, (60, 4), generator=generator) + 1
    stream = Streaming(vote_nll)
    for part in torch.arange(60).split(13):
        stream.update(probs[part], people[part])
    assert stream.compute() == vote_nll(probs, people)
    interval = bootstrap_metric(vote_nll, probs, people, resamples=100)
    assert interval.low < vote_nll(probs, people).item() < interval.high


P = torch.full((2, 3), 1 / 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.tensor([[1, 0, 0], [0, 0, 0]]), r"at least one vote.*got row 1 with \[0.0, 0.0"),
        (torch.tensor([[1, 0, 0], [2, -1, 0]]), "whole and not negative.*got row 1"),
        (torch.tensor([[0.5, 0.5, 0.0], [1, 0, 0]]), "votes must be counts.*got row 0"),
        (torch.tensor([[math.nan, 0.5, 0.0], [1, 0, 0]]), "got row 0"),
        (torch.ones(2, 4), r"of the shape of probs, \[2, 3\]; got shape \[2, 4\]"),
        (torch.ones(2, 3, dtype=torch.bool), "dtype torch.bool"),
        ([[1, 0, 0]], "got list"),
    ],
)
def test_other_votes_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        vote_nll(P, bad)


@pytest.mark.parametrize("metric", [spearman, kendall_tau_b])
def test_other_scores_are_refused(metric):
    a = torch.rand(3)
    with pytest.raises(ValueError, match="second must have one number for each of the 3 of first"):
        metric(a, torch.rand(2))
    with pytest.raises(ValueError, match="first must be floating point of shape"):
        metric(torch.rand(3, 1), a)
    with pytest.raises(ValueError, match="second holds 1 NaN, the first at index 1"):
        metric(a, torch.tensor([0.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match="no samples: first has shape"):
        metric(torch.empty(0), torch.empty(0))
