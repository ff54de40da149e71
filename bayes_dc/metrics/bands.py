"""Pointwise bootstrap bands of the two curves, for plots.

Each point of the curve has its own percentile interval; the level holds for every point by itself,
not for the whole curve at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bayes_dc.metrics._checks import check_coverages, check_n_bins
from bayes_dc.metrics._kind import Kind, Rows
from bayes_dc.metrics._resample import check_options, cut_of, draw_metric
from bayes_dc.metrics.calibration import accuracies, top_label
from bayes_dc.metrics.selective import risks_at, uncertainty_and_loss


@dataclass(frozen=True)
class Band:
    """Intervals of the points of a curve.

    Attributes:
        low: Lower ends, float64 ``[K]``; NaN where no resample has a value.
        high: Upper ends, float64 ``[K]``.
        level: Confidence level of every point, 0 … 1.
        resamples: Number of bootstrap resamples.
    """

    low: Tensor
    high: Tensor
    level: float
    resamples: int


def reliability_band(
    probs: Tensor,
    labels: Tensor,
    n_bins: int = 15,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Band:
    """Percentile intervals of ``reliability_curve(...).accuracy``.

    A bin that a resample leaves empty has no accuracy there; its interval comes from the others.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling.

    Returns:
        The band, on the CPU, ``[n_bins]``, 0 … 1; NaN where the bin is empty.
    """
    check_n_bins(n_bins)
    kind = Kind(top_label, accuracies)
    return _band(kind, top_label(probs, labels), {"n_bins": n_bins}, level, resamples, seed)


def risk_coverage_band(
    uncertainty: Tensor,
    loss: Tensor,
    coverages: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Band:
    """Percentile intervals of ``risk_at_coverage`` for several coverages at once.

    Args:
        uncertainty: Higher is less sure ``[n]``, any floating dtype, may be infinite.
        loss: Loss of every prediction ``[n]``, bool or finite floats.
        coverages: K shares to answer, above 0 and at most 1, such as
            ``[k / 100 for k in range(1, 101)]``; not from float32, whose 0.8 lies above 0.8.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling.

    Returns:
        The band, on the CPU, ``[K]``.
    """
    shares = check_coverages(coverages)
    rows = uncertainty_and_loss(uncertainty, loss)
    kind = Kind(uncertainty_and_loss, risks_at, ranked=True)
    return _band(kind, rows, {"coverages": shares}, level, resamples, seed)


def _band(
    kind: Kind, rows: Rows, options: dict[str, object], level: float, resamples: int, seed: int
) -> Band:
    """Outer order statistics of every point, of the resamples that have a value there."""
    check_options(len(rows[0]), level, resamples, seed)
    values = draw_metric(kind, rows, options, resamples, seed).sort(dim=0).values  # NaN last
    held = (~values.isnan()).sum(dim=0)
    cut = cut_of(level, held.clamp(min=1))
    low = values.gather(0, cut[None])[0]
    high = values.gather(0, ((held - 1).clamp(min=0) - cut)[None])[0]
    return Band(low, high, level, resamples)
