"""Metrics of class probabilities, each in its own words: definition, range, direction."""

from bayes_dc.metrics.bootstrap import (
    Interval,
    bootstrap_ece,
    bootstrap_interval,
    bootstrap_mean,
)
from bayes_dc.metrics.calibration import ReliabilityCurve, ece, reliability_curve
from bayes_dc.metrics.scores import (
    accuracy,
    brier,
    brier_per_sample,
    correct,
    nll,
    nll_from_logits,
    nll_per_sample,
)
from bayes_dc.metrics.uncertainty import (
    entropy,
    entropy_from_logits,
    expected_entropy,
    mutual_information,
    predictive_entropy,
)

__all__ = [
    "Interval",
    "ReliabilityCurve",
    "accuracy",
    "bootstrap_ece",
    "bootstrap_interval",
    "bootstrap_mean",
    "brier",
    "brier_per_sample",
    "correct",
    "ece",
    "entropy",
    "entropy_from_logits",
    "expected_entropy",
    "mutual_information",
    "nll",
    "nll_from_logits",
    "nll_per_sample",
    "predictive_entropy",
    "reliability_curve",
]
