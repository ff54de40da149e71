"""The delete-a-group jackknife over passes that are all at hand; ``PassStatistics`` streams it."""

import torch
from torch import Tensor

from bayes_dc.mc.statistics import MAX_GROUPS, entropy


def without_groups(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Means of all passes but those of one group; pass t is in group t mod J, J = min(T, 20).

    Args:
        samples: Class probabilities of every pass, float64 ``[T, B, C]``, T ≥ 2.

    Returns:
        Mean probabilities ``[J, B, C]`` and mean entropies ``[J, B]`` without each group.
    """
    T, B, C = samples.shape
    sizes = _sizes(T).to(samples.device)
    J = len(sizes)
    probs, entropies = samples.new_zeros((J, B, C)), samples.new_zeros((J, B))
    for t, one in enumerate(samples):
        probs[t % J] += one
        entropies[t % J] += entropy(one)
    return _without(probs, (T - sizes)[:, None, None]), _without(entropies, (T - sizes)[:, None])


def standard_errors(whole: Tensor, without: Tensor, T: int) -> Tensor:
    """Standard errors of statistics of T passes; formula and source in ``PassStatistics``.

    Args:
        whole: Statistics of all passes, float64 ``[…]``.
        without: The same without each group, ``[J, …]``.
        T: Number of passes, at least 2.

    Returns:
        Float64 ``[…]``; NaN where a statistic is infinite.
    """
    h = (T / _sizes(T)).to(whole.device).view(-1, *[1] * whole.ndim)
    J = len(h)
    corrected = J * whole - ((1 - 1 / h) * without).sum(dim=0)
    pseudo = h * whole - (h - 1) * without
    return ((pseudo - corrected).square() / (h - 1)).mean(dim=0).sqrt()


def _sizes(T: int) -> Tensor:
    """Passes in each group, float64 [J]."""
    J = min(T, MAX_GROUPS)
    return torch.tensor([T // J + (j < T % J) for j in range(J)], dtype=torch.float64)


def _without(sums: Tensor, left: Tensor) -> Tensor:
    """Means of what is left of group sums [J, …]; a difference may come out just below 0."""
    total = sum(sums, torch.zeros_like(sums[0]))
    return ((total - sums) / left).clamp(min=0.0)
