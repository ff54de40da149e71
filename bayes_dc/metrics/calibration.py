"""Top-label calibration with equal-width bins.

With n_b the number of samples of bin b, acc_b their accuracy and conf_b their **mean** confidence::

    ECE = Σ_b n_b / n · |acc_b − conf_b|

Bins are (lo, hi], so a confidence of 1 lies in the last one. Edges are b / n_bins in float64 and a
confidence is placed by its own value: float32(0.7) < 0.7 lies in the bin below that edge.
Source: Guo et al. 2017, "On calibration of modern neural networks", ICML, eq. 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_labels, check_n_bins, check_probs


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


@dataclass(frozen=True)
class Binning:
    """Every sample's bin and gap; what the curve, ECE and its bootstrap are made of.

    Attributes:
        bins: Bin of every sample, int64 ``[B]``, 0 … n_bins − 1.
        confidence: Top-label confidence, float64 ``[B]``.
        correct: 1 where the top label is right, else 0, float64 ``[B]``.
        n_bins: Number of bins.
    """

    bins: Tensor
    confidence: Tensor
    correct: Tensor
    n_bins: int

    def sums(self, values: Tensor) -> Tensor:
        """Add up ``values`` ``[B]`` per bin, float64 ``[n_bins]``."""
        zeros = torch.zeros(self.n_bins, dtype=torch.float64, device=values.device)
        return zeros.index_add(0, self.bins, values)


def bin_edges(n_bins: int) -> Tensor:
    """Edges of equal-width bins on 0 … 1.

    Args:
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 ``[n_bins + 1]``; edge b is b / n_bins, correctly rounded.
    """
    n_bins = check_n_bins(n_bins)
    return torch.arange(n_bins + 1, dtype=torch.float64) / n_bins


def bin_by_confidence(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Binning:
    """Put every sample into the bin of its top-label confidence.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        The binning, on the device of ``probs``.
    """
    edges = bin_edges(n_bins)
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    confidence, predicted = probs.max(dim=1)
    confidence = confidence.clamp(max=1.0)  # a rounded row may reach a little above 1
    # searchsorted gives the first edge ≥ the confidence, so bins are closed on the right; the
    # largest of C probabilities is never 0
    bins = torch.searchsorted(edges.to(probs.device), confidence) - 1
    return Binning(bins, confidence, (predicted == labels).double(), n_bins)


def reliability_curve(probs: Tensor, labels: Tensor, n_bins: int = 15) -> ReliabilityCurve:
    """Compare accuracy with mean confidence in bins of equal width.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype; not every class need occur.
        n_bins: Number of bins, at least 1; there are ``n_bins + 1`` edges.

    Returns:
        The curve, on the device of ``probs``; empty bins are NaN.
    """
    binning = bin_by_confidence(probs, labels, n_bins)
    count = torch.bincount(binning.bins, minlength=n_bins)
    return ReliabilityCurve(
        edges=bin_edges(n_bins).to(count.device),
        count=count,
        confidence=binning.sums(binning.confidence) / count,
        accuracy=binning.sums(binning.correct) / count,
    )


def ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Expected calibration error of the top label.

    A perfectly calibrated network scores above 0 on finite data: about 0.010 for 1 000 samples and
    0.003 for 10 000 at a mean confidence of 0.95 with 15 bins. Smaller differences are noise.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype. The mean of
            batch-wise values is another, larger number.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.

    Returns:
        Float64 scalar, 0 … 1, lower is better.
    """
    binning = bin_by_confidence(probs, labels, n_bins)
    return binning.sums(binning.correct - binning.confidence).abs().sum() / len(binning.bins)
