"""Streaming statistics of Monte Carlo passes, in float64.

Passes, and groups of passes, are added one after another: the result of an input does not depend,
to the bit, on how T passes are cut into chunks, nor on the inputs beside it. Memory is O(B · C),
however large T is: beside the moments there are at most ``MAX_GROUPS`` partial sums, pass t going
to group t mod J, for the delete-a-group jackknife.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_GROUPS = 20


class Summary(NamedTuple):
    """What ``PassStatistics.summary`` returns; fields as in ``Prediction``."""

    mean: Tensor
    variance: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    mutual_information_corrected: Tensor
    variation_ratio: Tensor
    mean_se: Tensor
    entropy_se: Tensor
    mutual_information_se: Tensor


class PassStatistics:
    """Accumulates class probabilities of T passes over B inputs.

    Args:
        T: Number of passes to come; fixes the number of jackknife groups, min(T, 20).
        B: Inputs.
        C: Classes.
        device: Where to accumulate.
    """

    def __init__(self, T: int, B: int, C: int, device: torch.device) -> None:
        self.groups = min(T, MAX_GROUPS)
        self.passes = 0

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._mean, self._m2, self._expected = zeros(B, C), zeros(B, C), zeros(B)
        self._probs, self._entropy = zeros(self.groups, B, C), zeros(self.groups, B)
        self._votes = torch.zeros(B, C, dtype=torch.int64, device=device)

    def update(self, probs: Tensor) -> None:
        """Add the next passes.

        Args:
            probs: Class probabilities ``[passes, B, C]``, float64, in pass order.
        """
        entropies = entropy(probs)
        votes = torch.nn.functional.one_hot(probs.argmax(dim=-1), probs.shape[-1])
        self._votes += votes.sum(dim=0)
        for one, one_entropy in zip(probs, entropies, strict=True):
            group = self.passes % self.groups
            self.passes += 1
            delta = one - self._mean
            self._mean += delta / self.passes
            self._m2 += delta * (one - self._mean)
            self._expected += (one_entropy - self._expected) / self.passes
            self._probs[group] += one
            self._entropy[group] += one_entropy

    def summary(self) -> Summary:
        """Statistics of the passes added so far.

        The corrected mutual information and the standard errors of entropy and mutual information
        come from the delete-a-group jackknife with groups of unequal size::

            θ_J = J θ − Σ_j (1 − m_j / T) θ_(j)
            se² = 1/J Σ_j (τ_j − θ_J)² / (h_j − 1),  h_j = T / m_j,  τ_j = h_j θ − (h_j − 1) θ_(j)

        with θ_(j) the statistic without the m_j passes of group j.

        Returns:
            ``Summary``; standard errors and variance are 0 for one pass.

        Source:
            Busing, Meijer, van der Leeden 1999, *Delete-m jackknife for unequal m*.
        """
        T, J = self.passes, self.groups
        ratio = 1.0 - _largest(self._votes) / T
        unknown = self._mean.isnan().any(dim=-1)  # argmax votes for NaN, without meaning
        expected, total = self._expected.clone(), entropy(self._mean)
        information = (total - expected).clamp_min(0.0)
        variance = self._m2 / max(T - 1, 1)
        corrected, entropy_se, information_se = information, *[torch.zeros_like(total)] * 2
        if J > 1:
            sizes = torch.full((J,), T // J, dtype=torch.float64, device=total.device)
            sizes[: T % J] += 1
            left = (T - sizes)[:, None]
            without = (_in_order(self._probs) - self._probs) / left[..., None]
            entropy_without = entropy(without)
            expected_without = (_in_order(self._entropy) - self._entropy) / left
            _, entropy_se = _jackknife(total, entropy_without, sizes, T)
            corrected, information_se = _jackknife(
                total - expected, entropy_without - expected_without, sizes, T
            )
        return Summary(
            mean=self._mean.clone(),
            variance=variance,
            entropy=total,
            expected_entropy=expected,
            mutual_information=information,
            mutual_information_corrected=corrected,
            variation_ratio=ratio.masked_fill(unknown, torch.nan),
            mean_se=(variance / T).sqrt(),
            entropy_se=entropy_se,
            mutual_information_se=information_se,
        )


def entropy(probs: Tensor) -> Tensor:
    """H = −Σ_c p_c log p_c in nats over the last dimension, 0 log 0 = 0.

    Args:
        probs: ``[…, C]``.

    Returns:
        ``[…]``.
    """
    return torch.special.entr(probs).sum(dim=-1)


def _in_order(parts: Tensor) -> Tensor:
    """Sum over the first dimension; torch's own takes another order for other shapes."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def _largest(votes: Tensor) -> Tensor:
    """Votes of the most voted class; 0 where there is no class."""
    return votes.amax(dim=-1).double() if votes.shape[-1] else votes.sum(dim=-1).double()


def _jackknife(full: Tensor, without: Tensor, sizes: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """Bias-corrected value and standard error from leave-one-group-out values [J, B]."""
    J = sizes.numel()
    ratio = (T / sizes)[:, None]
    corrected = J * full - _in_order((1.0 - 1.0 / ratio) * without)
    pseudo = ratio * full - (ratio - 1.0) * without
    variance = _in_order((pseudo - corrected).square() / (ratio - 1.0)) / J
    return corrected, variance.sqrt()
