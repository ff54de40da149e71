"""Fitting what ``calibration.json`` holds: a temperature, and a threshold for abstaining."""

import torch
from torch import Tensor

from bayes_dc.mc import Prediction, temper
from bayes_dc.metrics import (
    Policy,
    PolicyError,
    PolicyScore,
    correct,
    fit_temperature,
    policy_for_coverage,
    policy_for_risk,
)
from bayes_dc.train.calibration import (
    CalibrationState,
    SavedTemperature,
    TemperatureChoice,
    policy_scores,
    saved_policy,
)

HALVES_SEED = 0
"""Chooses which half of the inputs the temperature is fitted on."""

_NOTHING = (
    "nothing to calibrate: temperature is 'none' and neither a target risk nor a target coverage "
    "is given. Ask for one of them."
)
_TWO = "a policy has one target; got risk {risk} and coverage {coverage}. Give one of them."
_LABELS = "labels must be int64 [{n}], one for each input of the prediction; got {got}."
_NOT_FINITE = (
    "{count} of {n} validation inputs have no finite prediction (first: position {first}), so "
    "nothing can be promised. Look for NaN or extreme values in these inputs, or train again."
)
_TOO_FEW = (
    "{n} validation inputs cannot be shared between a temperature and a policy. Use a larger "
    "validation split, or fit one of them only (temperature 'none', or no target)."
)
_HALF = (
    " (This is a half of the validation split, the other fits the temperature: with temperature "
    "'none' the policy gets all {n}.)"
)
_LIKE_1 = (
    "The temperature {value:.3f} cannot be told from 1 on {n} inputs (standard error {error:.3f}): "
    "a larger validation split would show whether one is needed."
)


def calibrate(
    prediction: Prediction,
    labels: Tensor,
    *,
    temperature: TemperatureChoice = "logits",
    target_risk: float | None = None,
    target_coverage: float | None = None,
    score: PolicyScore = "max_probability",
    confidence: float = 0.95,
) -> CalibrationState:
    """Fit a temperature, a policy or both on predictions for validation inputs.

    Both at once take a half of the inputs each, drawn with a fixed seed: scores that were shaped by
    the labels of an input cannot promise anything about that input.

    Args:
        prediction: Of the n validation inputs, with samples, on the CPU.
        labels: Their classes, int64 ``[n]``.
        temperature: What to temper: ``"logits"``, ``"mean"`` or ``"none"``.
        target_risk: Largest share of wrong predictions among the accepted inputs, or None.
        target_coverage: Least share of accepted inputs, or None.
        score: Uncertainty that the policy compares, of tempered predictions.
        confidence: Probability that its promise holds.

    Returns:
        What was fitted, without ``data``; ``notes`` say so if the temperature is poorly known.

    Raises:
        ValueError: If there is nothing to fit, two targets, an argument is out of range, a
            prediction is not finite or the inputs say too little.
        PolicyError: If the target cannot be promised.
    """
    wanted = target_risk is not None or target_coverage is not None
    if target_risk is not None and target_coverage is not None:
        raise ValueError(_TWO.format(risk=target_risk, coverage=target_coverage))
    if temperature == "none" and not wanted:
        raise ValueError(_NOTHING)
    n = len(prediction.mean)
    if labels.shape != (n,):
        raise ValueError(_LABELS.format(n=n, got=list(labels.shape)))
    broken = (~prediction.mean.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if broken:
        raise ValueError(_NOT_FINITE.format(count=len(broken), n=n, first=broken[0]))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(HALVES_SEED))
    fit_on, choose_on = order, order
    if temperature != "none" and wanted:
        if n < 4:
            raise ValueError(_TOO_FEW.format(n=n))
        fit_on, choose_on = order[: n // 2], order[n // 2 :]
    fitted, notes = None, []
    if temperature != "none":
        samples = prediction.mean[None] if prediction.samples is None else prediction.samples
        fit = fit_temperature(samples[:, fit_on], labels[fit_on], temperature)
        fitted = SavedTemperature(
            value=fit.temperature,
            kind=fit.kind,
            standard_error=fit.standard_error,
            nll_before=fit.nll_before,
            nll_after=fit.nll_after,
            n=fit.n,
        )
        prediction = temper(prediction, fit.temperature, fit.kind)
        if abs(fit.temperature - 1) < 2 * fit.standard_error:
            value, error = fit.temperature, fit.standard_error
            notes.append(_LIKE_1.format(value=value, n=fit.n, error=error))
    policy = None
    if wanted:
        uncertainty = policy_scores(prediction, score)[choose_on]
        wrong = ~correct(prediction.mean, labels)[choose_on]
        try:
            policy = _policy(uncertainty, wrong, target_risk, target_coverage, score, confidence)
        except PolicyError as error:
            raise PolicyError(f"{error}{_HALF.format(n=n) if fitted else ''}") from error
    return CalibrationState(
        T=prediction.T,
        seed=prediction.seed,
        fitted=fitted,
        saved_policy=None if policy is None else saved_policy(policy),
        notes=tuple(notes),
    )


def _policy(
    uncertainty: Tensor,
    wrong: Tensor,
    risk: float | None,
    coverage: float | None,
    score: PolicyScore,
    confidence: float,
) -> Policy | None:
    """The policy for the one target that is given."""
    if risk is not None:
        return policy_for_risk(uncertainty, wrong, risk, score=score, confidence=confidence)
    if coverage is not None:
        return policy_for_coverage(uncertainty, wrong, coverage, score=score, confidence=confidence)
    return None
