"""Which metrics can be streamed and bootstrapped, and how."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from bayes_dc.metrics import (
    adaptive,
    binary,
    calibration,
    certainty,
    classwise,
    ood,
    scores,
    selective,
    uncertainty,
    votes,
)
from bayes_dc.metrics._checks import check_n_bins, check_risk, check_share
from bayes_dc.metrics._kind import Kind, each_kind, mean_kind

KINDS: dict[Callable[..., Any], Kind] = {
    scores.accuracy: mean_kind(scores.correct),
    scores.nll: mean_kind(scores.nll_per_sample),
    scores.nll_from_logits: mean_kind(scores.nll_from_logits_per_sample),
    scores.brier: mean_kind(scores.brier_per_sample),
    calibration.ece: calibration.ECE,
    calibration.mce: calibration.MCE,
    calibration.debiased_ece: calibration.DEBIASED_ECE,
    calibration.reliability_curve: calibration.RELIABILITY_CURVE,
    binary.positive_class_ece: binary.POSITIVE_CLASS_ECE,
    binary.positive_class_curve: binary.POSITIVE_CLASS_CURVE,
    adaptive.adaptive_ece: adaptive.ADAPTIVE_ECE,
    adaptive.debiased_squared_error: adaptive.DEBIASED_SQUARED_ERROR,
    classwise.classwise_ece: classwise.CLASSWISE_ECE,
    classwise.brier_decomposition: classwise.BRIER_DECOMPOSITION,
    classwise.brier_reliability: classwise.BRIER_RELIABILITY,
    classwise.brier_resolution: classwise.BRIER_RESOLUTION,
    classwise.brier_uncertainty: classwise.BRIER_UNCERTAINTY,
    selective.risk_coverage_curve: selective.RISK_COVERAGE_CURVE,
    selective.aurc: selective.AURC,
    selective.excess_aurc: selective.EXCESS_AURC,
    selective.coverage_at_risk: selective.COVERAGE_AT_RISK,
    selective.risk_at_coverage: selective.RISK_AT_COVERAGE,
    certainty.certainty_curves: certainty.CERTAINTY_CURVES,
    certainty.certainty_area: certainty.CERTAINTY_AREA,
    ood.auroc: ood.AUROC,
    ood.aupr_out: ood.AUPR_OUT,
    ood.aupr_in: ood.AUPR_IN,
    ood.fpr_at_tpr: ood.FPR_AT_TPR,
    votes.vote_nll: votes.VOTE_NLL,
    votes.spearman: votes.SPEARMAN,
    votes.kendall_tau_b: votes.KENDALL_TAU_B,
    **{
        measure: each_kind(measure)
        for measure in (
            uncertainty.entropy,
            uncertainty.entropy_from_logits,
            uncertainty.predictive_entropy,
            uncertainty.expected_entropy,
            uncertainty.mutual_information,
            uncertainty.mutual_information_jackknife,
            uncertainty.variation_ratio,
            uncertainty.max_probability_score,
            uncertainty.energy,
            votes.vote_entropy,
        )
    },
}

_METRIC = "metric must be one of {known}; got {got}. For means of your own use bootstrap_mean."
_OPTIONS = "{name} takes the options {known}; got {got}."
_TENSORS = "{name} takes {want}; got {got}."
_CERTAINTY = ("classes", "of", "normalisation", "thresholds")
_CURVE = "{name} is no single number, so it has no interval. Take it of {instead}."
_INSTEAD = {
    calibration.reliability_curve: "ece or mce, or reliability_band for a plot",
    binary.positive_class_curve: "positive_class_ece",
    classwise.brier_decomposition: "brier_reliability, brier_resolution or brier_uncertainty",
    certainty.certainty_curves: "certainty_area",
    selective.risk_coverage_curve: "aurc, or risk_coverage_band for a plot",
}


def kind_of(metric: Callable[..., Any], options: dict[str, Any]) -> Kind:
    """Return how ``metric`` is computed, or raise if it or one of its options is not known."""
    kind = KINDS.get(metric)
    name = getattr(metric, "__name__", repr(metric))
    if kind is None:
        known = ", ".join(one.__name__ for one in KINDS)
        raise ValueError(_METRIC.format(known=known, got=name))
    parameters = list(inspect.signature(metric).parameters.values())[2:]
    if kind.each:
        parameters = []  # a temperature of the energy would change what is kept of a sample
    needed = {one.name for one in parameters if one.default is one.empty}
    if not needed <= set(options) <= {one.name for one in parameters}:
        known = ", ".join(one.name for one in parameters) or "none"
        raise TypeError(_OPTIONS.format(name=name, known=known, got=sorted(options) or "none"))
    for option, value in options.items():
        if option == "n_bins":
            check_n_bins(value)
        elif option == "risk":
            check_risk(value)
        elif option in _CERTAINTY:
            certainty.check_options({option: value})
        else:
            check_share(value, option)
    return kind


def check_batch(metric: Callable[..., Any], batch: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """Return the tensors of ``batch``, or raise if they are not as many as the metric takes."""
    given = tuple(one for one in batch if one is not None)
    names = list(inspect.signature(metric).parameters)[: 1 if KINDS[metric].each else 2]
    if len(given) != len(names):
        count = "one tensor" if len(names) == 1 else "two tensors"
        want = f"{count}, {' and '.join(names)}"
        raise TypeError(_TENSORS.format(name=metric.__name__, want=want, got=len(given)))
    return given


def check_scalar(metric: Callable[..., Any]) -> None:
    """Raise if ``metric`` is a curve."""
    if KINDS[metric].curve:
        text = _CURVE.format(name=metric.__name__, instead=_INSTEAD[metric])
        raise ValueError(text)
