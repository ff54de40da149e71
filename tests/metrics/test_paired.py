"""Intervals of differences against resampling by hand."""

import pytest
import torch

from bayes_dc import metrics as m

N, C = 60, 3


@pytest.fixture(scope="module")
def networks():
    """Two networks' probabilities [N, C] and the labels [N]."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, N, C, generator=generator, dtype=torch.float64)
    labels = torch.randint(C, (N,), generator=generator)
    return *logits.softmax(-1), labels


def by_hand(statistic, resamples, seed=0):
    """Outer order statistics over resamples drawn one after the other."""
    index = torch.randint(N, (resamples, N), generator=torch.Generator().manual_seed(seed))
    values = sorted(statistic(i) for i in index)
    cut = int(0.025 * (resamples - 1) + 1e-9)
    return values[cut], values[-1 - cut]


@pytest.mark.parametrize("metric", [m.ece, m.brier, m.classwise_ece, m.adaptive_ece])
def test_both_networks_are_resampled_alike(networks, metric):
    a, b, y = networks
    got = m.bootstrap_difference(metric, (a, y), (b, y), resamples=99)
    want = by_hand(lambda i: (metric(b[i], y[i]) - metric(a[i], y[i])).item(), 99)
    # Sums of N numbers below 2 in another order.
    assert (got.low, got.high) == pytest.approx(want, abs=2 * N * 2.0**-52)
    assert (got.level, got.resamples) == (0.95, 99)


def test_ranked_metrics_are_resampled_alike(networks):
    a, b, y = networks
    pairs = [(m.entropy(p), ~m.correct(p, y)) for p in (a, b)]
    got = m.bootstrap_difference(m.aurc, *pairs, resamples=99, seed=5)

    def change(i):
        first, second = (m.aurc(u[i], loss[i]) for u, loss in pairs)
        return (second - first).item()

    assert (got.low, got.high) == pytest.approx(by_hand(change, 99, 5), abs=2 * N * 2.0**-52)


def test_a_mean_gives_the_interval_of_its_differences(networks):
    a, b, y = networks
    got = m.bootstrap_difference(m.nll, (a, y), (b, y))
    want = m.bootstrap_mean(m.nll_per_sample(b, y) - m.nll_per_sample(a, y))
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=N * 2.0**-50)


def test_a_network_does_not_differ_from_itself(networks):
    a, _, y = networks
    got = m.bootstrap_difference(m.ece, (a, y), (a, y), resamples=20, n_bins=4)
    assert (got.low, got.high) == (0.0, 0.0)
    apart = m.bootstrap_difference(m.ece, (a, y), (a, y), paired=False, resamples=20)
    assert apart.low < 0 < apart.high


def test_unpaired_networks_may_have_other_samples(networks):
    a, b, y = networks
    got = m.bootstrap_difference(m.accuracy, (a, y), (b[:40], y[:40]), paired=False)
    change = (m.accuracy(b[:40], y[:40]) - m.accuracy(a, y)).item()
    assert got.low < change < got.high
    assert got == m.bootstrap_difference(m.accuracy, (a, y), (b[:40], y[:40]), paired=False)
    text = r"paired=True compares the same samples .* got 60 samples .* and 40 of the second"
    with pytest.raises(ValueError, match=text):
        m.bootstrap_difference(m.accuracy, (a, y), (b[:40], y[:40]))


def test_infinite_losses_of_both_are_refused(networks):
    a, b, y = networks
    certain = torch.eye(C, dtype=torch.float64)[(y + 1) % C]
    with pytest.raises(ValueError, match=r"the difference of nll has no interval"):
        m.bootstrap_difference(m.nll, (certain, y), (certain, y))
    assert m.bootstrap_difference(m.nll, (a, y), (certain, y)).low == float("inf")
    with pytest.raises(ValueError, match=r"resamples must be an integer of at least 1"):
        m.bootstrap_difference(m.nll, (a, y), (b, y), resamples=0)


def test_means_of_two_sets_differ_by_independent_resamples():
    """The interval of two normal means is near that of the normal distribution."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(400, generator=generator, dtype=torch.float64)
    second = torch.randn(900, generator=generator, dtype=torch.float64) + 1
    got = m.bootstrap_mean_difference(first, second, resamples=2000)
    gap = (second.mean() - first.mean()).item()
    half = 1.96 * (first.var() / 400 + second.var() / 900).sqrt().item()
    # Ends of 2000 resamples scatter by about 4 % of the half width.
    assert (got.low, got.high) == pytest.approx((gap - half, gap + half), abs=0.16 * half)
    assert got == m.bootstrap_mean_difference(first, second, resamples=2000)


@pytest.mark.parametrize(
    ("values", "got"),
    [(torch.ones(2, 2), r"shape \[2, 2\]"), (torch.tensor([torch.inf]), "NaN or")],
)
def test_values_that_have_no_mean_are_refused(values, got):
    text = rf"second must be a real tensor \[n\] of finite.*got {got}"
    with pytest.raises(ValueError, match=text):
        m.bootstrap_mean_difference(torch.ones(3), values)


@pytest.mark.parametrize("metric", [m.ece, m.nll])
def test_a_pair_has_the_bits_of_its_parts(networks, metric):
    a, b, y = networks
    got = m.bootstrap_pair(metric, (a, y), (b, y), resamples=50, seed=3)
    assert got.first == m.bootstrap_metric(metric, a, y, resamples=50, seed=3)
    assert got.second == m.bootstrap_metric(metric, b, y, resamples=50, seed=3)
    assert got.difference == m.bootstrap_difference(metric, (a, y), (b, y), resamples=50, seed=3)
    certain = torch.eye(C, dtype=torch.float64)[(y + 1) % C]
    if metric is m.nll:
        assert m.bootstrap_pair(m.nll, (certain, y), (certain, y)).difference is None
