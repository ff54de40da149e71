"""The percentile bootstrap: coverage, reproducibility, infinite values, resampled ECE."""

import math

import numpy as np
import pytest
import torch

from bayes_dc.metrics import (
    Interval,
    bootstrap,
    bootstrap_ece,
    bootstrap_interval,
    bootstrap_mean,
    ece,
)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    trials, hits = 300, 0
    for seed in range(trials):
        values = torch.rand(80, generator=generator, dtype=torch.float64)
        interval = bootstrap_mean(values, level=0.9, resamples=200, seed=seed)
        hits += interval.low <= 0.5 <= interval.high
    # Percentile intervals of 80 values cover 0.9 less about 0.01; 4 standard errors of the count.
    assert abs(hits / trials - 0.89) < 4 * math.sqrt(0.9 * 0.1 / trials)


def test_the_width_is_that_of_the_normal_approximation():
    values = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    interval = bootstrap_mean(values, resamples=4000)
    width = 2 * 1.959964 * values.std().item() / math.sqrt(500)
    # Relative standard error of a quantile distance: about 1.2 / √resamples per end.
    assert interval.high - interval.low == pytest.approx(width, rel=4 * 1.2 * math.sqrt(2 / 4000))


def test_the_ends_are_outer_order_statistics():
    values = torch.arange(30, dtype=torch.float64)
    drawn = []

    def spy(index):
        drawn.append(values[index].mean(dim=1))
        return drawn[-1]

    got = bootstrap_interval(spy, 30, level=0.8, resamples=101, seed=3)
    everything = torch.cat(drawn).numpy()
    assert len(everything) == 101
    assert got.low == np.quantile(everything, 0.1, method="lower")
    assert got.high == np.quantile(everything, 0.9, method="higher")
    assert got == Interval(got.low, got.high, 0.8, 101)


def test_equal_seeds_give_equal_bits_and_leave_the_global_generator_alone():
    values = torch.rand(50, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(7)
    want = torch.rand(1)
    torch.manual_seed(7)
    first = bootstrap_mean(values, seed=5)
    assert torch.rand(1).item() == want.item()
    assert bootstrap_mean(values, seed=5) == first
    assert bootstrap_mean(values, seed=6) != first


def test_chunks_do_not_change_the_interval(monkeypatch):
    values = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    want = bootstrap_mean(values)
    monkeypatch.setattr(bootstrap, "CHUNK_ELEMENTS", 130)
    assert bootstrap_mean(values) == want


def test_infinite_values_give_infinite_ends_not_nan():
    values = torch.tensor([1.0] * 200 + [math.inf])
    interval = bootstrap_mean(values)
    assert interval.low == 1.0
    assert interval.high == math.inf
    assert bootstrap_mean(torch.full((5,), math.inf)) == Interval(math.inf, math.inf, 0.95, 1000)


def test_one_sample_has_a_width_of_zero():
    assert bootstrap_mean(torch.tensor([0.25])) == Interval(0.25, 0.25, 0.95, 1000)


def test_ece_is_recomputed_on_every_resample(batch):
    probs, labels = batch(rows=60, classes=4)
    resampled = []

    def statistic(index):
        resampled.append(torch.stack([ece(probs[row], labels[row], 10) for row in index]))
        return resampled[-1]

    want = bootstrap_interval(statistic, 60, resamples=50, seed=2)
    got = bootstrap_ece(probs, labels, 10, resamples=50, seed=2)
    # 60 float64 terms, added in another order.
    assert got.low == pytest.approx(want.low, abs=60 * 2.0**-53)
    assert got.high == pytest.approx(want.high, abs=60 * 2.0**-53)
