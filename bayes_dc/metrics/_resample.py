"""Draws of the bootstrap: which samples a resample holds, and a metric's value on each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_strata, is_integer, is_number
from bayes_dc.metrics._kind import Kind, Rows, counts
from bayes_dc.types import torch_seed

# Drawn indices held at once; 8 MiB of int64, so that the steps of a metric meet them in the cache.
CHUNK_ELEMENTS = 1 << 20

_LEVEL = "level must be a number strictly between 0 and 1, such as 0.95; got {got!r}."
_RESAMPLES = "resamples must be an integer of at least 1, such as 1000; got {got!r}."
_SEED = "seed must be an integer in 0 … 2**63 − 1; got {got!r}."
_NO_SAMPLES = "no samples: the bootstrap needs n ≥ 1; got n = {got!r}."


def draw(
    statistic: Callable[[Tensor], Tensor], strata: Sequence[int], resamples: int, seed: int
) -> Tensor:
    """Values [resamples, ...] of a statistic of indices [R, n] drawn from each stratum apart."""
    # One generator per stratum: what is drawn must not depend on the size of the chunks.
    seeds = [torch_seed(int(seed) + k) for k in range(len(strata))]
    generators = [torch.Generator().manual_seed(one) for one in seeds]
    rows = max(1, CHUNK_ELEMENTS // sum(strata))
    parts = []
    for start in range(0, resamples, rows):
        R, columns, offset = min(rows, resamples - start), [], 0
        for size, generator in zip(strata, generators, strict=True):
            columns.append(offset + torch.randint(size, (R, size), generator=generator))
            offset += size
        parts.append(statistic(torch.cat(columns, dim=1)))
    return torch.cat(parts)


def draw_metric(
    kind: Kind, rows: Rows, options: dict[str, Any], resamples: int, seed: int
) -> Tensor:
    """Values [resamples, ...] of a metric, from its per-sample tensors [n, ...]."""
    rows, strata = tuple(row.detach().cpu() for row in rows), [len(rows[0])]
    if kind.stratified:
        check_strata(rows[1])
        order = rows[1].long().argsort(stable=True)
        rows = tuple(row[order] for row in rows)
        strata = [int((~rows[1]).sum()), int(rows[1].sum())]
    rank = None
    if kind.ranked:
        order = rows[0].argsort(stable=True)
        rows, rank = tuple(row[order] for row in rows), order.argsort()

    def statistic(index: Tensor) -> Tensor:
        index = index if rank is None else rank[index]
        if kind.weighted:
            return kind.value(*rows, counts(index).double(), **options)
        if rank is not None:
            index = _ascending(index)
        return kind.value(*(row[index] for row in rows), **options)

    return draw(statistic, strata, resamples, seed)


def cut_of(level: float, resamples: Tensor) -> Tensor:
    """Rank of the lower end among ascending values; the upper end has it from above."""
    tail = (1.0 - level) / 2 * (resamples - 1).double()
    return (tail + 1e-9).long()  # (1 − 0.8) / 2 · 100 is 10, not 9.99…


def check_options(n: Any, level: Any, resamples: Any, seed: Any) -> None:
    """Raise if an option of the bootstrap is out of range."""
    if not is_integer(n) or n < 1:
        raise ValueError(_NO_SAMPLES.format(got=n))
    if not is_number(level) or not 0 < level < 1:
        raise ValueError(_LEVEL.format(got=level))
    if not is_integer(resamples) or resamples < 1:
        raise ValueError(_RESAMPLES.format(got=resamples))
    if not is_integer(seed) or not 0 <= seed < 2**63:
        raise ValueError(_SEED.format(got=seed))


def _ascending(index: Tensor) -> Tensor:
    """Sort every row of indices [R, n] by counting."""
    # Position k holds the sample before which exactly k or fewer end: one mark where each ends.
    n = index.shape[1]
    ends = counts(index).cumsum(dim=1)
    marks = torch.zeros(len(index), n + 1, dtype=torch.int64)
    return marks.scatter_add_(1, ends, torch.ones_like(ends)).cumsum_(dim=1)[:, :n]
