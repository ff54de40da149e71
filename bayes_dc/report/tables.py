"""The numbers of a report: metrics with definition, range, direction, n and interval."""

import math
from dataclasses import dataclass

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.report.estimate import Estimate
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.specs import LABELLED, N_BINS, UNLABELLED, Section, Spec

REVIEW_SHARES = (0.01, 0.05, 0.10, 0.20)


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
        difference: Monte Carlo less mean-weight network, paired by input; None where a value is
            infinite.
        section: Part of the report.
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
    section: Section = "uncertainty"


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
        rows = [_labelled_row(spec, probs, mean_network, labels) for spec in LABELLED]
    top = f"0 … {math.log(len(evaluation.class_names)):.3f}"
    for key, title, definition in UNLABELLED:
        ours = _mean(getattr(evaluation.prediction, key)[use])
        theirs = None
        if key == "entropy" and mean_network is not None:
            theirs = _mean(m.entropy(mean_network))
        row = MetricRow(key, title, definition, top, "none", "nats", n, ours, theirs)
        rows.append(row)
    return rows


def _labelled_row(
    spec: Spec, probs: Tensor, mean_network: Tensor | None, labels: Tensor
) -> MetricRow:
    """Compute one metric for both predictions, and their difference."""
    theirs = difference = None
    if mean_network is None:
        ours = estimate(spec, probs, labels)
    elif spec.metric is None:
        ours, theirs = (estimate(spec, p, labels) for p in (probs, mean_network))
        difference = change(spec, mean_network, probs, labels)
    else:
        before, after = (spec.arguments(p, labels) for p in (mean_network, probs))
        values = [spec.metric(*pair, **spec.options).item() for pair in (before, after)]
        intervals = m.bootstrap_pair(spec.metric, before, after, **spec.options)
        theirs = Estimate(values[0], intervals.first)
        ours = Estimate(values[1], intervals.second)
        if intervals.difference is not None:
            difference = Estimate(values[1] - values[0], intervals.difference)
    return MetricRow(
        key=spec.key,
        title=spec.title,
        definition=spec.definition,
        range=spec.range,
        direction=spec.direction,
        unit=spec.unit,
        n=len(labels),
        monte_carlo=ours,
        mean_network=theirs,
        difference=difference,
        section=spec.section,
    )


def estimate(spec: Spec, probs: Tensor, labels: Tensor) -> Estimate:
    """Compute a metric with its interval.

    Args:
        spec: The metric.
        probs: Class probabilities ``[n, C]``.
        labels: Class numbers ``[n]``.

    Returns:
        Value and 95 % percentile bootstrap interval.
    """
    if spec.per_sample is not None:
        return _mean(spec.per_sample(probs, labels).double())
    assert spec.metric is not None
    pair = spec.arguments(probs, labels)
    value = spec.metric(*pair, **spec.options).item()
    return Estimate(value, m.bootstrap_metric(spec.metric, *pair, **spec.options))


def change(spec: Spec, before: Tensor, after: Tensor, labels: Tensor) -> Estimate | None:
    """Compute by how much a metric differs between two networks on the same inputs.

    Args:
        spec: The metric.
        before: Class probabilities of the first network ``[n, C]``.
        after: Class probabilities of the second network ``[n, C]``.
        labels: Class numbers ``[n]``.

    Returns:
        Second less first, with the interval of the paired bootstrap; None where a loss is infinite.
    """
    if spec.per_sample is not None:
        gap = spec.per_sample(after, labels).double() - spec.per_sample(before, labels).double()
        return _mean(gap) if gap.isfinite().all() else None
    assert spec.metric is not None
    first, second = (spec.arguments(p, labels) for p in (before, after))
    values = [spec.metric(*pair, **spec.options).item() for pair in (first, second)]
    interval = m.bootstrap_difference(spec.metric, first, second, **spec.options)
    return Estimate(values[1] - values[0], interval)


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
