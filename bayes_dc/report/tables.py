"""The numbers of a report: metrics with definition, range, direction, n and interval."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.metrics import Interval
from bayes_dc.report.evaluation import Evaluation

N_BINS = 15
REVIEW_SHARES = (0.01, 0.05, 0.10, 0.20)


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap interval.

    Attributes:
        value: The metric on the evaluated inputs.
        interval: Percentile bootstrap over inputs.
    """

    value: float
    interval: Interval


@dataclass(frozen=True)
class MetricRow:
    """One metric of one report.

    Attributes:
        key: Name in report.json.
        title: Name for people.
        definition: What is computed, in a sentence.
        range: Lowest and highest possible value.
        direction: ``"higher"``, ``"lower"`` or ``"zero"`` is better; ``"none"`` if neither is.
        unit: ``"share"``, ``"nats"`` or ``""``.
        n: Number of inputs.
        monte_carlo: Of the mean over passes.
        mean_network: Of the mean-weight network in one pass, where it has such a number.
        difference: Monte Carlo less mean-weight network, paired by input; None for ECE and where a
            value is infinite.
    """

    key: str
    title: str
    definition: str
    range: str
    direction: str
    unit: str
    n: int
    monte_carlo: Estimate
    mean_network: Estimate | None
    difference: Estimate | None = None


@dataclass(frozen=True)
class ReviewRow:
    """What checking the most uncertain inputs by hand would bring.

    Attributes:
        share: Share of inputs that is checked.
        reviewed: Number of inputs that is checked.
        mistakes_found: Wrong predictions among them.
        mistakes: Wrong predictions among all.
        accuracy_of_rest: Accuracy of the inputs left alone; NaN if there are none.
    """

    share: float
    reviewed: int
    mistakes_found: int
    mistakes: int
    accuracy_of_rest: float


class _Spec(NamedTuple):
    """What a metric is, and its value per sample (None for ECE, which has none)."""

    key: str
    title: str
    definition: str
    range: str
    direction: str
    unit: str
    per_sample: Callable[[Tensor, Tensor], Tensor] | None


def _overconfidence(probs: Tensor, labels: Tensor) -> Tensor:
    """Confidence less hit, per sample."""
    return probs.double().amax(dim=1) - m.correct(probs, labels).double()


_LABELLED = (
    _Spec(
        "accuracy",
        "Accuracy",
        "Share of inputs whose most probable class is the label.",
        "0 … 1",
        "higher",
        "share",
        m.correct,
    ),
    _Spec(
        "nll",
        "Negative log-likelihood",
        "Mean of −log of the probability given to the label. Nothing is clipped: "
        "a label given probability 0 makes it infinite.",
        "0 … ∞",
        "lower",
        "nats",
        m.nll_per_sample,
    ),
    _Spec(
        "brier",
        "Brier score",
        "Mean squared distance between the class probabilities and the one-hot label, "
        "summed over classes.",
        "0 … 2",
        "lower",
        "",
        m.brier_per_sample,
    ),
    _Spec(
        "ece",
        "Expected calibration error",
        f"Mean gap between accuracy and mean confidence over {N_BINS} equal-width bins of the "
        "confidence in the predicted class, weighted by how many inputs a bin holds. Even a "
        "perfect network scores above 0 on few inputs, and the interval leans upwards.",
        "0 … 1",
        "lower",
        "share",
        None,
    ),
    _Spec(
        "overconfidence",
        "Overconfidence",
        "Mean confidence in the predicted class less accuracy. Above 0 the network claims more "
        "than it delivers, below 0 less.",
        "−1 … 1",
        "zero",
        "share",
        _overconfidence,
    ),
)

_UNLABELLED = (
    (
        "entropy",
        "Mean predictive entropy",
        "Total uncertainty: Shannon entropy of the class probabilities averaged over passes.",
    ),
    (
        "expected_entropy",
        "Mean expected entropy",
        "Uncertainty that lies in the data: entropy of each pass, averaged over passes. "
        "More training data of this kind does not remove it.",
    ),
    (
        "mutual_information",
        "Mean mutual information",
        "Uncertainty of the network: predictive less expected entropy. High where the passes "
        "disagree, as on inputs unlike the training data; reads low by about 1/T of its value.",
    ),
)


def metric_rows(evaluation: Evaluation) -> list[MetricRow]:
    """Compute every metric that the evaluation allows.

    Args:
        evaluation: What was predicted. Inputs without a finite prediction are left out (see ``n``);
            without labels the metrics that need them are left out.

    Returns:
        One row per metric; empty if no input has a finite prediction. Equal evaluations give equal
        bits.
    """
    use = evaluation.usable
    n = int(use.sum())
    if n == 0:
        return []
    probs, mean_network = evaluation.prediction.mean[use], evaluation.mean_network
    mean_network = None if mean_network is None else mean_network[use]
    rows = []
    if evaluation.labels is not None:
        labels = evaluation.labels[use]
        rows = [_labelled_row(spec, probs, mean_network, labels) for spec in _LABELLED]
    top = f"0 … {math.log(len(evaluation.class_names)):.3f}"
    for key, title, definition in _UNLABELLED:
        ours = _mean(getattr(evaluation.prediction, key)[use])
        theirs = None
        if key == "entropy" and mean_network is not None:
            theirs = _mean(m.entropy(mean_network))
        rows.append(MetricRow(key, title, definition, top, "none", "nats", n, ours, theirs))
    return rows


def _labelled_row(
    spec: _Spec, probs: Tensor, mean_network: Tensor | None, labels: Tensor
) -> MetricRow:
    """Compute one metric for both predictions, and their difference."""
    difference = None
    if spec.per_sample is None:
        ours = _ece(probs, labels)
        theirs = None if mean_network is None else _ece(mean_network, labels)
    else:
        values = spec.per_sample(probs, labels).double()
        ours, theirs = _mean(values), None
        if mean_network is not None:
            others = spec.per_sample(mean_network, labels).double()
            theirs = _mean(others)
            if (values - others).isfinite().all():
                difference = _mean(values - others)
    return MetricRow(*spec[:-1], len(labels), ours, theirs, difference)


def _ece(probs: Tensor, labels: Tensor) -> Estimate:
    """Expected calibration error with its interval."""
    return Estimate(m.ece(probs, labels, N_BINS).item(), m.bootstrap_ece(probs, labels, N_BINS))


def _mean(values: Tensor) -> Estimate:
    """Mean and interval of per-sample values."""
    return Estimate(values.double().mean().item(), m.bootstrap_mean(values))


def reliability(evaluation: Evaluation) -> m.ReliabilityCurve | None:
    """Return the reliability curve of the Monte Carlo prediction.

    Args:
        evaluation: What was predicted.

    Returns:
        The curve over inputs with a finite prediction; None without labels or without such inputs.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return None
    return m.reliability_curve(evaluation.prediction.mean[use], evaluation.labels[use], N_BINS)


def review_rows(evaluation: Evaluation) -> list[ReviewRow]:
    """Tell how many mistakes a person finds who checks the most uncertain inputs first.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.

    Returns:
        One row per share of inputs checked, by falling predictive entropy; empty without labels.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return []
    wrong = ~m.correct(evaluation.prediction.mean[use], evaluation.labels[use])
    order = evaluation.prediction.entropy[use].argsort(descending=True, stable=True)
    wrong, total = wrong[order], int(wrong.sum())
    rows = []
    for share in REVIEW_SHARES:
        reviewed = max(1, round(share * len(wrong)))
        rest = ~wrong[reviewed:]
        accuracy = rest.double().mean().item()  # NaN of nothing
        rows.append(ReviewRow(share, reviewed, int(wrong[:reviewed].sum()), total, accuracy))
    return rows


def infinite_nll_count(evaluation: Evaluation) -> int:
    """Count the labels that were given probability 0.

    Args:
        evaluation: What was predicted.

    Returns:
        Number of inputs that make the NLL infinite; 0 without labels.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return 0
    values = m.nll_per_sample(evaluation.prediction.mean[use], evaluation.labels[use])
    return int(values.isinf().sum())
