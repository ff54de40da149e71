"""Pointwise bands: the intervals of the points one by one, empty bins, refusals."""

import math

import pytest
import torch

from bayes_dc.metrics import (
    Band,
    bootstrap_interval,
    bootstrap_metric,
    reliability_band,
    reliability_curve,
    risk_at_coverage,
    risk_coverage_band,
)


def test_a_risk_band_is_the_interval_of_every_coverage():
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.randint(20, (60,), generator=generator).double()
    wrong = torch.rand(60, generator=generator) < uncertainty / 40
    coverages = [0.05, 0.5, 0.8, 1.0]
    band = risk_coverage_band(uncertainty, wrong, coverages, resamples=80, level=0.9, seed=3)
    assert (band.level, band.resamples) == (0.9, 80)
    for k, coverage in enumerate(coverages):
        want = bootstrap_metric(
            risk_at_coverage, uncertainty, wrong, coverage=coverage, resamples=80, level=0.9, seed=3
        )
        assert (band.low[k].item(), band.high[k].item()) == (want.low, want.high)


def test_a_reliability_band_is_the_interval_of_every_full_bin(batch):
    probs, labels = batch(rows=400, classes=3)
    band = reliability_band(probs, labels, 4, resamples=50, seed=1)
    held = reliability_curve(probs, labels, 4).count
    assert held[1:].min() > 20  # so that no resample leaves one empty
    assert held[0] == 0  # the largest of three probabilities is above 1/4
    for b in (1, 2, 3):
        want = bootstrap_interval(
            lambda index, b=b: torch.stack([
                reliability_curve(probs[row], labels[row], 4).accuracy[b] for row in index
            ]),
            400,
            resamples=50,
            seed=1,
        )
        assert (band.low[b].item(), band.high[b].item()) == (want.low, want.high)
    assert band.low[0].isnan()
    assert band.high[0].isnan()


def test_a_bin_that_some_resamples_miss_uses_the_others():
    """One sample alone in its bin is right in every resample that holds it."""
    probs = torch.tensor([[0.75, 0.25]] * 9 + [[0.55, 0.45]])
    labels = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 0])
    band = reliability_band(probs, labels, 10, resamples=200)
    assert (band.low[5].item(), band.high[5].item()) == (1.0, 1.0)
    assert band.low[7].item() < 7 / 9 < band.high[7].item()
    assert isinstance(band, Band)


def test_equal_seeds_give_equal_bits(batch):
    probs, labels = batch(rows=50)
    first, again = reliability_band(probs, labels), reliability_band(probs, labels)
    assert torch.equal(first.low.nan_to_num(-1), again.low.nan_to_num(-1))
    assert torch.equal(first.high.nan_to_num(-1), again.high.nan_to_num(-1))


def test_bands_refuse(batch):
    probs, labels = batch(rows=5)
    with pytest.raises(ValueError, match="n_bins must be a positive integer"):
        reliability_band(probs, labels, 0)
    with pytest.raises(ValueError, match="level must be a number strictly between 0 and 1"):
        reliability_band(probs, labels, level=1.0)
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="every one of coverages must be a number above 0"):
            risk_coverage_band(probs[:, 0], probs[:, 1], [0.5, bad])
    listed = [([], "none"), (torch.tensor([0.8]), "Tensor"), (0.8, "float"), (None, "NoneType")]
    for bad, name in listed:
        text = rf"coverages must be a list of numbers above 0 .*; got {name}\. Pass \[k / 100 for k"
        with pytest.raises(ValueError, match=text):
            risk_coverage_band(probs[:, 0], probs[:, 1], bad)
