"""Calibration of a yes-or-no forecast: the probability of class 1, not that of the top label.

The same samples have two calibration errors. ``ece`` of two columns looks at the larger one of
each row, confidence ½ … 1; here it is the second column, 0 … 1, against the share of ones::

    positive-class ECE = Σ_b n_b / n · |ȳ_b − s̄_b|

with n_b the samples of bin b, ȳ_b the share of label 1 among them and s̄_b their mean score. Bins
are those of ``ece``. Scores are taken as they are; nothing decides by their range whether they are
logits.
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_n_bins, check_scores
from bayes_dc.metrics._kind import Kind
from bayes_dc.metrics.calibration import ECE, RELIABILITY_CURVE, ReliabilityCurve

_SCORES = (
    "scores must be probabilities of class 1, in 0 … 1; got {got:.6g} at index {index}. "
    "If these are logits pass scores.sigmoid()."
)
_LABELS = "labels must hold 0 or 1 in an integer dtype, one for each of the {n} scores; got {got}."


def positive_class(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce a batch to what positive-class calibration needs.

    Args:
        scores: Probability of class 1 ``[B]``, any floating dtype.
        labels: 0 or 1 ``[B]``, any integer dtype.

    Returns:
        Scores, float64 ``[B]``, and whether the label is 1, bool ``[B]``.

    Raises:
        TypeError: If an argument is no tensor.
        ValueError: If a score lies outside 0 … 1, or ``labels`` hold something else.
    """
    scores = check_scores(scores, "scores", empty=False)
    wrong = (scores < 0) | (scores > 1)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        raise ValueError(_SCORES.format(got=scores[index].item(), index=index))
    return scores, _ones(labels, scores)


def positive_class_curve(scores: Tensor, labels: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Compare the share of ones with the mean score in bins of equal width.

    ::

        ȳ_b = share of ones    s̄_b = mean score    over the n_b samples of bin b

    Args:
        scores: Probability of class 1 ``[B]``, any floating dtype.
        labels: 0 or 1 ``[B]``, any integer dtype.
        n_bins: Number of bins, at least 1; there are ``n_bins + 1`` edges.

    Returns:
        The curve, whose ``confidence`` is the mean score and whose ``accuracy`` the share of ones;
        empty bins are NaN.

    Source:
        DeGroot & Fienberg 1983, "The comparison and evaluation of forecasters", The Statistician
        32.
    """
    check_n_bins(n_bins)
    return POSITIVE_CLASS_CURVE(scores, labels, n_bins=n_bins)


def positive_class_ece(scores: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error of the probability of class 1; see the module.

    ::

        Σ_b n_b / n · |ȳ_b − s̄_b|    bins (lo, hi] of equal width

    For the top label of two classes call ``ece(torch.stack([1 - scores, scores], dim=1), labels)``:
    another number.

    Args:
        scores: Probability of class 1 ``[B]`` of all samples, any floating dtype.
        labels: 0 or 1 ``[B]``, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better; biased upwards on finite data, like ``ece``.

    Source:
        Naeini, Cooper, Hauskrecht 2015, "Obtaining well calibrated probabilities using Bayesian
        binning", AAAI.
    """
    check_n_bins(n_bins)
    return POSITIVE_CLASS_ECE(scores, labels, n_bins=n_bins)


def _ones(labels: Tensor, scores: Tensor) -> Tensor:
    """Which labels are 1, on the device of the scores, or raise."""
    if not isinstance(labels, Tensor):
        raise TypeError(_LABELS.format(n=len(scores), got=f"a {type(labels).__name__}"))
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != scores.shape or not whole:
        got = f"shape {list(labels.shape)}, dtype {labels.dtype}"
        raise ValueError(_LABELS.format(n=len(scores), got=got))
    labels = labels.to(device=scores.device, dtype=torch.int64)
    wrong = (labels != 0) & (labels != 1)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        raise ValueError(
            _LABELS.format(n=len(scores), got=f"{int(labels[index])} at index {index}")
        )
    return labels == 1


POSITIVE_CLASS_CURVE = Kind(positive_class, RELIABILITY_CURVE.value, curve=True)
POSITIVE_CLASS_ECE = Kind(positive_class, ECE.value)
