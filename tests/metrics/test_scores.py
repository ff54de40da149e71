"""Accuracy, NLL and Brier against scikit-learn, torchmetrics and numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_accuracy

from bayes_dc.metrics import (
    accuracy,
    brier,
    brier_per_sample,
    correct,
    nll,
    nll_from_logits,
    nll_per_sample,
)

# Both sides add B float64 terms; their relative rounding errors are at most about B · 2⁻⁵³ each.
SUM_OF_200 = 2 * 200 * 2.0**-53


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_scores_equal_scikit_learn(batch, classes):
    probs, labels = batch(classes=classes)
    p, y = probs.numpy(), labels.numpy()
    assert accuracy(probs, labels).item() == sk.accuracy_score(y, p.argmax(1))
    want = sk.log_loss(y, p, labels=np.arange(classes))
    assert nll(probs, labels).item() == pytest.approx(want, rel=SUM_OF_200)
    want = sk.brier_score_loss(y, p, labels=np.arange(classes), scale_by_half=False)
    assert brier(probs, labels).item() == pytest.approx(want, rel=SUM_OF_200)


def test_accuracy_equals_torchmetrics(batch):
    probs, labels = batch()
    want = multiclass_accuracy(probs, labels, num_classes=10, average="micro")
    assert accuracy(probs, labels).item() == pytest.approx(want.item(), rel=2.0**-23)


@pytest.mark.parametrize(
    ("probs", "label", "want"),
    [([0.7, 0.2, 0.1], 0, 0.14), ([0.1] * 10, 3, 0.90), ([1.0, 0.0], 1, 2.0), ([0.0, 1.0], 1, 0.0)],
    ids=["soft", "uniform", "sure-and-wrong", "sure-and-right"],
)
def test_brier_sums_over_classes(probs, label, want):
    got = brier(torch.tensor([probs], dtype=torch.float64), torch.tensor([label]))
    assert got.item() == pytest.approx(want, rel=10 * 2.0**-53)


def test_nll_is_zero_or_infinite_on_certain_rows_and_never_nan():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    right = nll(probs, torch.tensor([0, 0]))
    assert right.item() == 0.0
    assert math.copysign(1.0, right.item()) == 1.0
    assert nll(probs, torch.tensor([1, 1])).item() == math.inf
    assert nll(probs, torch.tensor([0, 1])).item() == math.inf
    per_sample = nll_per_sample(probs, torch.tensor([0, 1])).tolist()
    assert per_sample == [0.0, math.inf]
    assert math.copysign(1.0, per_sample[0]) == 1.0


def test_a_row_rounded_to_above_one_has_an_nll_of_zero():
    assert nll(torch.tensor([[1.0 + 2.0**-23, 0.0]]), torch.tensor([0])).item() == 0.0


def test_nll_from_logits_does_not_underflow():
    assert nll_from_logits(torch.tensor([[40.0, 0.0]]), torch.tensor([1])).item() == 40.0
    assert nll_from_logits(torch.tensor([[0.0, -math.inf]]), torch.tensor([0])).item() == 0.0


def test_nll_from_logits_equals_nll_of_softmax(batch):
    probs, labels = batch()
    got = nll_from_logits(probs.log() + 3.0, labels).item()
    assert got == pytest.approx(nll(probs, labels).item(), rel=SUM_OF_200)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_stay_near_float32(dtype):
    torch.manual_seed(0)
    full = torch.randn(64, 10).softmax(1)
    half = full.to(dtype)
    labels = torch.randint(10, (64,), generator=torch.Generator().manual_seed(1))
    # float16 rounds a probability by 2⁻¹¹ of its value, bfloat16 by 2⁻⁸. To first order NLL moves
    # by that much and Brier by Σ 2 |p − y| |δp| ≤ 4 · 2⁻¹¹ or 4 · 2⁻⁸.
    unit = torch.finfo(dtype).eps / 2
    assert nll(half, labels).item() == pytest.approx(nll(full, labels).item(), abs=2 * unit)
    assert brier(half, labels).item() == pytest.approx(brier(full, labels).item(), abs=4 * unit)
    assert nll(half, labels).dtype == torch.float64


def test_float16_accuracy_equals_float32():
    torch.manual_seed(0)
    full = torch.randn(64, 10).softmax(1)
    labels = torch.randint(10, (64,), generator=torch.Generator().manual_seed(1))
    assert accuracy(full.half(), labels).item() == accuracy(full, labels).item()


def test_accuracy_is_a_mean_over_samples_not_over_batches():
    probs = torch.eye(2)[[0, 0, 0, 0, 1]]
    labels = torch.zeros(5, dtype=torch.long)
    assert accuracy(probs, labels).item() == 0.8
    assert correct(probs, labels).tolist() == [True, True, True, True, False]
    batches = [slice(0, 2), slice(2, 4), slice(4, 5)]
    mean_of_means = sum(accuracy(probs[b], labels[b]).item() for b in batches) / 3
    assert mean_of_means == pytest.approx(2 / 3)


def test_per_sample_values_average_to_the_score(batch):
    probs, labels = batch(rows=37)
    assert nll_per_sample(probs, labels).mean().item() == nll(probs, labels).item()
    assert brier_per_sample(probs, labels).mean().item() == brier(probs, labels).item()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integer_labels_are_taken(batch, dtype):
    probs, labels = batch()
    assert accuracy(probs, labels.to(dtype)).item() == accuracy(probs, labels).item()


def test_the_input_is_not_changed(batch):
    probs, labels = batch()
    before = probs.clone()
    brier(probs, labels)
    nll(probs, labels)
    assert torch.equal(probs, before)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32))
def test_ranges_and_order_invariance(rows, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 20 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    probs = logits.softmax(1)
    labels = torch.randint(classes, (rows,), generator=generator)
    order = torch.randperm(rows, generator=generator)
    for score, top in ((accuracy, 1.0), (brier, 2.0), (nll, math.inf)):
        value = score(probs, labels).item()
        # One ulp of room per added term for a row that sums to just above 1.
        assert 0.0 <= value <= top * (1 + (rows + classes) * 2.0**-52)
        moved = score(probs[order], labels[order]).item()
        assert moved == pytest.approx(value, rel=2 * rows * 2.0**-53)
