"""The uncertainties by which inputs are ranked, accepted and told from others."""

from torch import Tensor

from bayes_dc.mc.prediction import Prediction
from bayes_dc.metrics.policy import PolicyScore

SCORES: dict[PolicyScore, str] = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "max_probability": "1 − confidence",
}
"""Uncertainties of a Monte Carlo prediction: name and what people call it."""


def score_of(prediction: Prediction, name: PolicyScore) -> Tensor:
    """Return one uncertainty of every input.

    Args:
        prediction: Of N inputs.
        name: Which uncertainty.

    Returns:
        Float64 ``[N]``, higher is less sure.
    """
    if name == "entropy":
        return prediction.entropy
    if name == "mutual_information":
        return prediction.mutual_information
    return 1.0 - prediction.confidence.clamp(max=1.0)  # NaN where the prediction is
