"""A metric as a function of a few numbers per sample: one call, stream and bootstrap share it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_strata

Rows = tuple[Tensor, ...]

_EACH = "{name} must give one number per sample, [n]; got shape {got}. Flatten what is not [n, C]."


@dataclass(frozen=True)
class Kind:
    """How one metric is computed.

    Attributes:
        rows: Turns a batch of public arguments into checked per-sample tensors ``[n, ...]``, each
            row from its own sample only.
        value: Turns ``R`` data sets at once, ``[R, n, ...]`` per tensor, into ``[R]``; options by
            keyword. Of a curve: one data set ``R = 1`` into the curve.
        weighted: ``value`` takes the per-sample tensors ``[n, ...]`` (in their ranks, if
            ``ranked``) and how often each data set holds every sample, float64 ``[R, n]``.
        ranked: ``value`` wants the samples by ascending first tensor.
        stratified: The second tensor splits the samples into two groups of fixed size.
        curve: ``value`` gives no scalar.
        each: The metric takes one tensor and is a number of every sample; ``value`` is their mean,
            which is what an interval is of.
    """

    rows: Callable[..., Rows]
    value: Callable[..., Any]
    weighted: bool = False
    ranked: bool = False
    stratified: bool = False
    curve: bool = False
    each: bool = False

    def __call__(self, *batch: Tensor, **options: Any) -> Any:
        """Compute the metric of all samples in one call."""
        return self.finish(self.rows(*batch), **options)

    def finish(self, rows: Rows, **options: Any) -> Any:
        """Compute the metric from its per-sample tensors."""
        if self.each:
            return rows[0]
        if self.stratified:
            check_strata(rows[1])
        if self.ranked:
            order = rows[0].argsort(stable=True)
            rows = tuple(row[order] for row in rows)
        if self.weighted:
            ones = torch.ones(1, len(rows[0]), dtype=torch.float64, device=rows[0].device)
            value = self.value(*rows, ones, **options)
        else:
            value = self.value(*(row[None] for row in rows), **options)
        return value if self.curve else value[0]


def mean_kind(per_sample: Callable[..., Tensor]) -> Kind:
    """Describe the mean of a per-sample function."""
    return Kind(lambda *batch: (per_sample(*batch).double(),), lambda values: values.mean(dim=1))


def each_kind(measure: Callable[[Tensor], Tensor]) -> Kind:
    """Describe a measure of every sample, such as its entropy."""

    def rows(batch: Tensor) -> Rows:
        values = measure(batch).double()
        if values.ndim != 1:
            raise ValueError(_EACH.format(name=measure.__name__, got=list(values.shape)))
        return (values,)

    return Kind(rows, lambda values: values.mean(dim=1), each=True)


def counts(index: Tensor) -> Tensor:
    """How often every sample occurs in rows of indices ``[R, n]``."""
    return torch.zeros_like(index).scatter_add_(1, index, torch.ones_like(index))


def running_sum(values: Tensor) -> Tensor:
    """Sums of the first 0 … n values of every row, float64 ``[R, n + 1]``."""
    return torch.nn.functional.pad(values.double().cumsum(dim=1), (1, 0))


def tie_groups(ranked: Tensor) -> tuple[Tensor, Tensor]:
    """First and last position of every value's group of equals; ascending rows ``[R, n]``."""
    starts = torch.ones_like(ranked, dtype=torch.bool)
    starts[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    ends = torch.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    position = torch.arange(ranked.shape[1], device=ranked.device)
    first = torch.where(starts, position, 0).cummax(dim=1).values
    last = torch.where(ends, position, ranked.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    return first, last
