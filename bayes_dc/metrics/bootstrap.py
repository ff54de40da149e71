"""Percentile bootstrap: how far a metric would move on other test samples of the same kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from bayes_dc.metrics.calibration import bin_by_confidence

# Drawn indices held at once; 32 MiB of int64.
CHUNK_ELEMENTS = 1 << 22

_LEVEL = "level must be a number strictly between 0 and 1, such as 0.95; got {got!r}."
_RESAMPLES = "resamples must be an integer of at least 1, such as 1000; got {got!r}."
_SEED = "seed must be an integer in 0 … 2**63 − 1; got {got!r}."
_NO_SAMPLES = "no samples: the bootstrap needs n ≥ 1; got n = {got!r}."
_VALUES = "values must be a tensor [n] without NaN, one number per sample; got {got}."
_STATISTIC = (
    "statistic must turn indices of shape {indices} into one number per row without NaN; got {got}."
)


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low: Lower end.
        high: Upper end.
        level: Confidence level, 0 … 1.
        resamples: Number of bootstrap resamples.
    """

    low: float
    high: float
    level: float
    resamples: int


def bootstrap_interval(
    statistic: Callable[[Tensor], Tensor],
    n: int,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic of ``n`` samples.

    The ends are order statistics, the outer ones where the rank is not whole, so that infinite
    values need no interpolation.

    Args:
        statistic: Takes sample indices, int64 ``[R, n]`` on the CPU, one resample per row;
            returns ``[R]``.
        n: Number of samples, at least 1.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; 0 … 2**63 − 1.

    Returns:
        The interval; equal arguments give equal bits. The global generators are untouched.

    Raises:
        ValueError: If an argument is out of range or ``statistic`` returns NaN or another shape.
    """
    _check_options(n, level, resamples, seed)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, CHUNK_ELEMENTS // n)
    parts = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), n)
        part = statistic(torch.randint(n, shape, generator=generator)).double().cpu()
        if part.shape != shape[:1] or part.isnan().any():
            got = "NaN" if part.shape == shape[:1] else f"shape {list(part.shape)}"
            raise ValueError(_STATISTIC.format(indices=list(shape), got=got))
        parts.append(part)
    drawn = torch.cat(parts).sort().values
    tail = (1.0 - level) / 2 * (resamples - 1)
    cut = int(tail + 1e-9)  # (1 − 0.8) / 2 · 100 is 10, not 9.99…
    return Interval(drawn[cut].item(), drawn[resamples - 1 - cut].item(), level, resamples)


def bootstrap_mean(
    values: Tensor, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean of per-sample values.

    Args:
        values: One number per sample ``[n]``, any dtype; infinite values give infinite ends.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; equal seeds draw equal samples, so that two networks can be
            compared.

    Returns:
        The interval.

    Raises:
        ValueError: If ``values`` is no vector, is empty or holds NaN, or an option is out of range.
    """
    if values.ndim != 1 or values.isnan().any():
        got = f"shape {list(values.shape)}" if values.ndim != 1 else "NaN"
        raise ValueError(_VALUES.format(got=got))
    values = values.double().cpu()
    return bootstrap_interval(
        lambda index: values[index].mean(dim=1),
        len(values),
        level=level,
        resamples=resamples,
        seed=seed,
    )


def bootstrap_ece(
    probs: Tensor,
    labels: Tensor,
    n_bins: int = 15,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the expected calibration error.

    Resampling adds noise that ECE counts as error, so the interval leans upwards and may lie above
    the ECE of a network that is well calibrated.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.
        n_bins: Number of bins, at least 1.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling.

    Returns:
        The interval.
    """
    binning = bin_by_confidence(probs, labels, n_bins)
    bins, gap = binning.bins.cpu(), (binning.correct - binning.confidence).cpu()

    def statistic(index: Tensor) -> Tensor:
        sums = torch.zeros(len(index), n_bins, dtype=torch.float64)
        sums.scatter_add_(1, bins[index], gap[index])
        return sums.abs().sum(dim=1) / index.shape[1]

    return bootstrap_interval(statistic, len(gap), level=level, resamples=resamples, seed=seed)


def _check_options(n: object, level: object, resamples: object, seed: object) -> None:
    """Raise if an option of the bootstrap is out of range."""
    if not _is_int(n) or n < 1:
        raise ValueError(_NO_SAMPLES.format(got=n))
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(_LEVEL.format(got=level))
    if not _is_int(resamples) or resamples < 1:
        raise ValueError(_RESAMPLES.format(got=resamples))
    if not _is_int(seed) or not 0 <= seed < 2**63:
        raise ValueError(_SEED.format(got=seed))


def _is_int(value: object) -> TypeGuard[int]:
    """True for integers that are no bools."""
    return isinstance(value, int) and not isinstance(value, bool)
