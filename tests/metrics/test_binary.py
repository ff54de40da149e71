"""Calibration of the probability of class 1: another number than that of the top label."""

import math

import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from bayes_dc import metrics as m

SCORES = torch.tensor([0.2, 0.2, 0.6, 0.7, 0.7], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 1, 1])


@pytest.fixture
def binary():
    """300 scores and labels that are 1 about as often as the scores say, squared."""
    generator = torch.Generator().manual_seed(2)
    scores = torch.rand(300, generator=generator)
    return scores, (torch.rand(300, generator=generator) < scores**2).long()


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_equal_torchmetrics(binary, n_bins):
    """No score lies on an edge or is 1, where its bins are others."""
    got = m.positive_class_ece(*binary, n_bins).item()
    want = binary_calibration_error(*binary, n_bins=n_bins).item()
    # torchmetrics adds float32 bin means: 300 terms.
    assert got == pytest.approx(want, abs=300 * 2.0**-24)


def test_the_curve_holds_what_the_error_adds_up(binary):
    curve = m.positive_class_curve(*binary, 10)
    gaps = (curve.accuracy - curve.confidence).abs() * curve.count / 300
    assert gaps.sum().item() == pytest.approx(m.positive_class_ece(*binary, 10).item(), rel=1e-12)
    assert curve.count.sum().item() == 300


@pytest.mark.parametrize("measure", [m.positive_class_ece, m.positive_class_curve])
def test_batches_give_the_bits_of_one_call(binary, measure):
    stream = m.Streaming(measure, n_bins=9)
    for part in zip(*(t.split(77) for t in binary), strict=True):
        stream.update(*part)
    got, want = stream.compute(), measure(*binary, 9)
    if measure is m.positive_class_curve:
        got, want = (torch.cat([c.confidence, c.accuracy]) for c in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_its_interval_holds_it(binary):
    interval = m.bootstrap_metric(m.positive_class_ece, *binary, resamples=200, n_bins=5)
    assert interval.low < m.positive_class_ece(*binary, 5).item() < interval.high
    with pytest.raises(ValueError, match=r"no interval\. Take it of positive_class_ece\."):
        m.bootstrap_metric(m.positive_class_curve, *binary)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint64, torch.int32])
def test_any_integer_labels_are_taken(dtype):
    got = m.positive_class_ece(SCORES, LABELS.to(dtype), 2).item()
    assert got == m.positive_class_ece(SCORES, LABELS, 2).item()


@pytest.mark.parametrize(
    ("scores", "labels", "error", "text"),
    [
        (SCORES * 3, LABELS, ValueError, r"class 1, in 0 … 1; got 1\.8 at index 2\. If these are"),
        (-SCORES, LABELS, ValueError, r"got -0\.2 at index 0\. .*pass scores\.sigmoid\(\)"),
        (SCORES * math.nan, LABELS, ValueError, r"scores holds 5 NaN, the first at index 0"),
        (SCORES[:, None], LABELS, ValueError, r"scores must be floating point of shape \[n\]"),
        (SCORES[:0], LABELS[:0], ValueError, r"no samples: scores has shape \[0\]"),
        (SCORES.tolist(), LABELS, TypeError, r"scores must be a torch\.Tensor; got list"),
        (SCORES, LABELS.tolist(), TypeError, r"each of the 5 scores; got a list\."),
        (SCORES, LABELS[:4], ValueError, r"0 or 1 .* of the 5 scores; got shape \[4\], dtype"),
        (SCORES, LABELS.float(), ValueError, r"got shape \[5\], dtype torch\.float32\."),
        (SCORES, LABELS - 1, ValueError, r"labels must hold 0 or 1 .*; got -1 at index 0\."),
    ],
)
def test_arguments_are_refused(scores, labels, error, text):
    for measure in (m.positive_class_ece, m.positive_class_curve):
        with pytest.raises(error, match=text):
            measure(scores, labels)
