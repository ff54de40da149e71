"""Whether certain predictions are right and wrong ones uncertain: areas over all thresholds."""

from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.metrics.certainty import Normalisation
from bayes_dc.report.evaluation import Evaluation

_UNCERTAINTIES = ("entropy", "mutual_information")
_LIMITS: dict[Normalisation, str] = {
    "log_classes": "0 … log C",
    "test_set": "least … largest of these inputs, only to compare with published figures",
}


@dataclass(frozen=True)
class CertaintyRow:
    """Areas under R_cc, R_iu and UA for one uncertainty and one range of limits.

    Attributes:
        uncertainty: Name in ``Prediction``.
        normalisation: Where the limits lie, see ``metrics.certainty_curves``.
        limits: The same for people.
        r_cc: How often a certain prediction is right, mean over limits, 0 … 1.
        r_iu: How often a wrong prediction is uncertain, 0 … 1.
        ua: How often one of the two wanted cases holds, 0 … 1.
        r_cc_interval: 95 % percentile bootstrap interval over inputs.
        r_iu_interval: The same.
        ua_interval: The same.
    """

    uncertainty: str
    normalisation: Normalisation
    limits: str
    r_cc: float
    r_iu: float
    ua: float
    r_cc_interval: tuple[float, float]
    r_iu_interval: tuple[float, float]
    ua_interval: tuple[float, float]


def certainty_rows(evaluation: Evaluation) -> list[CertaintyRow]:
    """Compute the areas for entropy and mutual information.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.

    Returns:
        Limits of log C first; empty without labels.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return []
    prediction, classes = evaluation.prediction, len(evaluation.class_names)
    right = m.correct(prediction.mean[use], evaluation.labels[use])
    rows = []
    for normalisation in get_args(Normalisation):
        for name in _UNCERTAINTIES:
            uncertainty = getattr(prediction, name)[use]
            options = {"classes": max(2, classes), "normalisation": normalisation}
            areas = m.certainty_curves(uncertainty, right, **options).areas()
            found: dict[str, Any] = dict(areas)
            for of in areas:
                found[f"{of}_interval"] = _interval(uncertainty, right, of=of, **options)
            rows.append(CertaintyRow(name, normalisation, _LIMITS[normalisation], **found))
    return rows


def _interval(uncertainty: Tensor, right: Tensor, **options: Any) -> tuple[float, float]:
    """Interval of an area over inputs."""
    interval = m.bootstrap_metric(m.certainty_area, uncertainty, right, **options)
    return interval.low, interval.high
