"""Scores, what is chosen by them, how labels are counted, and the settings."""

import pytest
import torch
from pydantic import ValidationError

from bayes_dc.acquire import AcquireConfig, acquisition_scores, choose, labels_to_reach
from bayes_dc.metrics import mutual_information, predictive_entropy, variation_ratio

SINGLE = {
    "bald": mutual_information,
    "entropy": predictive_entropy,
    "variation_ratio": variation_ratio,
}


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(10, 50, 4, generator=generator, dtype=torch.float64) ** 3
    return p / p.sum(dim=2, keepdim=True)


@pytest.mark.parametrize("method", SINGLE)
def test_scores_are_those_of_the_metrics(samples, method):
    scores = acquisition_scores(samples, method)
    assert torch.equal(scores, SINGLE[method](samples))
    chosen = choose(samples, 7, method)
    rest = torch.ones(50, dtype=torch.bool)
    rest[chosen] = False
    assert scores[chosen].min() >= scores[rest].max()
    assert (scores[chosen].diff() <= 0).all()


@pytest.mark.parametrize("method", [*SINGLE, "random", "batchbald"])
def test_choices_are_different_candidates(samples, method):
    chosen = choose(samples, 50 if method != "batchbald" else 8, method)
    assert chosen.dtype == torch.int64
    assert len(set(chosen.tolist())) == len(chosen)
    assert 0 <= chosen.min() <= chosen.max() < 50


def test_of_equal_scores_the_first_is_taken():
    same = torch.full((3, 6, 2), 0.5, dtype=torch.float64)
    for method in SINGLE:
        assert choose(same, 3, method).tolist() == [0, 1, 2]


def test_random_is_seeded_and_even(samples):
    first = choose(samples, 5, "random", seed=1)
    state = torch.get_rng_state()
    assert torch.equal(first, choose(samples, 5, "random", seed=1))
    assert not torch.equal(first, choose(samples, 5, "random", seed=2))
    assert torch.equal(torch.get_rng_state(), state)
    counts = torch.zeros(50)
    for seed in range(400):
        counts[choose(samples, 5, "random", seed=seed)] += 1
    # 400 · 5 / 50 = 40 a candidate; χ² with 49 degrees of freedom, less for draws without return
    assert ((counts - 40) ** 2 / 40).sum() < 49 + 4 * (2 * 49) ** 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: choose(p, 2, "best"), "method must be one of batchbald, bald, entropy.*'best'"),
        (lambda p: choose(p, 51, "bald"), "count must be an integer in 1 … 50; got 51"),
        (lambda p: choose(p, 2, "random", seed=1.5), r"seed must be an integer.*got 1\.5"),
        (lambda p: acquisition_scores(p, "batchbald"), "one of bald, .*, random; got 'batchbald'"),
        (lambda p: acquisition_scores(p[0], "bald"), r"\[T, N, C\].*got shape \[50, 4\]"),
    ],
)
def test_refusals(samples, call, message):
    with pytest.raises(ValueError, match=message):
        call(samples)


def test_labels_are_counted_with_the_batch_that_reached_the_mark():
    curve = [(20, 0.6), (30, 0.91), (40, 0.90), (50, 0.96)]
    assert labels_to_reach(curve, 0.6) == 20
    assert labels_to_reach(curve, 0.9) == 30
    assert labels_to_reach(curve, 0.95) == 50
    assert labels_to_reach(curve, 0.97) is None
    assert labels_to_reach([], 0.5) is None
    with pytest.raises(ValueError, match=r"with ascending labels; got \[30, 20\]"):
        labels_to_reach([(30, 0.1), (20, 0.2)], 0.5)


def test_settings_are_checked():
    assert AcquireConfig().method == "batchbald"
    with pytest.raises(ValidationError, match="at least initial \\+ count = 30; got 25"):
        AcquireConfig(budget=25)
    with pytest.raises(ValidationError, match="candidates must be at least count = 10; got 9"):
        AcquireConfig(candidates=9)
