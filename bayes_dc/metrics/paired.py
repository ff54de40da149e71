"""Bootstrap intervals of a difference between two networks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayes_dc.metrics._checks import check_tensor
from bayes_dc.metrics._kind import Kind
from bayes_dc.metrics._resample import check_options, draw_metric
from bayes_dc.metrics._table import check_batch, check_scalar, kind_of
from bayes_dc.metrics.bootstrap import Interval, interval_of

_PAIRS = (
    "paired=True compares the same samples in the same order; got {first} samples of the first "
    "network and {second} of the second. Take the samples that both have, or pass paired=False."
)
_INFINITE = (
    "the difference of {name} has no interval: a resample is infinite for both networks. Compare "
    "it without the samples that have an infinite loss."
)
_VALUES = "{name} must be a real tensor [n] of finite values, one per sample; got {got}."


@dataclass(frozen=True)
class PairIntervals:
    """Intervals of one metric of two networks.

    Attributes:
        first: Of the first network.
        second: Of the second network.
        difference: Of second less first, paired by sample; None where it does not exist.
    """

    first: Interval
    second: Interval
    difference: Interval | None


def bootstrap_difference(
    metric: Callable[..., Tensor],
    first: tuple[Tensor, ...],
    second: tuple[Tensor, ...],
    *,
    paired: bool = True,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """Percentile interval of metric(second) − metric(first).

    Paired, a resample holds the same samples for both networks, so that what makes a sample hard
    for both cancels; 0 outside the interval means that they differ on samples of this kind.

    Args:
        metric: A metric that takes two tensors, such as ``ece`` or ``aurc``, or an uncertainty of
            one, such as ``predictive_entropy``, whose means are compared.
        first: Its arguments for the first network, all samples.
        second: The same for the second network.
        paired: Whether both hold the same samples in the same order. False: the networks are
            resampled independently, each at its own size.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; 0 … 2**63 − 1.
        **options: Options of the metric by keyword, such as ``n_bins=10``.

    Returns:
        The interval; equal arguments give equal bits.

    Raises:
        ValueError: If an argument is out of range, paired samples differ in number, or a resample
            of both networks is infinite.

    Example:
        >>> bootstrap_difference(nll, (probs_a, labels), (probs_b, labels))
    """
    before, after = _draws(metric, (first, second), options, paired, level, resamples, seed)
    values = after - before
    if values.isnan().any():
        raise ValueError(_INFINITE.format(name=metric.__name__))
    return interval_of(values, level)


def bootstrap_pair(
    metric: Callable[..., Tensor],
    first: tuple[Tensor, ...],
    second: tuple[Tensor, ...],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> PairIntervals:
    """Percentile intervals of a metric for two networks on the same samples, and of its difference.

    The bits of two calls of ``bootstrap_metric`` and one of ``bootstrap_difference``, for half the
    work.

    Args:
        metric: A metric that takes two tensors, such as ``ece`` or ``aurc``, or an uncertainty of
            one, such as ``predictive_entropy``, whose means are compared.
        first: Its arguments for the first network, all samples.
        second: The same for the second network, in the same order.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; 0 … 2**63 − 1.
        **options: Options of the metric by keyword, such as ``n_bins=10``.

    Returns:
        The three intervals; that of the difference is None where a resample of both is infinite.
    """
    before, after = _draws(metric, (first, second), options, True, level, resamples, seed)
    gaps = after - before
    return PairIntervals(
        first=interval_of(before, level),
        second=interval_of(after, level),
        difference=None if gaps.isnan().any() else interval_of(gaps, level),
    )


def _draws(
    metric: Callable[..., Tensor],
    networks: tuple[tuple[Tensor, ...], tuple[Tensor, ...]],
    options: dict[str, Any],
    paired: bool,
    level: float,
    resamples: int,
    seed: int,
) -> list[Tensor]:
    """The metric of every resample [resamples] for both networks."""
    kind = kind_of(metric, options)
    check_scalar(metric)
    rows = [kind.rows(*check_batch(metric, arguments)) for arguments in networks]
    sizes = [len(one[0]) for one in rows]
    for size in sizes:
        check_options(size, level, resamples, seed)
    if paired and sizes[0] != sizes[1]:
        raise ValueError(_PAIRS.format(first=sizes[0], second=sizes[1]))
    # Equal seeds draw equal samples of equal numbers; strata take seed and seed + 1.
    seeds = (seed, seed if paired else (int(seed) + 2) % 2**63)
    return [
        draw_metric(kind, one, options, resamples, s) for one, s in zip(rows, seeds, strict=True)
    ]


def bootstrap_mean_difference(
    first: Tensor,
    second: Tensor,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of mean(second) − mean(first) over samples of two independent sets.

    For the same samples in the same order take ``bootstrap_mean(second - first)``, which is paired.

    Args:
        first: One finite number per sample of the first set ``[n_1]``.
        second: One finite number per sample of the second set ``[n_2]``.
        level: Confidence level, strictly between 0 and 1.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling; 0 … 2**63 − 1.

    Returns:
        The interval; equal arguments give equal bits.

    Raises:
        ValueError: If an argument is no vector, holds what is not finite, or is out of range.
    """
    means = []
    for number, (name, values) in enumerate((("first", first), ("second", second))):
        flat = check_tensor(values, name).ndim == 1 and not values.is_complex()
        if not flat or not values.isfinite().all():
            got = (
                "NaN or infinities" if flat else f"shape {list(values.shape)}, dtype {values.dtype}"
            )
            raise ValueError(_VALUES.format(name=name, got=got))
        check_options(len(values), level, resamples, seed)
        values = values.detach().double().cpu()
        seeded = (int(seed) + number) % 2**63
        kind = Kind(lambda one: (one,), lambda one: one.mean(dim=1))
        means.append(draw_metric(kind, (values,), {}, resamples, seeded))
    return interval_of(means[1] - means[0], level)
