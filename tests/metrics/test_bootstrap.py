"""The percentile bootstrap: coverage, reproducibility, infinite values, resampled ECE."""

import math

import numpy as np
import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.metrics import (
    Interval,
    _resample,
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
    monkeypatch.setattr(_resample, "CHUNK_ELEMENTS", 130)
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


def resampled(metric, *batch, **options):
    """Statistic that calls the metric itself on every resample."""
    return lambda index: torch.stack([
        metric(*(one[row] for one in batch), **options) for row in index
    ])


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (m.accuracy, {}),
        (m.nll, {}),
        (m.brier, {}),
        (m.ece, {"n_bins": 10}),
        (m.mce, {}),
        (m.debiased_ece, {}),
        (m.adaptive_ece, {"n_bins": 7}),
        (m.debiased_squared_error, {"n_bins": 4}),
        (m.classwise_ece, {}),
        (m.brier_reliability, {"n_bins": 5}),
        (m.brier_resolution, {}),
        (m.brier_uncertainty, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_labelled_metric_is_recomputed_on_every_resample(batch, metric, options):
    probs, labels = batch(rows=60, classes=4)
    statistic = resampled(metric, probs, labels, **options)
    want = bootstrap_interval(statistic, 60, resamples=40, seed=2)
    got = m.bootstrap_metric(metric, probs, labels, resamples=40, seed=2, **options)
    # Sums of 60 · 4 float64 terms in another order; a class-wise sum weighs instead of repeating.
    room = 4 * 240 * 2.0**-53
    assert got.low == pytest.approx(want.low, rel=room, abs=room)
    assert got.high == pytest.approx(want.high, rel=room, abs=room)


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (m.aurc, {}),
        (m.excess_aurc, {}),
        (m.coverage_at_risk, {"risk": 0.2}),
        (m.risk_at_coverage, {"coverage": 0.5}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_ranked_metric_is_recomputed_on_every_resample(metric, options):
    generator = torch.Generator().manual_seed(4)
    uncertainty = torch.randint(20, (50,), generator=generator).double()
    wrong = torch.rand(50, generator=generator) < uncertainty / 40
    statistic = resampled(metric, uncertainty, wrong, **options)
    want = bootstrap_interval(statistic, 50, resamples=40, seed=2)
    got = m.bootstrap_metric(metric, uncertainty, wrong, resamples=40, seed=2, **options)
    assert got.low == pytest.approx(want.low, abs=100 * 2.0**-53)
    assert got.high == pytest.approx(want.high, abs=100 * 2.0**-53)


@pytest.mark.parametrize("metric", [m.auroc, m.aupr_in, m.aupr_out, m.fpr_at_tpr])
def test_ood_metrics_resample_each_side_at_its_own_size(metric):
    generator = torch.Generator().manual_seed(4)
    a = torch.randint(20, (30,), generator=generator).double()
    b = torch.randint(8, 28, (3,), generator=generator).double()
    draws = [torch.Generator().manual_seed(seed) for seed in (6, 7)]
    values = sorted(
        metric(
            a[torch.randint(30, (1, 30), generator=draws[0])[0]],
            b[torch.randint(3, (1, 3), generator=draws[1])[0]],
        ).item()
        for _ in range(41)
    )
    got = m.bootstrap_metric(metric, a, b, resamples=41, seed=6, level=0.9)
    assert got.low == pytest.approx(values[2], abs=66 * 2.0**-53)
    assert got.high == pytest.approx(values[38], abs=66 * 2.0**-53)


@pytest.mark.parametrize("metric", [m.ece, m.auroc, m.aurc], ids=lambda f: f.__name__)
def test_chunks_do_not_change_the_interval_of_a_metric(batch, monkeypatch, metric):
    probs, labels = batch(rows=50)
    first, second = (probs, labels) if metric is m.ece else (probs[:, 0], probs[:, 1])
    want = m.bootstrap_metric(metric, first, second, resamples=30)
    monkeypatch.setattr(_resample, "CHUNK_ELEMENTS", 210)
    assert m.bootstrap_metric(metric, first, second, resamples=30) == want


def test_the_interval_of_auroc_covers_it_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    truth = 0.5 * (1 + math.erf(1.0 / 2))  # P(N(1, 1) > N(0, 1))
    trials, hits = 150, 0
    for seed in range(trials):
        a = torch.randn(60, generator=generator, dtype=torch.float64)
        b = 1 + torch.randn(60, generator=generator, dtype=torch.float64)
        interval = m.bootstrap_metric(m.auroc, a, b, level=0.9, resamples=200, seed=seed)
        hits += interval.low <= truth <= interval.high
    # Percentile intervals of 60 + 60 scores cover 0.9 less about 0.01; 4 standard errors.
    assert abs(hits / trials - 0.89) < 4 * math.sqrt(0.9 * 0.1 / trials)
