"""How well an uncertainty tells two data sets apart: in-distribution (ID) and out-of-distribution.

**OOD is the positive class and a higher score is more OOD.** Scores are ranked as they are given:
no transform, no tolerance; infinite scores are ranked, NaN is refused. With threshold t an input is
called OOD if score ≥ t, so equal scores are called together::

    TPR(t) = share of OOD with score ≥ t        FPR(t) = share of ID with score ≥ t
    AUROC  = P(OOD score > ID score) + ½ P(equal)
    AUPR-out = mean over OOD of  #OOD with score ≥ s / #all with score ≥ s   at its own score s
    AUPR-in  = the same with ID as the positive class and the scores negated
    FPR at TPR r = FPR at the highest t with TPR(t) ≥ r, i.e. the least FPR that reaches r

AUPR is average precision, not trapezoids: a constant score gets the share of positives, its chance
level. Thresholds are scores that occur, and nothing is interpolated between them.
Source: Hendrycks & Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
examples", ICLR; Liang, Li, Srikant 2018, ICLR (FPR at 95 % TPR, there with ID positive).
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_scores, check_share
from bayes_dc.metrics._kind import Kind, running_sum, tie_groups
from bayes_dc.metrics.uncertainty import (
    energy,
    max_probability_score,
    mean_over_passes,
    mutual_information,
    predictive_entropy,
)


def auroc(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Area under the ROC curve: chance that an OOD input scores above an ID input.

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, 0 … 1, higher is better; 0.5 for scores that say nothing, exactly so for
        equal scores. Free of n_in / n_out.
    """
    return AUROC(scores_in, scores_out)


def aupr_out(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Average precision of finding OOD inputs by high scores.

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, above 0 … 1, higher is better; about n_out / (n_in + n_out) by chance.
    """
    return AUPR_OUT(scores_in, scores_out)


def aupr_in(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Average precision of finding ID inputs by low scores.

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, above 0 … 1, higher is better; about n_in / (n_in + n_out) by chance.
    """
    return AUPR_IN(scores_in, scores_out)


def fpr_at_tpr(scores_in: Tensor, scores_out: Tensor, tpr: float = 0.95) -> Tensor:
    """Share of ID inputs called OOD at the threshold that finds at least ``tpr`` of the OOD inputs.

    For the reading with ID as positive call ``fpr_at_tpr(-scores_out, -scores_in)``.

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.
        tpr: Least share of OOD inputs to find, above 0 and at most 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better; 1 for a constant score.
    """
    check_share(tpr, "tpr")
    return FPR_AT_TPR(scores_in, scores_out, tpr=tpr)


def ood_scores(samples: Tensor, logits: Tensor | None = None) -> dict[str, Tensor]:
    """Compute the usual OOD scores of a Monte Carlo prediction; each is higher for OOD.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.
        logits: Network output of every pass ``[T, B, C]``, for the energy; or None.

    Returns:
        ``"entropy"`` of the mean, ``"mutual_information"``, ``"max_probability"`` of the mean and,
        with logits, ``"energy"`` averaged over passes; float64 ``[B]`` each.
    """
    scores = {
        "entropy": predictive_entropy(samples),
        "mutual_information": mutual_information(samples),
        "max_probability": max_probability_score(mean_over_passes(samples.double())),
    }
    if logits is not None:
        scores["energy"] = mean_over_passes(energy(logits))
    return scores


def _rows(scores_in: Tensor, scores_out: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, float64 [n_in + n_out], and whether they are of OOD inputs."""
    scores_in = check_scores(scores_in, "scores_in")
    scores_out = check_scores(scores_out, "scores_out").to(scores_in.device)
    scores = torch.cat([scores_in, scores_out])
    return scores, torch.arange(len(scores), device=scores.device) >= len(scores_in)


def _auroc(scores: Tensor, is_ood: Tensor) -> Tensor:
    """AUROC of ranked data sets [R, n]."""
    ids, (first, last) = running_sum(~is_ood), tie_groups(scores)
    # whole numbers, so the sums are exact: ID inputs below, and half of those equal
    below = (ids.gather(1, first) + ids.gather(1, last + 1)) / 2
    n_out = is_ood.sum(dim=1)
    return (below * is_ood).sum(dim=1) / (n_out * ids[:, -1])


def _aupr_out(scores: Tensor, is_ood: Tensor) -> Tensor:
    """Average precision for OOD of ranked data sets [R, n]."""
    found, (first, _) = running_sum(is_ood), tie_groups(scores)
    precision = (found[:, -1:] - found.gather(1, first)) / (scores.shape[1] - first)
    return (precision * is_ood).sum(dim=1) / found[:, -1]


def _aupr_in(scores: Tensor, is_ood: Tensor) -> Tensor:
    """Average precision for ID of ranked data sets [R, n]."""
    found, (_, last) = running_sum(~is_ood), tie_groups(scores)
    precision = found.gather(1, last + 1) / (last + 1)
    return (precision * ~is_ood).sum(dim=1) / found[:, -1]


def _fpr_at_tpr(scores: Tensor, is_ood: Tensor, tpr: float = 0.95) -> Tensor:
    """FPR at TPR of ranked data sets [R, n]."""
    out, ids, (first, _) = running_sum(is_ood), running_sum(~is_ood), tie_groups(scores)
    # k / n_out is correctly rounded, so 19 of 20 reaches the double next to 0.95
    reached = (out[:, -1:] - out.gather(1, first)) / out[:, -1:] >= tpr
    false = (ids[:, -1:] - ids.gather(1, first)) / ids[:, -1:]
    return torch.where(reached, false, 1.0).amin(dim=1)


AUROC = Kind(_rows, _auroc, ranked=True, stratified=True)
AUPR_OUT = Kind(_rows, _aupr_out, ranked=True, stratified=True)
AUPR_IN = Kind(_rows, _aupr_in, ranked=True, stratified=True)
FPR_AT_TPR = Kind(_rows, _fpr_at_tpr, ranked=True, stratified=True)
