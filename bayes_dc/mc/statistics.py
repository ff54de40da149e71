"""Streaming statistics of Monte Carlo passes, in float64.

Passes, and groups of passes, are added one after another: the result of an input does not depend,
to the bit, on how T passes are cut into chunks, nor on the inputs beside it. Memory is O(B · C),
however large T is: beside the moments there are at most ``MAX_GROUPS`` partial sums, pass t going
to group t mod J, for the delete-a-group jackknife.

The torch code here is the definition; CUDA tensors take the kernels of ``bayes_dc.ops.mc_stats``.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops import mc_stats
from bayes_dc.types import Link

MAX_GROUPS = 20
_CLASSES_AT_ONCE = 1 << 14

_PROBABILITIES = (
    "link='identity' needs a model that returns class probabilities; its rows sum to "
    "{low:.4g} … {high:.4g} with a smallest entry of {smallest:.4g}. Use link='softmax' for logits."
)


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
        link: ``"softmax"`` if the passes are logits, ``"identity"`` if probabilities.
    """

    def __init__(
        self, T: int, B: int, C: int, device: torch.device, link: Link = "identity"
    ) -> None:
        self.groups = min(T, MAX_GROUPS)
        self.passes = 0
        self.link = link
        self._state = mc_stats.new_state(self.groups, B, C, device, ranges=link == "identity")

    def update(self, outputs: Tensor, samples: Tensor | None = None) -> None:
        """Add the next passes.

        Args:
            outputs: What the model returned, ``[passes, B, C]``, floating point, in pass order.
            samples: Where to write the class probabilities, float64 ``[passes, B, C]``, contiguous,
                or None.
        """
        first = self.passes
        self.passes += outputs.shape[0]
        if outputs.is_cuda:
            softmax = self.link == "softmax"
            mc_stats.update(self._state, outputs, first=first, softmax=softmax, samples=samples)
            return
        probs = outputs.double().contiguous()  # other strides, other order of sums
        if self.link == "softmax":
            probs = probs.softmax(dim=-1)
        if samples is not None:
            samples.copy_(probs)
        state = self._state
        if state.ranges is not None:
            _widen(state.ranges, probs)
        entropies = entropy(probs)
        votes = torch.nn.functional.one_hot(probs.argmax(dim=-1), probs.shape[-1])
        state.votes.add_(votes.sum(dim=0))
        for number, (one, one_entropy) in enumerate(zip(probs, entropies, strict=True), first):
            group = number % self.groups
            delta = one - state.mean
            state.mean.add_(delta / (number + 1))
            state.m2.add_(delta * (one - state.mean))
            state.expected.add_((one_entropy - state.expected) / (number + 1))
            state.probs[group] += one
            state.entropies[group] += one_entropy

    def limits(self) -> Tensor:
        """What tells probabilities from other numbers, over the rows without NaN so far.

        Only for ``link="identity"``.

        Returns:
            Least and largest sum of a row, and least entry: float64 ``[3]`` on the device; ∞, −∞,
            ∞ where there is no such row.
        """
        assert self._state.ranges is not None
        low, high, least = self._state.ranges
        return torch.stack([low.amin(), high.amax(), least.amin()])

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
        T, J, state = self.passes, self.groups, self._state
        if state.mean.is_cuda:
            return Summary(*mc_stats.summary(state, passes=T))
        ratio = 1.0 - _largest(state.votes) / T
        unknown = state.mean.isnan().any(dim=-1)  # argmax votes for NaN, without meaning
        expected, total = state.expected.clone(), entropy(state.mean)
        information = (total - expected).clamp_min(0.0)
        variance = state.m2 / max(T - 1, 1)
        corrected, entropy_se, information_se = information, *[torch.zeros_like(total)] * 2
        if J > 1:
            sizes = torch.full((J,), T // J, dtype=torch.float64, device=total.device)
            sizes[: T % J] += 1
            left = (T - sizes)[:, None]
            without = (_in_order(state.probs) - state.probs) / left[..., None]
            entropy_without = entropy(without)
            expected_without = (_in_order(state.entropies) - state.entropies) / left
            _, entropy_se = _jackknife(total, entropy_without, sizes, T)
            corrected, information_se = _jackknife(
                total - expected, entropy_without - expected_without, sizes, T
            )
        return Summary(
            mean=state.mean.clone(),
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


def check_probabilities(low: float, high: float, smallest: float) -> None:
    """Refuse rows that are no distributions.

    Args:
        low: Least sum of a row; ∞ where there is no row to judge.
        high: Largest sum of a row.
        smallest: Least entry.

    Raises:
        ValueError: If a sum is not 1 to a hundredth, or an entry is negative.
    """
    if low == math.inf and high == -math.inf:
        return
    if not (smallest >= 0 and abs(low - 1) < 1e-2 and abs(high - 1) < 1e-2):
        raise ValueError(_PROBABILITIES.format(low=low, high=high, smallest=smallest))


def entropy(probs: Tensor) -> Tensor:
    """H = −Σ_c p_c log p_c in nats over the last dimension, 0 log 0 = 0.

    Args:
        probs: ``[…, C]``.

    Returns:
        ``[…]``.
    """
    return _sum_classes(torch.special.entr(probs))


def _sum_classes(values: Tensor) -> Tensor:
    """Sum over the last dimension, in parts: torch shares a long sum between threads if alone."""
    return _in_order([part.sum(dim=-1) for part in values.split(_CLASSES_AT_ONCE, dim=-1)])


def _widen(ranges: Tensor, probs: Tensor) -> None:
    """Take the sums and least entries of the rows without NaN into ``ranges``."""
    known = ~probs.isnan().any(dim=-1)
    sums = _sum_classes(probs)
    low = torch.where(known, sums, torch.inf).amin(dim=0)
    high = torch.where(known, sums, -torch.inf).amax(dim=0)
    least = torch.where(known, probs.amin(dim=-1), torch.inf).amin(dim=0)
    torch.minimum(ranges[0], low, out=ranges[0])
    torch.maximum(ranges[1], high, out=ranges[1])
    torch.minimum(ranges[2], least, out=ranges[2])


def _in_order(parts: Tensor | Sequence[Tensor]) -> Tensor:
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
