"""Calibration of every class probability, not only of the largest: class-wise ECE, Brier's parts.

Class c is a yes/no forecast of its own: p_c against o_c = 1[y = c]. Its forecasts fall into
equal-width bins (lo, hi], 0 into the first. With n_cb samples in bin b of class c, mean forecast
p̄_cb, frequency ō_cb there and ō_c overall::

    class-wise ECE = 1/C Σ_c Σ_b n_cb / n · |ō_cb − p̄_cb|
    Brier          = reliability − resolution + uncertainty + remainder
    reliability    = Σ_c Σ_b n_cb / n · (p̄_cb − ō_cb)²
    resolution     = Σ_c Σ_b n_cb / n · (ō_cb − ō_c)²
    uncertainty    = Σ_c ō_c (1 − ō_c)
    remainder      = Σ_c mean_b [Var_b(p_c) − 2 Cov_b(p_c, o_c)]

The remainder is 0 where every bin holds one value; it closes the sum for any bins.
Source: Kull et al. 2019, "Beyond temperature scaling", NeurIPS (class-wise ECE); Murphy 1973, "A
new vector partition of the probability score"; Stephenson, Coelho, Jolliffe 2008, "Two extra
components in the Brier score decomposition" (the remainder).
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_labels, check_n_bins, check_probs
from bayes_dc.metrics._kind import Kind
from bayes_dc.metrics.calibration import bin_of, bin_sums


@dataclass(frozen=True)
class BrierDecomposition:
    """The parts of the Brier score in its sum form, float64 scalars.

    Attributes:
        reliability: Miscalibration of the class probabilities, 0 … 2, lower is better.
        resolution: How far the forecasts tell the classes apart, 0 … ``uncertainty``, higher is
            better.
        uncertainty: Brier score of always forecasting the class frequencies, 0 … 1 − 1/C; belongs
            to the labels, no network changes it.
        remainder: What the width of the bins hides, either sign; small for narrow bins.
    """

    reliability: Tensor
    resolution: Tensor
    uncertainty: Tensor
    remainder: Tensor

    @property
    def brier(self) -> Tensor:
        """The score itself, 0 … 2, lower is better."""
        return self.reliability - self.resolution + self.uncertainty + self.remainder


def classwise_ece(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Calibration error of all class probabilities, averaged over classes; see the module.

    ::

        1/C Σ_c Σ_b n_cb / n · |ō_cb − p̄_cb|

    With many classes most forecasts are near 0 and near right, so the number is small: compare it
    only at an equal number of classes.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype; not every class need occur.
        n_bins: Number of bins per class, at least 1.

    Returns:
        Float64 scalar, 0 … 2/C, lower is better.

    Source:
        Kull et al. 2019, "Beyond temperature scaling", NeurIPS.
    """
    check_n_bins(n_bins)
    return CLASSWISE_ECE(probs, labels, n_bins=n_bins)


def brier_decomposition(probs: Tensor, labels: Tensor, n_bins: int = 15) -> BrierDecomposition:
    """Split the Brier score into reliability, resolution, uncertainty and a remainder.

    ::

        brier = reliability − resolution + uncertainty + remainder

    Bins are those of every class's own probability. Splits by predicted class or by top-label
    confidence are other numbers. See the module for the formulas.

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins per class, at least 1.

    Returns:
        The parts, whose sum ``.brier`` is ``brier`` of the same arguments.

    Source:
        Murphy 1973, "A new vector partition of the probability score", Journal of Applied
        Meteorology 12; Stephenson, Coelho, Jolliffe 2008, "Two extra components in the Brier score
        decomposition" (the remainder).
    """
    check_n_bins(n_bins)
    return BRIER_DECOMPOSITION(probs, labels, n_bins=n_bins)


def brier_reliability(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Reliability part of the Brier score; see ``brier_decomposition``.

    ::

        Σ_c Σ_b n_cb / n · (p̄_cb − ō_cb)²

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins per class, at least 1.

    Returns:
        Float64 scalar, 0 … 2, lower is better; biased upwards on finite data, like ``ece``.

    Source:
        Murphy 1973, "A new vector partition of the probability score", Journal of Applied
        Meteorology 12.
    """
    return brier_decomposition(probs, labels, n_bins).reliability


def brier_resolution(probs: Tensor, labels: Tensor, n_bins: int = 15) -> Tensor:
    """Resolution part of the Brier score; see ``brier_decomposition``.

    ::

        Σ_c Σ_b n_cb / n · (ō_cb − ō_c)²

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins per class, at least 1.

    Returns:
        Float64 scalar, 0 … 1 − 1/C, higher is better.

    Source:
        Murphy 1973, "A new vector partition of the probability score", Journal of Applied
        Meteorology 12.
    """
    return brier_decomposition(probs, labels, n_bins).resolution


def brier_uncertainty(probs: Tensor, labels: Tensor) -> Tensor:
    """Uncertainty part of the Brier score, a property of the labels; see ``brier_decomposition``.

    ::

        Σ_c ō_c (1 − ō_c)

    Args:
        probs: Class probabilities ``[B, C]`` of all samples, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 scalar, 0 … 1 − 1/C, neither direction is better.

    Source:
        Murphy 1973, "A new vector partition of the probability score", Journal of Applied
        Meteorology 12.
    """
    return brier_decomposition(probs, labels, 1).uncertainty


def _rows(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All probabilities [B, C], at most 1, and labels [B]."""
    probs = check_probs(probs)
    return probs.clamp(max=1.0), check_labels(labels, probs)


def _sums(bins: Tensor, values: Tensor, weight: Tensor, n_bins: int) -> Tensor:
    """Weighted sums [R, n_bins] of values [n] in their bins."""
    if len(weight) == 1:
        return bin_sums(bins[None], weight * values, n_bins)
    return weight @ (torch.nn.functional.one_hot(bins, n_bins) * values[:, None])


def _classwise_ece(probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int = 15) -> Tensor:
    """Class-wise ECE [R] of weighted samples [R, n]."""
    total = torch.zeros(len(weight), dtype=torch.float64, device=probs.device)
    for c in range(probs.shape[1]):
        p = probs[:, c]
        gaps = _sums(bin_of(p, n_bins), (labels == c).double() - p, weight, n_bins)
        total += gaps.abs().sum(dim=1)
    return total / probs.numel()


def _parts(probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int = 15) -> BrierDecomposition:
    """Parts [R] of weighted samples [R, n]."""
    n = len(probs)
    none = torch.zeros(len(weight), dtype=torch.float64, device=probs.device)
    reliability, resolution, uncertainty, brier = (none.clone() for _ in range(4))
    for c in range(probs.shape[1]):
        p, o = probs[:, c], (labels == c).double()
        bins = bin_of(p, n_bins)
        n_b = _sums(bins, torch.ones_like(p), weight, n_bins)
        hits, gaps = _sums(bins, o, weight, n_bins), _sums(bins, p - o, weight, n_bins)
        some, base = n_b.clamp(min=1), hits.sum(dim=1) / n
        reliability += (gaps.square() / some).sum(dim=1) / n
        resolution += (n_b * (hits / some - base[:, None]).square()).sum(dim=1) / n
        uncertainty += base * (1 - base)
        brier += weight @ (p - o).square() / n
    remainder = brier - (reliability - resolution + uncertainty)
    return BrierDecomposition(reliability, resolution, uncertainty, remainder)


def _single(probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int = 15) -> BrierDecomposition:
    """Parts of one data set, as scalars."""
    parts = _parts(probs, labels, weight, n_bins)
    return BrierDecomposition(
        parts.reliability[0], parts.resolution[0], parts.uncertainty[0], parts.remainder[0]
    )


def _part(name: str, probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int = 15) -> Tensor:
    """One part [R] of weighted samples [R, n]."""
    return getattr(_parts(probs, labels, weight, n_bins), name)


CLASSWISE_ECE = Kind(_rows, _classwise_ece, weighted=True)
BRIER_DECOMPOSITION = Kind(_rows, _single, weighted=True, curve=True)
BRIER_RELIABILITY = Kind(_rows, partial(_part, "reliability"), weighted=True)
BRIER_RESOLUTION = Kind(_rows, partial(_part, "resolution"), weighted=True)
BRIER_UNCERTAINTY = Kind(_rows, partial(_part, "uncertainty", n_bins=1), weighted=True)
