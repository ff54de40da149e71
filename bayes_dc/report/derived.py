"""Every table of a report, computed once: the page, the sentences and report.json read these."""

from dataclasses import dataclass
from functools import cached_property

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
    """What follows from an evaluation; every table is computed when it is first asked for.

    Tables that the evaluation does not allow are empty.

    Attributes:
        evaluation: What was predicted.
    """

    evaluation: Evaluation

    @cached_property
    def rows(self) -> list[MetricRow]:
        """Metrics."""
        return metric_rows(self.evaluation)

    @cached_property
    def review(self) -> list[ReviewRow]:
        """What checking the most uncertain inputs by hand would bring."""
        return review_rows(self.evaluation)

    @cached_property
    def certainty(self) -> list[CertaintyRow]:
        """Areas over all thresholds."""
        return certainty_rows(self.evaluation)

    @cached_property
    def curve(self) -> m.ReliabilityCurve | None:
        """Reliability, or None."""
        return reliability(self.evaluation)

    @cached_property
    def risk(self) -> list[RiskCurve]:
        """Risk against coverage."""
        return risk_curves(self.evaluation)

    @cached_property
    def abstention(self) -> AbstentionResult | None:
        """What the policy promised and did, or None."""
        return abstention_result(self.evaluation)

    @cached_property
    def classes(self) -> list[ClassRow]:
        """Class by class."""
        return class_rows(self.evaluation)

    @cached_property
    def ood(self) -> list[tuple[OODSet, list[OODRow]]]:
        """Every set of other inputs with its rows."""
        return [(other, ood_rows(self.evaluation, other)) for other in self.evaluation.ood]

    @cached_property
    def seeds(self) -> list[SeedScores]:
        """Metrics over seeds of the masks; empty for one seed."""
        return _seeds(self.evaluation)

    @cached_property
    def compared(self) -> list[ComparedNetwork]:
        """Other networks."""
        return [_compared(self.evaluation, named) for named in self.evaluation.compared]

    def row(self, key: str) -> MetricRow | None:
        """Find a metric.

        Args:
            key: Its name in report.json.

        Returns:
            The row, or None if the evaluation has no such metric.
        """
        return next((row for row in self.rows if row.key == key), None)


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
