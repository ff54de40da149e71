"""Selective prediction: curves of risk against coverage, and what a policy of abstention does."""

from dataclasses import dataclass

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.metrics.binomial import binomial_interval
from bayes_dc.metrics.policy import Policy, PolicyScore
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.scores import SCORES, score_of

COVERAGES = tuple(k / 50 for k in range(1, 51))


@dataclass(frozen=True)
class RiskCurve:
    """Error of the inputs that are answered, least uncertain first.

    Attributes:
        score: Uncertainty that ranks the inputs.
        name: The same for people.
        coverage: Shares answered.
        risk: Share of mistakes among those.
        low: Lower ends of the pointwise 95 % intervals.
        high: Upper ends.
        n: Number of inputs.
    """

    score: PolicyScore
    name: str
    coverage: tuple[float, ...]
    risk: list[float]
    low: list[float]
    high: list[float]
    n: int


@dataclass(frozen=True)
class AbstentionResult:
    """What was promised on validation inputs, and what was measured on these.

    Attributes:
        policy: The policy, with its promise.
        accepted: Number of inputs accepted.
        n: Number of inputs; those without a finite prediction are not accepted.
        coverage: Share accepted.
        coverage_interval: Its exact 95 % interval.
        risk: Share of mistakes among the accepted; None without labels or if none is accepted.
        risk_interval: Its exact 95 % interval, or None.
        kept: Whether the measured value is on the promised side of the bound; None if unknown.
    """

    policy: Policy
    accepted: int
    n: int
    coverage: float
    coverage_interval: tuple[float, float]
    risk: float | None
    risk_interval: tuple[float, float] | None
    kept: bool | None


def accepted_inputs(evaluation: Evaluation) -> Tensor | None:
    """Decide for every input whether the policy accepts it.

    Args:
        evaluation: What was predicted.

    Returns:
        Bool ``[N]``, False without a finite prediction; None without a policy.
    """
    policy = evaluation.policy
    if policy is None:
        return None
    return policy.accepts(score_of(evaluation.prediction, policy.score)) & evaluation.usable


def risk_curves(evaluation: Evaluation) -> list[RiskCurve]:
    """Compute risk against coverage for every uncertainty.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.

    Returns:
        One curve per uncertainty; empty without labels.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return []
    wrong = ~m.correct(evaluation.prediction.mean[use], evaluation.labels[use])
    curves = []
    for score, name in SCORES.items():
        uncertainty = score_of(evaluation.prediction, score)[use]
        risk = [m.risk_at_coverage(uncertainty, wrong, c).item() for c in COVERAGES]
        band = m.risk_coverage_band(uncertainty, wrong, COVERAGES)
        low, high = band.low.tolist(), band.high.tolist()
        curves.append(RiskCurve(score, name, COVERAGES, risk, low, high, len(wrong)))
    return curves


def abstention_result(evaluation: Evaluation) -> AbstentionResult | None:
    """Compare what a policy promised with what it does.

    Args:
        evaluation: What was predicted.

    Returns:
        Promised and measured values; None without a policy.
    """
    policy, accepted = evaluation.policy, accepted_inputs(evaluation)
    if policy is None or accepted is None:
        return None
    n, count = len(accepted), int(accepted.sum())
    risk = risk_interval = kept = None
    if evaluation.labels is not None and count:
        wrong = evaluation.prediction.predicted != evaluation.labels
        errors = int((wrong & accepted).sum())
        risk, risk_interval = errors / count, binomial_interval(errors, count)
    if policy.target_kind == "coverage":
        kept = count / n >= policy.bound
    elif risk is not None:
        kept = risk <= policy.bound
    return AbstentionResult(
        policy=policy,
        accepted=count,
        n=n,
        coverage=count / n,
        coverage_interval=binomial_interval(count, n),
        risk=risk,
        risk_interval=risk_interval,
        kept=kept,
    )
