"""Top-label calibration with equal-width bins.

With n_b the number of samples of bin b, acc_b their accuracy and conf_b their **mean** confidence::

    ECE = Σ_b n_b / n · |acc_b − conf_b|
    MCE = max_b |acc_b − conf_b|  over bins that hold samples

Bins are (lo, hi], so a confidence of 1 lies in the last one. Edges are b / n_bins in float64 and a
confidence is placed by its own value: float32(0.7) < 0.7 lies in the bin below that edge.
Source: Guo et al. 2017, "On calibration of modern neural networks", ICML, eqs. 3 and 5.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_labels, check_n_bins, check_probs
from bayes_dc.metrics._kind import Kind


@dataclass(frozen=True)
class ReliabilityCurve:
    """Accuracy against confidence, bin by bin.

    Attributes:
        edges: Bin edges, float64 ``[n_bins + 1]``, 0 … 1.
        count: Samples per bin, int64 ``[n_bins]``.
        confidence: Mean confidence per bin, float64 ``[n_bins]``; NaN where the bin is empty.
        accuracy: Share of right answers per bin, float64 ``[n_bins]``; NaN where the bin is empty.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.count)


def bin_edges(n_bins: int) -> Tensor:
    """Edges of equal-width bins on 0 … 1.

    Args:
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 ``[n_bins + 1]``; edge b is b / n_bins, correctly rounded.
    """
    n_bins = check_n_bins(n_bins)
    return torch.arange(n_bins + 1, dtype=torch.float64) / n_bins


def bin_of(values: Tensor, n_bins: int) -> Tensor:
    """Put every value into its bin (lo, hi]; 0 lies in the first one.

    Args:
        values: Float64 numbers in 0 … 1, any shape.
        n_bins: Number of bins, at least 1.

    Returns:
        Int64 of the same shape, 0 … n_bins − 1.
    """
    edges = bin_edges(n_bins).to(values.device)
    # searchsorted gives the first edge ≥ the value, so bins are closed on the right
    return (torch.searchsorted(edges, values.contiguous()) - 1).clamp(min=0)


def bin_sums(bins: Tensor, values: Tensor, n_bins: int) -> Tensor:
    """Add up values bin by bin, one data set per row.

    Args:
        bins: Bin of every sample, int64 ``[R, n]``.
        values: What is added, ``[R, n]``.
        n_bins: Number of bins.

    Returns:
        Float64 ``[R, n_bins]``.
    """
    zeros = torch.zeros(len(bins), n_bins, dtype=torch.float64, device=bins.device)
    return zeros.scatter_add_(1, bins, values.double())


def top_label(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce a batch to what top-label calibration needs.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Confidence, float64 ``[B]``, at most 1 also where a rounded row reaches above it; and
        whether the top label is right, bool ``[B]``.
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    confidence, predicted = probs.max(dim=1)
    return confidence.clamp(max=1.0), predicted == labels


def reliability_curve(probs: Tensor, labels: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Compare accuracy with mean confidence in bins of equal width.

    ::

        acc_b = mean 1[top label right]    conf_b = mean confidence    over the n_b samples of bin b

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype; not every class need occur.
        n_bins: Number of bins, at least 1; there are ``n_bins + 1`` edges.

    Returns:
        The curve, on the device of ``probs``; empty bins are NaN.

    Source:
        DeGroot & Fienberg 1983, "The comparison and evaluation of forecasters", The Statistician
        32.
    """
    check_n_bins(n_bins)
    return RELIABILITY_CURVE(probs, labels, n_bins=n_bins)


def ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error of the top label.

    ::

        Σ_b n_b / n · |acc_b − conf_b|    bins (lo, hi] of equal width, 1 in the last

    A perfectly calibrated network scores above 0 on finite data: about 0.010 for 1 000 samples and
    0.003 for 10 000 at a mean confidence of 0.95 with 15 bins. Smaller differences are noise.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype. The mean of
            batch-wise values is another, larger number.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better.

    Source:
        Guo et al. 2017, "On calibration of modern neural networks", ICML, eq. 3.
    """
    check_n_bins(n_bins)
    return ECE(probs, labels, n_bins=n_bins)


def mce(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Maximum calibration error of the top label: the widest gap of all bins that hold samples.

    ::

        max_b |acc_b − conf_b|    over bins (lo, hi] that hold samples

    One sample alone in its bin is enough to make it large, so look at ``reliability_curve``'s
    counts before believing it.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better; never below ``ece`` of the same bins.

    Source:
        Guo et al. 2017, "On calibration of modern neural networks", ICML, eq. 5.
    """
    check_n_bins(n_bins)
    return MCE(probs, labels, n_bins=n_bins)


def debiased_ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """ECE less an estimate of what sampling noise adds to it, on the same equal-width bins.

    ::

        2 ECE − Σ_b n_b / n · E|N(acc_b − conf_b, acc_b (1 − acc_b) / n_b)|

    The expectation is taken in closed form (folded normal), so nothing is drawn. It is a correction
    of first order: on a calibrated network it takes away 1 − (2 − √2), about 0.4, of the bias.
    ``debiased_squared_error`` has no bias left, on another scale.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, −0.29 … 1 and never above ``ece``, lower is better. A bin that is all right
        or all wrong gets no correction.

    Source:
        Kumar, Liang, Ma 2019, "Verified uncertainty calibration", NeurIPS (their code draws the
        normal 1000 times).
    """
    check_n_bins(n_bins)
    return DEBIASED_ECE(probs, labels, n_bins=n_bins)


def accuracies(confidence: Tensor, correct: Tensor, n_bins: int) -> Tensor:
    """Accuracy in every bin, one data set per row.

    Args:
        confidence: Top-label confidence, float64 ``[R, n]``.
        correct: Whether the top label is right ``[R, n]``.
        n_bins: Number of bins.

    Returns:
        Float64 ``[R, n_bins]``; NaN where the bin is empty.
    """
    _, count, _, hits = _binned(confidence, correct, n_bins)
    return hits / count


def _binned(
    confidence: Tensor, correct: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bins [R, n]; count, sum of (correct − confidence) and sum of correct [R, n_bins]."""
    bins, hits = bin_of(confidence, n_bins), correct.double()
    count = bin_sums(bins, torch.ones_like(hits), n_bins)
    return bins, count, bin_sums(bins, hits - confidence, n_bins), bin_sums(bins, hits, n_bins)


def _curve(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Reliability curve of one data set [1, n]."""
    bins, count, _, hits = _binned(confidence, correct, n_bins)
    return ReliabilityCurve(
        edges=bin_edges(n_bins).to(count.device),
        count=count[0].long(),
        confidence=(bin_sums(bins, confidence, n_bins) / count)[0],
        accuracy=(hits / count)[0],
    )


def _ece(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> Tensor:
    """ECE of data sets [R, n]."""
    gaps = bin_sums(bin_of(confidence, n_bins), correct.double() - confidence, n_bins)
    return gaps.abs().sum(dim=1) / confidence.shape[1]


def _mce(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> Tensor:
    """MCE of data sets [R, n]."""
    _, count, gaps, _ = _binned(confidence, correct, n_bins)
    return (gaps.abs() / count.clamp(min=1)).amax(dim=1)


def _debiased_ece(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> Tensor:
    """Debiased ECE of data sets [R, n]."""
    _, count, gaps, hits = _binned(confidence, correct, n_bins)
    n_b = count.clamp(min=1)
    mu, accuracy = gaps.abs() / n_b, hits / n_b
    sigma = (accuracy * (1 - accuracy) / n_b).sqrt()
    z = torch.where(sigma > 0, mu / sigma, math.inf)
    # E|N(μ, σ²)| = σ √(2/π) exp(−z²/2) + μ erf(z/√2), z = μ/σ
    noise = sigma * math.sqrt(2 / math.pi) * (-z * z / 2).exp()
    expected = noise + mu * torch.erf(z / math.sqrt(2))
    return ((2 * mu - expected) * count).sum(dim=1) / confidence.shape[1]


RELIABILITY_CURVE = Kind(top_label, _curve, curve=True)
ECE = Kind(top_label, _ece)
MCE = Kind(top_label, _mce)
DEBIASED_ECE = Kind(top_label, _debiased_ece)
