"""Scores of inputs that were changed."""

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.mc.prediction import Prediction
from bayes_dc.report.estimate import Estimate
from bayes_dc.report.evaluation import ReportError
from bayes_dc.report.sections import ShiftPoint, ShiftSweep
from bayes_dc.report.specs import LABELLED, UNLABELLED
from bayes_dc.report.tables import estimate

TURNED = "turned"
"""Name of the half turn in steps; its severities are degrees."""

SHIFT_SCORES = ("accuracy", "nll", "brier", "ece")
"""Scores under shift that need labels; entropies and mutual information come beside them."""

_NOTHING = (
    "no finite prediction under {shift}, severity {severity:g}: there is nothing to score. Check "
    "the network on unchanged inputs first."
)


def shift_point(
    shift: str, severity: float, prediction: Prediction, labels: Tensor | None
) -> ShiftPoint:
    """Score the predictions of changed inputs.

    Args:
        shift: Name of the shift.
        severity: 0 … 5, or degrees for a rotation.
        prediction: Of the changed inputs.
        labels: Class of every input, int64 ``[N]``, or None.

    Returns:
        The scores with their intervals over the inputs that have a finite prediction.

    Raises:
        ReportError: If none has.
    """
    use = prediction.mean.isfinite().all(dim=1)
    if not use.any():
        raise ReportError(_NOTHING.format(shift=shift, severity=severity))
    scores: dict[str, Estimate] = {}
    if labels is not None:
        for spec in LABELLED:
            if spec.key in SHIFT_SCORES:
                scores[spec.key] = estimate(spec, prediction.mean[use], labels[use])
    for key, _, _ in UNLABELLED:
        values = getattr(prediction, key)[use].double()
        scores[key] = Estimate(values.mean().item(), m.bootstrap_mean(values))
    return ShiftPoint(shift, severity, int(use.sum()), scores)


def by_shift(shift: ShiftSweep) -> dict[str, list[ShiftPoint]]:
    """Group the points.

    Args:
        shift: Scores of changed inputs.

    Returns:
        Points of every shift by rising severity.
    """
    groups: dict[str, list[ShiftPoint]] = {}
    for point in sorted(shift.points, key=lambda one: one.severity):
        groups.setdefault(point.shift, []).append(point)
    return {name: groups[name] for name in dict.fromkeys(point.shift for point in shift.points)}
