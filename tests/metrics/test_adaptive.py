"""Equal-mass bins: array_split, shared ties, debiasing on calibrated data, very many samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc.metrics import adaptive_ece, correct, debiased_squared_error, ece


def ranked(probs, labels):
    """Ascending confidence and hits, hits averaged over equal confidences; NumPy."""
    confidence, hit = probs.max(1), (probs.argmax(1) == labels).astype(float)
    order = confidence.argsort(kind="stable")
    confidence, hit = confidence[order], hit[order]
    for value in np.unique(confidence):
        hit[confidence == value] = hit[confidence == value].mean()
    return confidence, hit


def naive(probs, labels, n_bins):
    """Adaptive ECE and debiased squared error (None for bins too small) by a loop over bins."""
    confidence, hit = ranked(probs, labels)
    plain, squared = 0.0, 0.0
    for conf, acc in zip(
        np.array_split(confidence, n_bins), np.array_split(hit, n_bins), strict=True
    ):
        if len(conf) == 0:
            continue
        gap = acc.mean() - conf.mean()
        plain += len(conf) / len(hit) * abs(gap)
        if len(conf) > 1:
            noise = acc.mean() * (1 - acc.mean()) / (len(conf) - 1)
            squared += len(conf) / len(hit) * (gap**2 - noise)
    return plain, squared if len(hit) >= 2 * n_bins else None


def calibrated(sets, rows, seed):
    """(probs [sets·rows, 2], labels) of a network that is exactly calibrated."""
    generator = torch.Generator().manual_seed(seed)
    top = 0.5 + 0.5 * torch.rand(sets * rows, generator=generator, dtype=torch.float64)
    wrong = torch.rand(sets * rows, generator=generator, dtype=torch.float64) >= top
    return torch.stack([top, 1 - top], dim=1).split(rows), wrong.long().split(rows)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**32))
def test_equal_the_loop_also_with_ties(rows, classes, n_bins, seed):
    """Probabilities are multiples of 1/20, so many confidences are equal across a cut."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(20, [1 / classes] * classes, size=rows) / 20
    labels = rng.integers(classes, size=rows)
    plain, squared = naive(probs, labels, n_bins)
    arguments = torch.from_numpy(probs), torch.from_numpy(labels), n_bins
    # differences of running sums of up to 60 terms below 1, divided by rows
    room = 4 * rows * 2.0**-53
    assert adaptive_ece(*arguments).item() == pytest.approx(plain, abs=room)
    if squared is not None:
        assert debiased_squared_error(*arguments).item() == pytest.approx(squared, abs=8 * room)


def test_the_order_of_equal_confidences_does_not_matter():
    """Two bins cut four equal confidences; by position the result would be 0.25 or 0.75 − 0.5."""
    probs = torch.tensor([[0.75, 0.25]] * 4)
    for labels in ([0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]):
        assert adaptive_ece(probs, torch.tensor(labels), 2).item() == 0.0


def test_one_bin_is_the_difference_of_means(batch):
    probs, labels = batch()
    gap = correct(probs, labels).double().mean() - probs.amax(1).mean()
    # 200 terms
    assert adaptive_ece(probs, labels, 1).item() == pytest.approx(
        abs(gap.item()), abs=400 * 2.0**-53
    )


def test_more_bins_than_samples_compare_every_sample_alone():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.875, 0.125]])
    assert adaptive_ece(probs, torch.tensor([0, 0, 1]), 15).item() == (0.25 + 0.5 + 0.875) / 3


def test_a_saturated_network_that_is_right_scores_zero():
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    assert adaptive_ece(torch.eye(3)[labels], labels).item() == 0.0
    assert debiased_squared_error(torch.eye(3)[labels], labels, 3).item() == 0.0


def test_the_squared_error_of_a_calibrated_network_averages_zero():
    values = [
        debiased_squared_error(p, y, 10).item()
        for p, y in zip(*calibrated(400, 200, seed=1), strict=True)
    ]
    assert min(values) < 0
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(400)


def test_the_squared_error_finds_a_known_miscalibration():
    """Confidence 0.9 at accuracy 0.7: (0.2)² = 0.04, whatever the number of samples."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64).expand(60, 2)
    values = [
        debiased_squared_error(probs, (torch.rand(60, generator=generator) >= 0.7).long(), 1).item()
        for _ in range(2000)
    ]
    assert abs(np.mean(values) - 0.04) < 4 * np.std(values) / math.sqrt(2000)


def test_more_samples_than_torch_quantile_takes():
    """2²⁴ + 1 values; every bin is underconfident, so the error is 1 − mean confidence."""
    top = torch.rand(16_777_217, generator=torch.Generator().manual_seed(0)).mul_(0.5).add_(0.5)
    probs = torch.stack([top, 1 - top], dim=1)
    got = adaptive_ece(probs, torch.zeros(len(top), dtype=torch.uint8)).item()
    # running sums of 2²⁴ terms round at most 2²⁴ · 2⁻⁵³ of themselves
    assert got == pytest.approx(1 - top.double().mean().item(), rel=2 * 2.0**-29)


def test_differs_from_equal_width_bins_where_mass_is_uneven(batch):
    probs, labels = batch(rows=500)
    assert adaptive_ece(probs, labels).item() != ece(probs, labels).item()
