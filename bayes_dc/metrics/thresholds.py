"""Choosing the threshold of a policy, with a promise for new inputs.

Thresholds are chosen on n calibration inputs that the network was not trained on. The promise is
for inputs of the same kind and holds with probability ``confidence`` over the draw of the
calibration inputs.

**Risk.** 20 thresholds are fixed beforehand by their rank: those that accept 100, 95 … 5 % of the
calibration inputs. Given the value θ of the first one above and how many inputs lie below it, these
are independent draws from all inputs below θ, so their mistakes are binomial with the true risk,
and Clopper–Pearson bounds it exactly; what equals θ lies above. Each of the 20 bounds takes a
twentieth of the error probability (Bonferroni), so **all hold at once**, and any may be chosen
after looking: here the one of largest coverage whose bound is at most the target.

**Coverage.** The share of all inputs below the k-th smallest of n calibration values is at least
that of Beta(k, n + 1 − k), so the threshold is the one of least rank k whose lower Clopper–Pearson
bound reaches the target. It looks at no label.

Source: Geifman & El-Yaniv 2017, "Selective classification for deep neural networks", NeurIPS (the
risk, with a binary search in place of a grid: the bounds are shared out in the same way); Wilks
1941, "Determination of sample sizes for setting tolerance limits" (the coverage).
"""

import math
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from bayes_dc.metrics._checks import check_confidence, check_scores, check_wrong, is_number
from bayes_dc.metrics.binomial import binomial_lower, binomial_upper
from bayes_dc.metrics.policy import Policy, PolicyScore

THRESHOLDS = 20
"""Thresholds that a risk is bounded at."""

_SCORE = "score must be one of {allowed}; got {got!r}."
_TARGET = (
    "the target {kind} must be a number between 0 and 1 (excluded), such as {such}; got {got!r}."
)
_FEW = (
    "{n} calibration inputs are too few to promise a risk of {risk:g} with confidence "
    "{confidence:g}: even without a mistake the bound would be {bound:.4f}. It takes at least "
    "{need} inputs, or a higher risk or lower confidence."
)
_UNATTAINABLE = (
    "a risk of {risk:g} cannot be promised with confidence {confidence:g}: the least bound that "
    "{n} calibration inputs give is {bound:.4f}, at a coverage of {coverage:.0%} ({errors} of "
    "{accepted} wrong there). Ask for at least that, calibrate on more inputs, or train a better "
    "network."
)


class PolicyError(ValueError):
    """What was asked for cannot be promised; the message says what can."""


@dataclass(frozen=True)
class RiskBound:
    """One of the thresholds whose risks are bounded at once.

    Attributes:
        threshold: Inputs with at most this uncertainty are accepted; infinite where all are.
        accepted: Calibration inputs that are accepted.
        errors: Wrong predictions among these.
        bound: Upper bound of the risk.
    """

    threshold: float
    accepted: int
    errors: int
    bound: float


def risk_bounds(uncertainty: Tensor, wrong: Tensor, confidence: float = 0.95) -> list[RiskBound]:
    """Bounds of the risk at 20 coverages that all hold at once; see the module.

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        wrong: Whether each prediction is wrong, bool ``[n]``.
        confidence: Probability that every bound holds.

    Returns:
        From the largest coverage to the smallest; thresholds below which no input lies are left
        out, so there may be one only.

    Raises:
        ValueError: If an argument is out of range.
    """
    uncertainty, wrong = _check(uncertainty, wrong)
    tail = 1.0 - check_confidence(confidence)
    ranked, order = uncertainty.sort()
    n, mistakes = len(ranked), wrong[order].cumsum(dim=0)
    ranks = sorted({-(-n * j // THRESHOLDS) for j in range(1, THRESHOLDS + 1)}, reverse=True)
    bounds = []
    for rank in ranks:
        threshold, accepted = math.inf, n
        if rank < n:
            above = ranked[rank].item()
            threshold = math.nextafter(above, -math.inf)
            accepted = int((ranked < above).sum())
        if accepted:
            errors = int(mistakes[accepted - 1])
            bound = binomial_upper(errors, accepted, 1.0 - tail / len(ranks))
            bounds.append(RiskBound(threshold, accepted, errors, bound))
    return bounds


def policy_for_risk(
    uncertainty: Tensor,
    wrong: Tensor,
    risk: float,
    *,
    score: PolicyScore,
    confidence: float = 0.95,
) -> Policy:
    """Accept as many inputs as a promised risk allows; see the module.

    Args:
        uncertainty: The score of every calibration input ``[n]``; higher is less sure.
        wrong: Whether each prediction is wrong, bool ``[n]``.
        risk: Largest share of wrong predictions among the accepted inputs, 0 … 1.
        score: What the uncertainty is.
        confidence: Probability that the promise holds.

    Returns:
        The policy of largest coverage whose bound is at most ``risk``.

    Raises:
        PolicyError: If the inputs are too few, or no coverage is safe enough.
        ValueError: If an argument is out of range.
    """
    _check_target(risk, "risk", "0.01")
    _check_score(score)
    bounds = risk_bounds(uncertainty, wrong, confidence)
    n = len(uncertainty)
    share = (1.0 - confidence) / min(n, THRESHOLDS)
    if (1.0 - risk) ** n > share:
        least = 1.0 - share ** (1.0 / n)
        need = math.ceil(math.log((1.0 - confidence) / THRESHOLDS) / math.log1p(-risk))
        text = _FEW.format(n=n, risk=risk, confidence=confidence, bound=least, need=need)
        raise PolicyError(text)
    for one in bounds:
        if one.bound <= risk:
            break
    else:
        one = min(bounds, key=lambda b: b.bound)
        text = _UNATTAINABLE.format(
            risk=risk,
            confidence=confidence,
            n=n,
            bound=math.ceil(one.bound * 1e4) / 1e4,
            coverage=one.accepted / n,
            errors=one.errors,
            accepted=one.accepted,
        )
        raise PolicyError(text)
    return Policy(
        score=score,
        threshold=one.threshold,
        target_kind="risk",
        target=float(risk),
        confidence=float(confidence),
        n=n,
        bound=one.bound,
        accepted=one.accepted,
        errors=one.errors,
    )


def policy_for_coverage(
    uncertainty: Tensor,
    wrong: Tensor,
    coverage: float,
    *,
    score: PolicyScore,
    confidence: float = 0.95,
) -> Policy:
    """Abstain from as many inputs as a promised coverage allows; see the module.

    Args:
        uncertainty: The score of every calibration input ``[n]``; higher is less sure.
        wrong: Whether each prediction is wrong, bool ``[n]``; counted, not used.
        coverage: Least share of inputs to accept, 0 … 1.
        score: What the uncertainty is.
        confidence: Probability that the promise holds.

    Returns:
        The policy of least threshold that keeps the promise; one that accepts every input where n
        is too small for less.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check_target(coverage, "coverage", "0.9")
    _check_score(score)
    uncertainty, wrong = _check(uncertainty, wrong)
    check_confidence(confidence)
    n = len(uncertainty)
    low, high = 0, n + 1  # the bound of rank `high` reaches the target, that of `low` does not
    while high - low > 1:
        k = (low + high) // 2
        if binomial_lower(k, n, confidence) >= coverage:
            high = k
        else:
            low = k
    threshold, bound = math.inf, 1.0
    if high <= n:
        threshold = uncertainty.kthvalue(high).values.item()
        bound = binomial_lower(high, n, confidence)
    accepted = uncertainty <= threshold
    return Policy(
        score=score,
        threshold=threshold,
        target_kind="coverage",
        target=float(coverage),
        confidence=float(confidence),
        n=n,
        bound=bound,
        accepted=int(accepted.sum()),
        errors=int((accepted & wrong).sum()),
    )


def _check(uncertainty: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Uncertainty in float64 and wrong as bool, on one device."""
    uncertainty = check_scores(uncertainty, "uncertainty", empty=False)
    return uncertainty, check_wrong(wrong, uncertainty)


def _check_target(value: object, kind: str, such: str) -> None:
    """Raise unless the target is a number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:  # type: ignore[operator]
        raise ValueError(_TARGET.format(kind=kind, such=such, got=value))


def _check_score(score: object) -> None:
    """Raise unless the score has a name that is known."""
    if score not in get_args(PolicyScore):
        raise ValueError(_SCORE.format(allowed=get_args(PolicyScore), got=score))
