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

    ::

        P(OOD score > ID score) + ½ P(equal)

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, 0 … 1, higher is better; 0.5 for scores that say nothing, exactly so for
        equal scores. Free of n_in / n_out.

    Source:
        Hendrycks & Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
        examples", ICLR.
    """
    return AUROC(scores_in, scores_out)


def aupr_out(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Average precision of finding OOD inputs by high scores.

    ::

        mean over OOD scores s of  #OOD with score ≥ s / #all with score ≥ s

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, above 0 … 1, higher is better; about n_out / (n_in + n_out) by chance.

    Source:
        Hendrycks & Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
        examples", ICLR.
    """
    return AUPR_OUT(scores_in, scores_out)


def aupr_in(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Average precision of finding ID inputs by low scores.

    ::

        mean over ID scores s of  #ID with score ≤ s / #all with score ≤ s

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.

    Returns:
        Float64 scalar, above 0 … 1, higher is better; about n_in / (n_in + n_out) by chance.

    Source:
        Hendrycks & Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
        examples", ICLR.
    """
    return AUPR_IN(scores_in, scores_out)


def fpr_at_tpr(scores_in: Tensor, scores_out: Tensor, tpr: float = 0.95) -> Tensor:
    """Share of ID inputs called OOD at the threshold that finds at least ``tpr`` of the OOD inputs.

    ::

        min {FPR(t) : TPR(t) ≥ tpr}    TPR, FPR(t) = share of OOD, of ID with score ≥ t

    For the reading with ID as positive call ``fpr_at_tpr(-scores_out, -scores_in)``.

    Args:
        scores_in: Uncertainty of the ID inputs ``[n_in]``, any floating dtype.
        scores_out: Uncertainty of the OOD inputs ``[n_out]``, any floating dtype.
        tpr: Least share of OOD inputs to find, above 0 and at most 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better; 1 for a constant score.

    Source:
        Liang, Li, Srikant 2018, "Enhancing the reliability of out-of-distribution image detection
        in neural networks", ICLR (there with ID positive).
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


def _ranks(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of every ranked sample [n]: how many lie below its value, and how many not above it."""
    first, last = tie_groups(scores[None])
    return first[0], last[0] + 1


def _auroc(scores: Tensor, is_ood: Tensor, weight: Tensor) -> Tensor:
    """AUROC [R] of ranked samples [n] that occur ``weight`` [R, n] times."""
    ids, (below, upto) = running_sum(weight * ~is_ood), _ranks(scores)
    # whole numbers, so the sums are exact: ID inputs below, and half of those equal
    beaten = (ids[:, below[is_ood]] + ids[:, upto[is_ood]]) / 2
    out = weight[:, is_ood]
    return (beaten * out).sum(dim=1) / (out.sum(dim=1) * ids[:, -1])


def _aupr_out(scores: Tensor, is_ood: Tensor, weight: Tensor) -> Tensor:
    """Average precision for OOD [R] of ranked samples [n] that occur ``weight`` [R, n] times."""
    below = _ranks(scores)[0][is_ood]
    found, all_of_them = running_sum(weight * is_ood), running_sum(weight)
    above = all_of_them[:, -1:] - all_of_them[:, below]
    precision = (found[:, -1:] - found[:, below]) / above.clamp(min=1)  # 0: not drawn
    return (precision * weight[:, is_ood]).sum(dim=1) / found[:, -1]


def _aupr_in(scores: Tensor, is_ood: Tensor, weight: Tensor) -> Tensor:
    """Average precision for ID [R] of ranked samples [n] that occur ``weight`` [R, n] times."""
    upto = _ranks(scores)[1][~is_ood]
    found, all_of_them = running_sum(weight * ~is_ood), running_sum(weight)
    precision = found[:, upto] / all_of_them[:, upto].clamp(min=1)
    return (precision * weight[:, ~is_ood]).sum(dim=1) / found[:, -1]


def _fpr_at_tpr(scores: Tensor, is_ood: Tensor, weight: Tensor, tpr: float = 0.95) -> Tensor:
    """FPR at TPR [R] of ranked samples [n] that occur ``weight`` [R, n] times."""
    out, ids = running_sum(weight * is_ood), running_sum(weight * ~is_ood)
    below = _ranks(scores)[0]
    # Both shares fall as the limit rises, so the highest limit that reaches the TPR has the least
    # FPR; a limit at a value that was not drawn has the shares of the next that was.
    # k / n_out is correctly rounded, so 19 of 20 reaches the double next to 0.95
    reached = (out[:, -1:] - out[:, below]) / out[:, -1:] >= tpr
    false = (ids[:, -1:] - ids[:, below]) / ids[:, -1:]
    return torch.where(reached, false, 1.0).amin(dim=1)


AUROC = Kind(_rows, _auroc, weighted=True, ranked=True, stratified=True)
AUPR_OUT = Kind(_rows, _aupr_out, weighted=True, ranked=True, stratified=True)
AUPR_IN = Kind(_rows, _aupr_in, weighted=True, ranked=True, stratified=True)
FPR_AT_TPR = Kind(_rows, _fpr_at_tpr, weighted=True, ranked=True, stratified=True)
