"""Differences between two networks, with their intervals."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.report.estimate import FEWEST, Estimate
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.specs import LABELLED, UNLABELLED, Spec
from bayes_dc.report.tables import change


@dataclass(frozen=True)
class Scored:
    """What one network said about its inputs.

    Attributes:
        probs: Class probabilities ``[n, C]``, float64.
        labels: Class numbers ``[n]``, or None.
        uncertainties: Values of every input by name ``[n]``: entropy, expected_entropy,
            mutual_information.
    """

    probs: Tensor
    labels: Tensor | None
    uncertainties: Mapping[str, Tensor]

    def rows(self, chosen: Tensor) -> "Scored":
        """Return some of the inputs.

        Args:
            chosen: True for every input to keep ``[n]``.

        Returns:
            Those inputs.
        """
        labels = None if self.labels is None else self.labels[chosen]
        values = {name: value[chosen] for name, value in self.uncertainties.items()}
        return Scored(self.probs[chosen], labels, values)

    @property
    def usable(self) -> Tensor:
        """Inputs whose predictions are numbers, bool ``[n]``."""
        return self.probs.isfinite().all(dim=1)


@dataclass(frozen=True)
class DifferenceRow:
    """One metric of two networks.

    Attributes:
        key: Name in report.json.
        title: Name for people.
        direction: ``"higher"``, ``"lower"`` or ``"zero"`` is better; ``"none"`` if neither is.
        unit: ``"share"``, ``"nats"`` or ``""``.
        first: The metric of the first network.
        second: The metric of the second network.
        difference: Second less first, with its interval; None where a loss is infinite.
        n: Number of inputs, of the network that has fewer.
    """

    key: str
    title: str
    direction: str
    unit: str
    first: float
    second: float
    difference: Estimate | None
    n: int

    @property
    def verdict(self) -> str:
        """``"better"``, ``"worse"`` or ``"different"`` if the interval leaves 0 out, or ``""``.

        Always ``""`` for fewer than ``FEWEST`` inputs.
        """
        if self.difference is None or self.n < FEWEST:
            return ""
        low, high = self.difference.interval.low, self.difference.interval.high
        if low <= 0 <= high:
            return ""
        if self.direction in ("higher", "lower"):
            return "better" if (low > 0) == (self.direction == "higher") else "worse"
        if self.direction == "zero" and abs(self.first) != abs(self.second):
            return "better" if abs(self.second) < abs(self.first) else "worse"
        return "different"


def scored(evaluation: Evaluation) -> Scored:
    """Take what differences are computed from.

    Args:
        evaluation: What was predicted.

    Returns:
        Probabilities, labels and uncertainties of all inputs.
    """
    prediction = evaluation.prediction
    values = {key: getattr(prediction, key) for key, _, _ in UNLABELLED}
    return Scored(prediction.mean, evaluation.labels, values)


def difference_rows(first: Scored, second: Scored, *, paired: bool) -> list[DifferenceRow]:
    """Compare two networks metric by metric.

    Args:
        first: One network.
        second: The other.
        paired: Whether both hold the same inputs in the same order; inputs that one of them has no
            finite prediction for are then left out of both. False: resampled independently.

    Returns:
        One row per metric that both have; empty if one has no finite prediction.
    """
    if paired:
        both = first.usable & second.usable
        first, second = first.rows(both), second.rows(both)
    else:
        first, second = first.rows(first.usable), second.rows(second.usable)
    if len(first.probs) == 0 or len(second.probs) == 0:
        return []
    rows, n = [], min(len(first.probs), len(second.probs))
    if first.labels is not None and second.labels is not None:
        for spec in LABELLED:
            pair = ((first.probs, first.labels), (second.probs, second.labels))
            before, after = (spec.value(*one) for one in pair)
            if paired:
                gap = change(spec, first.probs, second.probs, first.labels)
            else:
                gap = _apart(spec, *pair, after - before)
            described = (spec.key, spec.title, spec.direction, spec.unit)
            rows.append(DifferenceRow(*described, before, after, gap, n))
    for key, title, _ in UNLABELLED:
        a, b = first.uncertainties[key].double(), second.uncertainties[key].double()
        value = (b.mean() - a.mean()).item()
        interval = m.bootstrap_mean(b - a) if paired else m.bootstrap_mean_difference(a, b)
        gap = Estimate(value, interval)
        means = (a.mean().item(), b.mean().item())
        rows.append(DifferenceRow(key, title, "none", "nats", *means, gap, n))
    return rows


def _apart(
    spec: Spec, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], value: float
) -> Estimate | None:
    """Difference of two networks on inputs of their own."""
    if spec.per_sample is not None:
        a, b = (spec.per_sample(*pair).double() for pair in (first, second))
        if not (a.isfinite().all() and b.isfinite().all()):
            return None
        return Estimate(value, m.bootstrap_mean_difference(a, b))
    assert spec.metric is not None
    arguments = (spec.arguments(*pair) for pair in (first, second))
    interval = m.bootstrap_difference(spec.metric, *arguments, paired=False, **spec.options)
    return Estimate(value, interval)
