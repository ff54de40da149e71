"""Top-label calibration with bins of equal mass.

Samples are ranked by confidence and cut into ``n_bins`` runs whose lengths differ by at most one,
the longer ones first (as ``numpy.array_split``). Equal confidences have no order: where a cut falls
among them, every piece gets its share of their mean, which is the expectation over random orders of
the bin's sums. So the result does not depend on the order of the samples.
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_mass, check_n_bins
from bayes_dc.metrics._kind import Kind, running_sum, tie_groups
from bayes_dc.metrics.calibration import top_label


def adaptive_ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error of the top label over bins of equal mass.

    ::

        Σ_b n_b / n · |acc_b − conf_b|,  n_b = ⌈n / n_bins⌉ or ⌊n / n_bins⌋

    Nixon's ACE is class-wise; this one looks at the predicted class, like ``ece``. No bin is empty
    unless there are fewer samples than bins. Works on any number of samples.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better; biased upwards on finite data, like ``ece``.

    Source:
        Nguyen & O'Connor 2015, "Posterior calibration and exploratory analysis for natural language
        processing models", EMNLP; Nixon et al. 2019, "Measuring calibration in deep learning".
    """
    check_n_bins(n_bins)
    return ADAPTIVE_ECE(probs, labels, n_bins=n_bins)


def debiased_squared_error(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Squared calibration error of the top label without its bias, over bins of equal mass.

    ::

        Σ_b n_b / n · [(acc_b − conf_b)² − acc_b (1 − acc_b) / (n_b − 1)]

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype; B ≥ 2 n_bins.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, −¼ … 1, lower is better; averages 0 over data sets of a calibrated network
        and is therefore often negative. Clip it at 0 only to take the root.

    Source:
        Kumar, Liang, Ma 2019, "Verified uncertainty calibration", NeurIPS.
    """
    check_n_bins(n_bins)
    return DEBIASED_SQUARED_ERROR(probs, labels, n_bins=n_bins)


def _cuts(n: int, n_bins: int, device: torch.device) -> Tensor:
    """Ranks at which the bins begin and end, int64 [n_bins + 1]."""
    b = torch.arange(n_bins + 1, device=device)
    return b * (n // n_bins) + b.clamp(max=n % n_bins)


def _sums(values: Tensor, groups: tuple[Tensor, Tensor], cuts: Tensor) -> Tensor:
    """Sums [R, n_bins] of values [R, n] between cuts, ties shared out."""
    total = running_sum(values)
    at = (cuts[1:] - 1).clamp(min=0).expand(len(values), -1)
    first, last = groups[0].gather(1, at), groups[1].gather(1, at)
    before = total.gather(1, first)
    share = (cuts[1:] - first).double() / (last + 1 - first)
    below = before + share * (total.gather(1, last + 1) - before)
    return below.diff(dim=1, prepend=torch.zeros_like(below[:, :1]))


def _adaptive_ece(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> Tensor:
    """Adaptive ECE of ranked data sets [R, n]."""
    n = confidence.shape[1]
    cuts = _cuts(n, n_bins, confidence.device)
    gaps = _sums(correct.double() - confidence, tie_groups(confidence), cuts)
    return gaps.abs().sum(dim=1) / n


def _debiased_squared_error(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> Tensor:
    """Debiased squared calibration error of ranked data sets [R, n]."""
    n = confidence.shape[1]
    check_mass(n, n_bins)
    cuts, groups, hits = (
        _cuts(n, n_bins, confidence.device),
        tie_groups(confidence),
        correct.double(),
    )
    count = cuts.diff()
    gap = _sums(hits - confidence, groups, cuts) / count
    accuracy = _sums(hits, groups, cuts) / count
    terms = gap.square() - accuracy * (1 - accuracy) / (count - 1)
    return (terms * count).sum(dim=1) / n


ADAPTIVE_ECE = Kind(top_label, _adaptive_ece, ranked=True)
DEBIASED_SQUARED_ERROR = Kind(top_label, _debiased_squared_error, ranked=True)
