"""Faults that calibration errors and reliability curves elsewhere were reported for.

Every case has the source of the report and the value that is right.
"""

from pathlib import Path

import pytest
import torch

import bayes_dc
from bayes_dc import metrics as m

PACKAGE = Path(bayes_dc.__file__).parent

FEW_TERMS = 20 * 2.0**-53
"""Rounding of sums of at most twenty float64 numbers below 1."""


def top_label(confidence, right):
    """Two columns whose larger one is the confidence, and labels that make it right or not."""
    confidence = torch.tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    return probs, 1 - torch.tensor(right)


def assert_errors(probs, labels, n_bins, *, ece, mce):
    assert m.ece(probs, labels, n_bins).item() == pytest.approx(ece, abs=FEW_TERMS)
    assert m.mce(probs, labels, n_bins).item() == pytest.approx(mce, abs=FEW_TERMS)


def test_a_confidence_of_one_has_no_bin_of_its_own():
    # source: Lightning-AI/torchmetrics#3510
    probs, labels = top_label([0.96, 1.0], [1, 0])
    assert_errors(probs, labels, 10, ece=0.48, mce=0.48)
    # one bin, and no order of the samples to hide it
    assert m.adaptive_ece(probs, labels, 1).item() == pytest.approx(0.48, abs=FEW_TERMS)
    assert m.reliability_curve(probs, labels, 10).count.tolist() == [0] * 9 + [2]
    assert m.positive_class_ece(probs[:, 0], 1 - labels, 10).item() == pytest.approx(0.48)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_probability_of_zero_has_a_bin(dtype):
    # source: Lightning-AI/torchmetrics#1646
    p, labels = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=dtype), torch.tensor([0, 1, 1, 1])
    columns = torch.stack([1 - p, p], dim=1)
    assert m.ece(columns, labels, 4).item() == 0.5
    assert m.positive_class_ece(p, labels, 4).item() == 0.5
    assert m.positive_class_curve(p, labels, 4).count.tolist() == [1, 0, 0, 3]
    # every class has a column of zeros and ones: [1, 1, 1, 0] and its complement
    assert m.classwise_ece(columns, labels, 4).item() == 0.5
    assert m.brier_reliability(columns, labels, 4).item() == pytest.approx(
        2 * (3 / 4 * (1 / 3) ** 2 + 1 / 4), abs=FEW_TERMS
    )


@pytest.mark.parametrize(
    "measure",
    [m.ece, m.mce, m.adaptive_ece, m.debiased_ece, m.classwise_ece, m.brier_reliability],
    ids=lambda f: f.__name__,
)
def test_a_saturated_network_that_is_right_scores_zero(measure):
    # source: Lightning-AI/torchmetrics#1744
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    assert measure(torch.eye(3)[labels], labels, 15).item() == 0.0


def test_two_columns_are_read_as_the_top_label():
    """The reading as positive class has a name of its own."""
    # source: Lightning-AI/torchmetrics#1105
    probs, labels = (
        torch.tensor([[0.7, 0.3], [0.3, 0.7]], dtype=torch.float64),
        torch.tensor([0, 0]),
    )
    assert m.ece(probs, labels, 10).item() == pytest.approx(0.2, abs=FEW_TERMS)
    got = m.positive_class_ece(probs[:, 1], labels, 10).item()
    assert got == pytest.approx(0.5, abs=FEW_TERMS)


def test_n_bins_counts_bins_not_edges():
    # source: Lightning-AI/torchmetrics#1907
    p = torch.tensor([0.2, 0.2, 0.6, 0.7, 0.7], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1])
    curve = m.positive_class_curve(p, labels, 2)
    assert curve.count.tolist() == [2, 3]
    assert curve.edges.tolist() == [0.0, 0.5, 1.0]
    assert m.positive_class_ece(p, labels, 2).item() == pytest.approx(0.28, abs=FEW_TERMS)
    probs = torch.stack([1 - p, p], dim=1)
    assert m.ece(probs, labels, 2).item() == pytest.approx(0.28, abs=FEW_TERMS)
    assert m.reliability_curve(probs, labels, 2).edges.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("confidence", "want"), [(0.83, 0.17), (1.0, 0.0)])
def test_accuracy_is_compared_with_the_mean_confidence_not_the_midpoint(confidence, want):
    # source: JonathanWenger/pycalib#4
    assert_errors(*top_label([confidence] * 4, [1] * 4), 10, ece=want, mce=want)


def test_a_bin_weighs_as_much_as_it_holds():
    # source: ethen8181/machine-learning#20
    probs, labels = top_label([0.95] * 9 + [0.55], [1] * 9 + [0])
    assert_errors(probs, labels, 10, ece=0.10, mce=0.55)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_batches_are_put_together_not_averaged(size):
    # source: Bala93/CLIPCalib#2
    probs, labels = top_label([0.75] * 8, [1, 1, 1, 1, 1, 1, 0, 0])
    for measure in (m.ece, m.mce, m.adaptive_ece, m.classwise_ece):
        stream = m.Streaming(measure, n_bins=1)
        for batch in zip(probs.split(size), labels.split(size), strict=True):
            stream.update(*batch)
        assert stream.compute().item() == 0.0, measure


def test_a_class_may_never_be_a_label():
    # source: p-lambda/verified_calibration#2
    probs = torch.tensor([[0.9, 0.06, 0.04], [0.8, 0.15, 0.05]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    assert_errors(probs, labels, 10, ece=0.15, mce=0.20)
    # classes 1 and 2 never occur: their forecasts are compared with 0; 0.06 and 0.15, 0.04 and 0.05
    want = (0.3 + (0.06 + 0.15) + (0.04 + 0.05)) / 2 / 3
    assert m.classwise_ece(probs, labels, 10).item() == pytest.approx(want, abs=FEW_TERMS)
    assert m.accuracy(probs, labels).item() == 1.0
    assert m.brier_uncertainty(probs, labels).item() == 0.0


def test_bins_without_samples_claim_no_accuracy():
    # source: EFS-OpenSource/calibration-framework#52
    curve = m.reliability_curve(*top_label([1.0] * 10, [1] * 10), 10)
    assert curve.count.tolist() == [0] * 9 + [10]
    for values in (curve.accuracy, curve.confidence):
        assert values[:9].isnan().all()
        assert values[9].item() == 1.0


def test_no_threshold_comes_from_torch_quantile():
    """It took at most 2²⁴ values. Metrics of 2²⁴ + 1 values: see COVERED.md."""
    # source: pytorch/pytorch#64947
    callers = [path for path in PACKAGE.rglob("*.py") if "quantile(" in path.read_text("utf-8")]
    assert callers == []


@pytest.mark.parametrize("n_bins", [0, -1, 2.5])
@pytest.mark.parametrize(
    "measure",
    [
        *(m.ece, m.mce, m.reliability_curve, m.reliability_band, m.debiased_ece, m.adaptive_ece),
        *(m.debiased_squared_error, m.classwise_ece, m.brier_decomposition, m.brier_reliability),
        *(m.brier_resolution, m.positive_class_ece, m.positive_class_curve, m.bootstrap_ece),
    ],
    ids=lambda f: f.__name__,
)
def test_a_number_of_bins_below_one_is_refused(measure, n_bins):
    # source: rohitg00/ai-engineering-from-scratch#210
    probs, labels = top_label([0.9, 0.8], [1, 0])
    first = probs[:, 0] if measure.__name__.startswith("positive") else probs
    with pytest.raises(ValueError, match="n_bins must be a positive integer") as caught:
        measure(first, labels, n_bins=n_bins)
    assert f"got {n_bins!r}" in str(caught.value)
