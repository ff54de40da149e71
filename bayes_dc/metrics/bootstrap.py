"""Percentile bootstrap: how far a metric would move on other test samples of the same kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_tensor
from bayes_dc.metrics._kind import Kind, Rows
from bayes_dc.metrics._resample import check_options, cut_of, draw, draw_metric
from bayes_dc.metrics._table import check_batch, check_scalar, kind_of
from bayes_dc.metrics.calibration import ece

_VALUES = "values must be a real tensor [n] without NaN, one number per sample; got {got}."
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
    check_options(n, level, resamples, seed)

    def checked(index: Tensor) -> Tensor:
        values = statistic(index).double().cpu()
        if values.shape != index.shape[:1] or values.isnan().any():
            got = "NaN" if values.shape == index.shape[:1] else f"shape {list(values.shape)}"
            raise ValueError(_STATISTIC.format(indices=list(index.shape), got=got))
        return values

    return interval_of(draw(checked, [n], resamples, seed), level)


def bootstrap_metric(
    metric: Callable[..., Tensor],
    first: Tensor,
    second: Tensor | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """Percentile interval of any metric of this package that is one number.

    Of an uncertainty, which is one number per input, it is the interval of the mean.

    Equal seeds and numbers of samples draw equal samples for all metrics but the OOD ones, which
    resample ID and OOD inputs apart, each at its own size.

    Calibration errors, ``excess_aurc`` and ``brier_reliability`` count the noise that resampling
    adds, so their intervals lean upwards. That of ``mce`` is a rough guide only.

    Args:
        metric: A metric that takes two tensors, such as ``ece``, ``aurc`` or ``auroc``, or an
            uncertainty of one, such as ``predictive_entropy``.
        first: Its first argument, all samples.
        second: Its second argument; None for an uncertainty.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; 0 … 2**63 − 1.
        **options: Options of the metric by keyword, such as ``n_bins=10``.

    Returns:
        The interval; equal arguments give equal bits.
    """
    kind = kind_of(metric, options)
    check_scalar(metric)
    rows = kind.rows(*check_batch(metric, (first, second)))
    return bootstrap_rows(kind, rows, options, level=level, resamples=resamples, seed=seed)


def bootstrap_rows(
    kind: Kind, rows: Rows, options: dict[str, Any], *, level: float, resamples: int, seed: int
) -> Interval:
    """Percentile interval of a metric from its per-sample tensors.

    Args:
        kind: How the metric is computed.
        rows: Per-sample tensors ``[n, ...]``.
        options: Options of the metric.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling.

    Returns:
        The interval.
    """
    check_options(len(rows[0]), level, resamples, seed)
    return interval_of(draw_metric(kind, rows, options, resamples, seed), level)


def interval_of(values: Tensor, level: float) -> Interval:
    """Outer order statistics of drawn values.

    Args:
        values: One per resample ``[resamples]``, without NaN.
        level: Confidence level, strictly between 0 and 1.

    Returns:
        The interval.
    """
    values, last = values.sort().values, len(values) - 1
    cut = int(cut_of(level, torch.tensor(len(values))))
    return Interval(values[cut].item(), values[last - cut].item(), float(level), len(values))


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
        ValueError: If ``values`` is no vector, is empty, complex or holds NaN, or an option is out
            of range.
    """
    if check_tensor(values, "values").ndim != 1 or values.is_complex() or values.isnan().any():
        got = "NaN" if values.ndim == 1 and not values.is_complex() else _shown(values)
        raise ValueError(_VALUES.format(got=got))
    values = values.double().cpu()
    return bootstrap_interval(
        lambda index: values[index].mean(dim=1),
        len(values),
        level=level,
        resamples=resamples,
        seed=seed,
    )


def _shown(values: Tensor) -> str:
    """What a tensor is, for a message."""
    return f"shape {list(values.shape)}, dtype {values.dtype}"


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
    return bootstrap_metric(
        ece, probs, labels, level=level, resamples=resamples, seed=seed, n_bins=n_bins
    )
