"""Accept or abstain: a threshold of an uncertainty, what it promises, and what it does.

An input is accepted if its uncertainty is at most the threshold. The *risk* is the share of wrong
predictions among the accepted inputs, the *coverage* the share that is accepted.
``bayes_dc.metrics.thresholds`` chooses policies.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayes_dc.metrics._checks import check_tensor, check_wrong
from bayes_dc.metrics.binomial import binomial_interval

PolicyScore = Literal["entropy", "mutual_information", "max_probability"]
"""Uncertainty that a policy compares; ``max_probability`` is 1 − the largest probability."""

_UNCERTAINTY = (
    "uncertainty must be floating point, the policy's score of every input; got dtype {got}."
)
_INPUTS = "uncertainty must have shape [n], one number for each of n ≥ 1 inputs; got shape {got}."


@dataclass(frozen=True)
class Policy:
    """A threshold and what it promises.

    Attributes:
        score: Uncertainty that is compared.
        threshold: Inputs with at most this are accepted; infinite where all are.
        target_kind: What was asked for: a largest risk or a least coverage.
        target: Risk or coverage asked for, 0 … 1.
        confidence: Probability that the promise holds, over calibration sets.
        n: Number of calibration inputs.
        bound: What is promised: upper bound of the risk, or lower bound of the coverage.
        accepted: Calibration inputs that are accepted.
        errors: Wrong predictions among these.
    """

    score: PolicyScore
    threshold: float
    target_kind: Literal["risk", "coverage"]
    target: float
    confidence: float
    n: int
    bound: float
    accepted: int
    errors: int

    def accepts(self, uncertainty: Tensor) -> Tensor:
        """Decide for every input.

        Args:
            uncertainty: The ``score`` of every input ``[...]``, floating point.

        Returns:
            Bool ``[...]``; False for NaN.

        Raises:
            TypeError: If it is no floating point tensor.
        """
        if not check_tensor(uncertainty, "uncertainty").is_floating_point():
            raise TypeError(_UNCERTAINTY.format(got=uncertainty.dtype))
        return (uncertainty <= self.threshold) & ~uncertainty.isnan()

    def outcome(self, uncertainty: Tensor, wrong: Tensor) -> "PolicyOutcome":
        """Measure on inputs that the policy was not chosen on.

        Args:
            uncertainty: The ``score`` of every input ``[n]``, at least one; NaN is not accepted.
            wrong: Whether each prediction is wrong, bool ``[n]``.

        Returns:
            Coverage and risk with exact intervals, to set beside the promise.

        Raises:
            ValueError: If one of them has another shape or dtype.
        """
        accepted = self.accepts(uncertainty)
        if accepted.ndim != 1 or len(accepted) == 0:
            raise ValueError(_INPUTS.format(got=list(accepted.shape)))
        wrong = check_wrong(wrong, uncertainty)
        count, errors = int(accepted.sum()), int((accepted & wrong).sum())
        return PolicyOutcome(
            n=len(accepted),
            accepted=count,
            errors=errors,
            coverage=count / len(accepted),
            coverage_interval=binomial_interval(count, len(accepted)),
            risk=errors / count if count else None,
            risk_interval=binomial_interval(errors, count) if count else None,
        )


@dataclass(frozen=True)
class PolicyOutcome:
    """What a policy did to n inputs.

    Attributes:
        n: Number of inputs.
        accepted: Inputs that were accepted.
        errors: Wrong predictions among these.
        coverage: Share accepted, 0 … 1.
        coverage_interval: Its exact 95 % interval.
        risk: Share of wrong predictions among the accepted; None if none was.
        risk_interval: Its exact 95 % interval; None if none was accepted.
    """

    n: int
    accepted: int
    errors: int
    coverage: float
    coverage_interval: tuple[float, float]
    risk: float | None
    risk_interval: tuple[float, float] | None
