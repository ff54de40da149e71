"""Every table of a report, computed once: the page, the sentences and report.json read these."""

from dataclasses import dataclass

import torch

from bayes_dc import metrics as m
from bayes_dc.report.certainty import CertaintyRow, certainty_rows
from bayes_dc.report.classes import ClassRow, class_rows
from bayes_dc.report.differences import DifferenceRow, difference_rows, scored
from bayes_dc.report.evaluation import Evaluation, Named
from bayes_dc.report.ood import OODRow, ood_rows
from bayes_dc.report.sections import OODSet
from bayes_dc.report.selective import (
    AbstentionResult,
    RiskCurve,
    abstention_result,
    risk_curves,
)
from bayes_dc.report.specs import LABELLED, UNLABELLED
from bayes_dc.report.tables import MetricRow, ReviewRow, metric_rows, reliability, review_rows


@dataclass(frozen=True)
class SeedScores:
    """One metric over several seeds of the masks.

    Attributes:
        key: Name in report.json.
        title: Name for people.
        unit: ``"share"``, ``"nats"`` or ``""``.
        values: One per seed.
        mean: Their mean.
        deviation: Their standard deviation (n − 1); NaN of one seed.
    """

    key: str
    title: str
    unit: str
    values: list[float]
    mean: float
    deviation: float


@dataclass(frozen=True)
class ComparedNetwork:
    """Another network on the same inputs.

    Attributes:
        named: Its name and predictions.
        rows: Its metrics.
        differences: It less the network of the report, paired by input.
        ood: Its rows for every set of other inputs, by name of the set.
        risk: Its risk against coverage.
    """

    named: Named
    rows: list[MetricRow]
    differences: list[DifferenceRow]
    ood: dict[str, list[OODRow]]
    risk: list[RiskCurve]


@dataclass(frozen=True)
class Derived:
    """What follows from an evaluation.

    Attributes:
        rows: Metrics.
        review: What checking the most uncertain inputs by hand would bring.
        certainty: Areas over all thresholds.
        curve: Reliability, or None.
        risk: Risk against coverage.
        abstention: What the policy promised and did, or None.
        classes: Class by class.
        ood: For every set of other inputs.
        seeds: Metrics over seeds of the masks; empty for one seed.
        compared: Other networks.
    """

    rows: list[MetricRow]
    review: list[ReviewRow]
    certainty: list[CertaintyRow]
    curve: m.ReliabilityCurve | None
    risk: list[RiskCurve]
    abstention: AbstentionResult | None
    classes: list[ClassRow]
    ood: list[tuple[OODSet, list[OODRow]]]
    seeds: list[SeedScores]
    compared: list[ComparedNetwork]

    def row(self, key: str) -> MetricRow | None:
        """Find a metric.

        Args:
            key: Its name in report.json.

        Returns:
            The row, or None if the evaluation has no such metric.
        """
        return next((row for row in self.rows if row.key == key), None)


def derive(evaluation: Evaluation) -> Derived:
    """Compute every table of a report.

    Args:
        evaluation: What was predicted.

    Returns:
        The tables; those that the evaluation does not allow are empty.
    """
    return Derived(
        rows=metric_rows(evaluation),
        review=review_rows(evaluation),
        certainty=certainty_rows(evaluation),
        curve=reliability(evaluation),
        risk=risk_curves(evaluation),
        abstention=abstention_result(evaluation),
        classes=class_rows(evaluation),
        ood=[(other, ood_rows(evaluation, other)) for other in evaluation.ood],
        seeds=_seeds(evaluation),
        compared=[_compared(evaluation, named) for named in evaluation.compared],
    )


def _compared(evaluation: Evaluation, named: Named) -> ComparedNetwork:
    """Metrics of another network, and how it differs."""
    other = named.evaluation
    return ComparedNetwork(
        named=named,
        rows=metric_rows(other),
        differences=difference_rows(scored(evaluation), scored(other), paired=True),
        ood={one.name: ood_rows(other, one) for one in other.ood},
        risk=risk_curves(other),
    )


def _seeds(evaluation: Evaluation) -> list[SeedScores]:
    """Mean and spread of every metric over seeds, on inputs that are finite for all."""
    predictions = [run.prediction for run in evaluation.seeds]
    if len(predictions) < 2:
        return []
    finite = [prediction.mean.isfinite().all(dim=1) for prediction in predictions]
    use = torch.stack([evaluation.usable, *finite]).all(dim=0)
    if not use.any():
        return []
    rows = []
    if evaluation.labels is not None:
        labels = evaluation.labels[use]
        for spec in LABELLED:
            values = [spec.value(prediction.mean[use], labels) for prediction in predictions]
            rows.append(_spread(spec.key, spec.title, spec.unit, values))
    for key, title, _ in UNLABELLED:
        values = [getattr(prediction, key)[use].mean().item() for prediction in predictions]
        rows.append(_spread(key, title, "nats", values))
    return rows


def _spread(key: str, title: str, unit: str, values: list[float]) -> SeedScores:
    """One metric over seeds."""
    all_values = torch.tensor(values, dtype=torch.float64)
    return SeedScores(key, title, unit, values, all_values.mean().item(), all_values.std().item())
