"""Class-wise ECE and the parts of the Brier score against loops, identities and scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from bayes_dc.metrics import (
    brier,
    brier_decomposition,
    brier_reliability,
    brier_resolution,
    brier_uncertainty,
    classwise_ece,
    ece,
)


def naive(probs, labels, n_bins):
    """(class-wise ECE, reliability, resolution, uncertainty, remainder) by loops over (lo, hi]."""
    classes = probs.shape[1]
    error = reliability = resolution = uncertainty = remainder = 0.0
    for c in range(classes):
        p, o = probs[:, c], (labels == c).astype(float)
        uncertainty += o.mean() * (1 - o.mean())
        for b in range(n_bins):
            inside = (p > (-1.0 if b == 0 else b / n_bins)) & (p <= (b + 1) / n_bins)
            if inside.any():
                share, pb, ob = inside.mean(), p[inside], o[inside]
                gap = pb.mean() - ob.mean()
                error += share * abs(gap) / classes
                reliability += share * gap**2
                resolution += share * (ob.mean() - o.mean()) ** 2
                covariance = ((pb - pb.mean()) * (ob - ob.mean())).mean()
                remainder += share * (pb.var() - 2 * covariance)
    return error, reliability, resolution, uncertainty, remainder


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 20), st.integers(0, 2**32))
def test_equal_the_loops_also_on_edges_and_zeros(rows, classes, n_bins, seed):
    """Probabilities are multiples of 1/20, 0 and 1 among them."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(20, [1 / classes] * classes, size=rows) / 20
    labels = rng.integers(classes, size=rows)
    arguments = torch.from_numpy(probs), torch.from_numpy(labels), n_bins
    error, *parts = naive(probs, labels, n_bins)
    # a few sums of rows · classes terms of at most 1, divided by rows
    room = 8 * rows * classes * 2.0**-53
    assert classwise_ece(*arguments).item() == pytest.approx(error, abs=room)
    got = brier_decomposition(*arguments)
    for name, want in zip(
        ("reliability", "resolution", "uncertainty", "remainder"), parts, strict=True
    ):
        assert getattr(got, name).item() == pytest.approx(want, abs=room), name
    assert got.brier.item() == pytest.approx(brier(*arguments[:2]).item(), abs=room)
    assert 0.0 <= got.reliability.item() <= 2.0 + room
    assert 0.0 <= got.resolution.item() <= got.uncertainty.item() + room
    assert 0.0 <= classwise_ece(*arguments).item() <= 2 / classes + room


def test_the_sum_of_the_parts_is_the_brier_score_of_scikit_learn(batch):
    probs, labels = batch(classes=4)
    want = sk.brier_score_loss(labels, probs.numpy(), labels=range(4), scale_by_half=False)
    # 800 terms
    assert brier_decomposition(probs, labels).brier.item() == pytest.approx(
        want, rel=2 * 800 * 2.0**-53
    )


def test_one_value_per_bin_leaves_no_remainder():
    """Murphy's own case: forecasts from a short list of values, one to a bin."""
    rng = np.random.default_rng(0)
    p = torch.from_numpy(rng.choice([0.05, 0.35, 0.65, 0.95], size=300))
    labels = torch.from_numpy((rng.random(300) < 0.5).astype(int))
    got = brier_decomposition(torch.stack([1 - p, p], dim=1), labels, 10)
    assert got.remainder.item() == pytest.approx(0.0, abs=8 * 600 * 2.0**-53)


def test_forecasting_the_frequencies_has_only_uncertainty():
    labels = torch.tensor([0, 0, 1, 2])
    probs = torch.tensor([[0.5, 0.25, 0.25]]).expand(4, 3)
    got = brier_decomposition(probs, labels)
    assert (got.reliability.item(), got.resolution.item(), got.remainder.item()) == (0, 0, 0)
    assert got.uncertainty.item() == 0.25 + 2 * 0.25 * 0.75


def test_a_perfect_network_resolves_all_uncertainty():
    labels = torch.tensor([0, 1, 2, 2])
    got = brier_decomposition(torch.eye(3)[labels], labels)
    assert got.reliability.item() == 0.0
    assert got.resolution.item() == got.uncertainty.item() == 0.25 * 0.75 * 2 + 0.25
    assert classwise_ece(torch.eye(3)[labels], labels).item() == 0.0


def test_the_worst_network():
    labels = torch.tensor([0, 1])
    got = brier_decomposition(torch.eye(2)[1 - labels], labels)
    assert got.reliability.item() == 2.0
    assert classwise_ece(torch.eye(2)[1 - labels], labels).item() == 1.0


def test_scalars_are_the_parts(batch):
    probs, labels = batch()
    parts = brier_decomposition(probs, labels, 12)
    assert brier_reliability(probs, labels, 12).item() == parts.reliability.item()
    assert brier_resolution(probs, labels, 12).item() == parts.resolution.item()
    assert brier_uncertainty(probs, labels).item() == parts.uncertainty.item()


def test_classes_may_be_absent_from_the_labels():
    probs = torch.tensor([[0.9, 0.06, 0.04], [0.8, 0.15, 0.05]], dtype=torch.float64)
    # |Σ gap| per class and bin: class 0 0.1 + 0.2, class 1 0.06 + 0.15, class 2 0.09 in one bin
    got = classwise_ece(probs, torch.tensor([0, 0]), 10).item()
    assert got == pytest.approx((0.3 + 0.21 + 0.09) / 6, abs=20 * 2.0**-53)


def test_two_classes_have_mirrored_errors():
    """With 2 classes and a prediction of class 1 throughout, class-wise is top-label ECE."""
    rng = np.random.default_rng(1)
    p = torch.from_numpy(0.5 + 0.5 * rng.random(100))
    labels = torch.from_numpy(rng.integers(2, size=100))
    probs = torch.stack([1 - p, p], dim=1)
    # no p lies on an edge, so bins of 1 − p mirror those of p
    want = ece(probs, labels, 10).item()
    assert classwise_ece(probs, labels, 10).item() == pytest.approx(want, abs=400 * 2.0**-53)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_the_rounded_numbers(batch, dtype):
    probs, labels = batch(dtype=dtype)
    error, *_ = naive(probs.double().numpy(), labels.numpy(), 15)
    assert classwise_ece(probs, labels).item() == pytest.approx(error, abs=8 * 2000 * 2.0**-53)
