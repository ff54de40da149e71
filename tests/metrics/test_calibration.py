"""ECE and the reliability curve against a loop over bins, torchmetrics and published faults."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from bayes_dc.metrics import debiased_ece, ece, mce, reliability_curve

# Means over bins of up to 10 float64 numbers; results are below 1.
FEW_TERMS = 20 * 2.0**-53


def two_columns(confidence, right):
    """Two-class rows with this top-label confidence (≥ 0.5) and these hits."""
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], dim=1), 1 - torch.tensor(right)


def naive_ece(probs, labels, n_bins):
    """Σ n_b/n |acc − conf| by a loop over (lo, hi]."""
    confidence, predicted = probs.max(1), probs.argmax(1)
    total = 0.0
    for b in range(n_bins):
        low = -1.0 if b == 0 else b / n_bins
        inside = (confidence > low) & (confidence <= (b + 1) / n_bins)
        if inside.any():
            gap = (predicted == labels)[inside].mean() - confidence[inside].mean()
            total += inside.mean() * abs(gap)
    return total


def largest_gap(curve):
    """Largest |accuracy − confidence| over the bins that hold samples."""
    return (curve.accuracy - curve.confidence).abs().nan_to_num(0.0).max().item()


@pytest.mark.parametrize(
    ("confidence", "right", "n_bins", "want", "want_max"),
    [
        ([0.96, 1.0], [1, 0], 10, 0.48, 0.48),
        ([0.83] * 4, [1] * 4, 10, 0.17, 0.17),
        ([1.0] * 4, [1] * 4, 10, 0.0, 0.0),
        ([0.95] * 9 + [0.55], [1] * 9 + [0], 10, 0.10, 0.55),
        ([0.75] * 8, [1, 1, 1, 1, 1, 1, 0, 0], 10, 0.0, 0.0),
        ([0.5, 0.5, 0.55, 0.95], [1, 0, 1, 1], 10, 0.125, 0.45),
        ([0.95, 1.0], [1, 0], 10, 0.475, 0.475),
    ],
    ids=[
        "one-in-last-bin",
        "mean-not-midpoint",
        "all-sure",
        "weighted",
        "not-per-sample",
        "edge",
        "top",
    ],
)
def test_published_faults(confidence, right, n_bins, want, want_max):
    probs, labels = two_columns(confidence, right)
    assert ece(probs, labels, n_bins).item() == pytest.approx(want, abs=FEW_TERMS)
    assert mce(probs, labels, n_bins).item() == pytest.approx(want_max, abs=FEW_TERMS)
    curve = reliability_curve(probs, labels, n_bins)
    assert largest_gap(curve) == pytest.approx(want_max, abs=FEW_TERMS)


def test_two_columns_mean_the_top_label():
    probs = torch.tensor([[0.7, 0.3], [0.3, 0.7]], dtype=torch.float64)
    got = ece(probs, torch.tensor([0, 0]), 10).item()
    assert got == pytest.approx(0.2, abs=FEW_TERMS)


def test_probabilities_of_exactly_zero_and_one():
    p = torch.tensor([1.0, 1.0, 1.0, 0.0])
    got = ece(torch.stack([1 - p, p], dim=1), torch.tensor([0, 1, 1, 1]), 4).item()
    assert got == 0.5


def test_a_saturated_network_that_is_right_scores_zero():
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    probs = torch.eye(3)[labels]
    assert ece(probs, labels, 15).item() == 0.0
    assert mce(probs, labels, 15).item() == 0.0
    assert debiased_ece(probs, labels, 15).item() == 0.0


def test_classes_may_be_absent_from_the_labels():
    probs = torch.tensor([[0.9, 0.06, 0.04], [0.8, 0.15, 0.05]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    assert ece(probs, labels, 10).item() == pytest.approx(0.15, abs=FEW_TERMS)
    assert mce(probs, labels, 10).item() == pytest.approx(0.2, abs=FEW_TERMS)


def test_empty_bins_are_nan_and_counted_zero():
    labels = torch.zeros(10, dtype=torch.long)
    curve = reliability_curve(torch.eye(2)[labels], labels, 10)
    assert curve.count.tolist() == [0] * 9 + [10]
    assert curve.accuracy[:9].isnan().all()
    assert curve.confidence[:9].isnan().all()
    assert curve.accuracy[9].item() == 1.0


@pytest.mark.parametrize("n_bins", [1, 2, 15, 100])
def test_n_bins_counts_bins_not_edges(batch, n_bins):
    curve = reliability_curve(*batch(), n_bins)
    assert curve.n_bins == len(curve.count) == n_bins
    assert curve.edges.tolist() == [b / n_bins for b in range(n_bins + 1)]
    assert curve.count.sum().item() == 200


def test_an_edge_belongs_to_the_bin_below_it():
    probs, labels = two_columns([0.5, 0.7, math.nextafter(0.7, 1)], [1, 1, 1])
    assert reliability_curve(probs, labels, 10).count.tolist() == [0, 0, 0, 0, 1, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(("measure", "norm"), [(ece, "l1"), (mce, "max")], ids=["ece", "mce"])
@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_equal_torchmetrics(batch, n_bins, measure, norm):
    """Away from edges and from confidence 1, where its last bin is another one."""
    probs, labels = batch(rows=300, classes=5, seed=3)
    got = measure(probs.float(), labels, n_bins).item()
    want = multiclass_calibration_error(probs.float(), labels, 5, n_bins=n_bins, norm=norm)
    # torchmetrics adds float32 bin means: 300 terms.
    assert got == pytest.approx(want.item(), abs=300 * 2.0**-24)


def test_two_columns_mean_the_top_label_not_the_second_column():
    """Bins of the second column would be [2, 3] samples with an error of 0.28 as well."""
    p = torch.tensor([0.2, 0.2, 0.6, 0.7, 0.7], dtype=torch.float64)
    probs, labels = torch.stack([1 - p, p], dim=1), torch.tensor([0, 0, 1, 1, 1])
    curve = reliability_curve(probs, labels, 2)
    assert curve.count.tolist() == [0, 5]
    assert curve.edges.tolist() == [0.0, 0.5, 1.0]
    assert ece(probs, labels, 2).item() == pytest.approx(0.28, abs=FEW_TERMS)


def test_debiased_ece_equals_the_resampled_estimate(batch):
    """The published code draws accuracies from a normal; the closed form is its mean."""
    probs, labels = batch(rows=400, seed=2)
    curve = reliability_curve(probs, labels, 10)
    held = curve.count > 0
    share = (curve.count[held] / 400.0).double().numpy()
    accuracy, confidence = curve.accuracy[held].numpy(), curve.confidence[held].numpy()
    sigma = np.sqrt(accuracy * (1 - accuracy) / curve.count[held].numpy())
    draws = np.random.default_rng(0).normal(accuracy, sigma, size=(100_000, len(sigma)))
    errors = np.abs(draws - confidence) @ share
    want = 2 * (np.abs(accuracy - confidence) @ share) - errors.mean()
    # four standard errors of the drawn mean; float32 shares add 2⁻²⁴
    room = 4 * errors.std() / math.sqrt(100_000) + 2.0**-24
    assert debiased_ece(probs, labels, 10).item() == pytest.approx(want, abs=room)


def test_debiased_ece_takes_0_4_of_the_bias_on_a_calibrated_network():
    generator = torch.Generator().manual_seed(0)
    plain, debiased = [], []
    for _ in range(200):
        top = 0.5 + 0.5 * torch.rand(2000, generator=generator, dtype=torch.float64)
        labels = (torch.rand(2000, generator=generator, dtype=torch.float64) >= top).long()
        probs = torch.stack([top, 1 - top], dim=1)
        plain.append(ece(probs, labels, 10).item())
        debiased.append(debiased_ece(probs, labels, 10).item())
    left = np.array(debiased) - (2 - math.sqrt(2)) * np.array(plain)
    # The closed form holds for normal bins; 400 samples a bin leave about 1/400 of the error.
    assert abs(left.mean()) < 4 * left.std() / math.sqrt(200) + np.mean(plain) / 400
    assert np.mean(debiased) > 0


def test_debiased_ece_by_hand():
    """One bin, gap 0: what is subtracted is σ √(2/π) with σ = √(¼ / 4)."""
    probs, labels = two_columns([0.5] * 4, [1, 0, 1, 0])
    want = -0.25 * math.sqrt(2 / math.pi)
    assert debiased_ece(probs, labels, 10).item() == pytest.approx(want, abs=FEW_TERMS)


def test_fewer_bins_than_gaps_hide_them():
    """Bin gaps of opposite sign cancel, so the number of bins is part of the number."""
    probs, labels = two_columns([0.625] * 2 + [0.875] * 2, [1, 1, 1, 0])
    assert ece(probs, labels, 1).item() == 0.0
    assert ece(probs, labels, 4).item() == 0.375


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_ece_equals_the_ece_of_the_rounded_numbers(batch, dtype):
    probs, labels = batch(dtype=dtype)
    want = naive_ece(probs.double().numpy(), labels.numpy(), 15)
    assert ece(probs, labels).item() == pytest.approx(want, abs=200 * 2.0**-53)


def test_float16_ece_is_near_float32():
    torch.manual_seed(0)
    full = torch.randn(64, 10).softmax(1)
    labels = torch.randint(10, (64,), generator=torch.Generator().manual_seed(1))
    # No confidence of this seed crosses an edge, so the gaps move by at most half an ulp, 2⁻¹¹.
    assert ece(full.half(), labels).item() == pytest.approx(ece(full, labels).item(), abs=2.0**-11)


def test_a_rounded_row_above_one_lies_in_the_last_bin():
    probs = torch.tensor([[1.0 + 2.0**-23, 0.0]])
    curve = reliability_curve(probs, torch.tensor([0]), 15)
    assert curve.count[-1].item() == 1
    assert curve.confidence[-1].item() == 1.0


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 50), st.integers(2, 5), st.integers(1, 20), st.integers(0, 2**32))
def test_ece_equals_the_loop_also_on_edges(rows, classes, n_bins, seed):
    """Probabilities are multiples of 1/20, so many confidences fall on an edge or tie."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(20, [1 / classes] * classes, size=rows) / 20
    labels = rng.integers(classes, size=rows)
    got = ece(torch.from_numpy(probs), torch.from_numpy(labels), n_bins).item()
    assert got == pytest.approx(naive_ece(probs, labels, n_bins), abs=2 * rows * 2.0**-53)
    assert 0.0 <= got <= 1.0
