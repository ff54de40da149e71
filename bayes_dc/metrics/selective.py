"""Selective prediction: answer the k surest inputs, hand the rest to a person.

Inputs are ranked by ascending uncertainty; coverage is the share that is answered, selective risk
the mean loss of those::

    risk(k) = 1/k Σ_{i ≤ k} loss_(i)      coverage(k) = k / n,  k = 1 … n
    AURC    = 1/n Σ_k risk(k)              excess AURC = AURC − AURC of ranking by the loss itself

Inputs of equal uncertainty have no order: every number here is its **expectation** over random
orders among them, so it does not depend on how the inputs were sorted, and a constant uncertainty
gives a flat curve at the mean loss.
Source: El-Yaniv & Wiener 2010, JMLR 11 (the curve); Geifman, Uziel, El-Yaniv 2019, "Bias-reduced
uncertainty estimation for deep neural classifiers", ICLR (AURC, excess AURC). Others integrate by
trapezoids or multiply by 1000. AURC mixes how good the network is with how well it ranks; for the
ranking alone take ``auroc(uncertainty[right], uncertainty[wrong])``.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_loss, check_risk, check_scores, check_share
from bayes_dc.metrics._kind import Kind, running_sum, tie_groups


@dataclass(frozen=True)
class RiskCoverageCurve:
    """Selective risk at every coverage.

    Attributes:
        coverage: Share of inputs answered, float64 ``[n]``, 1/n … 1.
        risk: Expected mean loss of those, float64 ``[n]``; lower is better.
        uncertainty: Uncertainty of the last input answered, float64 ``[n]``, ascending: answering
            every input up to it reaches the last coverage with this value.
    """

    coverage: Tensor
    risk: Tensor
    uncertainty: Tensor


def risk_coverage_curve(uncertainty: Tensor, loss: Tensor) -> RiskCoverageCurve:
    """Selective risk as a function of coverage; see the module for the formula and ties.

    ::

        risk(k) = 1/k Σ_{i ≤ k} loss_(i)    coverage(k) = k / n

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite; for
            confidences pass ``1 - confidence``.
        loss: Loss of every prediction ``[n]``, bool (``~correct(probs, labels)``) or finite floats.

    Returns:
        The curve, on the device of ``uncertainty``.

    Source:
        El-Yaniv & Wiener 2010, "On the foundations of noise-free selective classification", JMLR
        11.
    """
    return RISK_COVERAGE_CURVE(uncertainty, loss)


def aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the mean of the n selective risks.

    ::

        1/n Σ_k risk(k)

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.

    Returns:
        Float64 scalar, lower is better; 0 … 1 for a 0/1 loss, and the mean loss for an
        uncertainty that says nothing.

    Source:
        Geifman, Uziel, El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep neural
        classifiers", ICLR.
    """
    return AURC(uncertainty, loss)


def excess_aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """AURC above that of the best ranking of the same losses: what ranking better would bring.

    ::

        AURC − AURC of ranking by the loss itself

    The best ranking is taken on these n samples, not by the limit e + (1 − e) ln(1 − e), and ties
    count by expectation, so the number is never negative.

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.

    Returns:
        Float64 scalar, lower is better; 0 … 1 for a 0/1 loss, 0 exactly for the best ranking.

    Source:
        Geifman, Uziel, El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep neural
        classifiers", ICLR.
    """
    return EXCESS_AURC(uncertainty, loss)


def coverage_at_risk(uncertainty: Tensor, loss: Tensor, risk: float) -> Tensor:
    """Largest coverage whose selective risk is at most ``risk``.

    ::

        max {k / n : risk(k) ≤ risk}

    It reads the curve of these samples, and so promises nothing for new ones.

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.
        risk: Risk to stay at or under, at least 0, such as 0.01.

    Returns:
        Float64 scalar, 0 … 1, higher is better; 0 if no coverage is safe enough.

    Source:
        Geifman & El-Yaniv 2017, "Selective classification for deep neural networks", NeurIPS (there
        with a bound, see ``policy_for_risk``).
    """
    check_risk(risk)
    return COVERAGE_AT_RISK(uncertainty, loss, risk=risk)


def risk_at_coverage(uncertainty: Tensor, loss: Tensor, coverage: float) -> Tensor:
    """Selective risk of the ⌈coverage · n⌉ surest inputs.

    ::

        risk(⌈coverage · n⌉)

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.
        coverage: Share to answer, above 0 and at most 1, such as 0.8.

    Returns:
        Float64 scalar, lower is better; 0 … 1 for a 0/1 loss.

    Source:
        El-Yaniv & Wiener 2010, "On the foundations of noise-free selective classification", JMLR
        11.
    """
    check_share(coverage, "coverage")
    return RISK_AT_COVERAGE(uncertainty, loss, coverage=coverage)


def uncertainty_and_loss(uncertainty: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """Check what every metric here is made of.

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.

    Returns:
        Both in float64 on the device of ``uncertainty``.
    """
    uncertainty = check_scores(uncertainty, "uncertainty", empty=False)
    return uncertainty, check_loss(loss, uncertainty)


def risks_at(uncertainty: Tensor, loss: Tensor, coverages: list[float]) -> Tensor:
    """Selective risk at several coverages, one data set per row.

    Args:
        uncertainty: Ascending, float64 ``[R, n]``.
        loss: Float64 ``[R, n]`` in the same order.
        coverages: Shares to answer, above 0 and at most 1.

    Returns:
        Float64 ``[R, K]``.
    """
    n = loss.shape[1]
    k = [math.ceil(share * n) for share in coverages]
    # 0.07 · 100 is 7.000000000000001: the first k with k / n ≥ coverage is wanted
    k = [
        one - (one > 1 and (one - 1) / n >= share) for one, share in zip(k, coverages, strict=True)
    ]
    return _risks(uncertainty, loss)[:, torch.tensor(k, device=loss.device) - 1]


def _risks(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Expected selective risk [R, n] of ranked data sets [R, n]."""
    total, (first, last) = running_sum(loss), tie_groups(uncertainty)
    before = total.gather(1, first)
    tied = total.gather(1, last + 1) - before
    k = torch.arange(1, loss.shape[1] + 1, device=loss.device)
    size = last + 1 - first
    # (before + tied · (k − first) / size) / k in one rounding: whole numbers of errors stay exact
    return (before * size + tied * (k - first)) / (size * k).double()


def _curve(uncertainty: Tensor, loss: Tensor) -> RiskCoverageCurve:
    """Curve of one ranked data set [1, n]."""
    n = loss.shape[1]
    coverage = torch.arange(1, n + 1, dtype=torch.float64, device=loss.device) / n
    return RiskCoverageCurve(coverage, _risks(uncertainty, loss)[0], uncertainty[0])


def _aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """AURC of ranked data sets [R, n]."""
    return _risks(uncertainty, loss).mean(dim=1)


def _excess_aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Excess AURC of ranked data sets [R, n]."""
    best = loss.sort(dim=1).values
    return (_aurc(uncertainty, loss) - _aurc(best, best)).clamp(min=0.0)


def _coverage_at_risk(uncertainty: Tensor, loss: Tensor, risk: float) -> Tensor:
    """Largest safe coverage of ranked data sets [R, n]."""
    k = torch.arange(1, loss.shape[1] + 1, device=loss.device)
    return torch.where(_risks(uncertainty, loss) <= risk, k, 0).amax(dim=1).double() / len(k)


def _risk_at_coverage(uncertainty: Tensor, loss: Tensor, coverage: float) -> Tensor:
    """Selective risk of ranked data sets [R, n]."""
    return risks_at(uncertainty, loss, [coverage])[:, 0]


RISK_COVERAGE_CURVE = Kind(uncertainty_and_loss, _curve, ranked=True, curve=True)
AURC = Kind(uncertainty_and_loss, _aurc, ranked=True)
EXCESS_AURC = Kind(uncertainty_and_loss, _excess_aurc, ranked=True)
COVERAGE_AT_RISK = Kind(uncertainty_and_loss, _coverage_at_risk, ranked=True)
RISK_AT_COVERAGE = Kind(uncertainty_and_loss, _risk_at_coverage, ranked=True)
