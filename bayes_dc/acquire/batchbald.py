"""BatchBALD: the inputs whose labels together say most about the weights.

With w the weights, y_1 … y_b the labels of a batch and Y those chosen so far::

    I(y_1 … y_b; w) = Σ_i I(y_i; w | y_1 … y_{i−1})                            (chain rule)
    I(y; w | Y)     = Σ_Y p(Y) H(y | Y) − E_w H(y | w)
    p(y | Y)        = Σ_t p(t | Y) p_t(y)          p(t | Y) ∝ Π_{i chosen} p_t(Y_i)

The greedy batch is within 1 − 1/e of the best one, because the information is submodular. Its sums
over Y have C^b terms: all of them while there are at most ``configurations``, beyond that a sample
of so many Y ~ p(Y), each prolonged by a label y ~ p(y | Y) when an input is added. A gain is then
an unbiased estimate, with the same configurations for all candidates.

T passes tell apart T functions, so no batch holds more than log T nats: a large batch needs many
passes, or its last inputs are chosen by noise.

Source: Kirsch, van Amersfoort, Gal 2019, "BatchBALD: efficient and diverse batch acquisition for
deep Bayesian active learning", NeurIPS, arXiv 1906.08158.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.acquire.checks import check_samples, check_whole
from bayes_dc.metrics import expected_entropy
from bayes_dc.types import torch_seed

CHUNK_ELEMENTS = 1 << 24
"""Conditional probabilities that are held at once; 128 MiB of float64."""


class Batch(NamedTuple):
    """Inputs in the order in which they were chosen.

    Attributes:
        indices: Their positions among the candidates, int64 ``[count]``.
        gains: What each adds, I(y; w | those before), float64 ``[count]``, nats; the sum is the
            information of the batch.
    """

    indices: Tensor
    gains: Tensor


class _Configurations(NamedTuple):
    """Labels Y of the chosen inputs: how likely they are, and what they say about the passes.

    Attributes:
        share: p(Y), or 1 / M of a sample, [M].
        log_likelihood: log Π p_t(Y_i), [M, T].
    """

    share: Tensor
    log_likelihood: Tensor

    @property
    def posterior(self) -> Tensor:
        """p(t | Y), [M, T]."""
        return self.log_likelihood.softmax(dim=1)


def batchbald(samples: Tensor, count: int, *, configurations: int = 10_000, seed: int = 0) -> Batch:
    """Choose a batch whose labels together say most about the weights.

    Args:
        samples: Class probabilities of every pass ``[T, N, C]``, any floating dtype, **of joint
            samples**: pass t is one function for all N candidates (``joint_samples``). Masks of
            their own for every input make the batch that of BALD; nothing in the numbers tells.
        count: Inputs to choose, 1 … N.
        configurations: Label configurations that are held, at least C. Those of the first
            ⌊log_C configurations⌋ inputs are all of them; later ones are sampled.
        seed: Seed of that sample; 0 … 2**63 − 1.

    Returns:
        The batch; of equal gains the first candidate. Gains can only fall, up to the noise of the
        sample.

    Raises:
        ValueError: If an argument is out of range.

    Determinism:
        Equal arguments give equal bits on one device; the generators of torch are untouched.

    Cost:
        M · T · N · C multiply-adds for each input chosen, M ≤ ``configurations``.
    """
    samples = check_samples(samples)
    T, N, C = samples.shape
    count = check_whole(count, "count", 1, N)
    configurations = check_whole(configurations, "configurations", C, None)
    seed = torch_seed(check_whole(seed, "seed", 0, 2**63 - 1))
    generator = torch.Generator().manual_seed(seed)
    # NaN-free where a pass excludes a class: log 0 is −inf, and only Y that can occur are held.
    log_samples, aleatoric = samples.log(), expected_entropy(samples)
    one = torch.ones(1, dtype=torch.float64, device=samples.device)
    held = _Configurations(one, torch.zeros(1, T, dtype=torch.float64, device=samples.device))
    free = torch.ones(N, dtype=torch.bool, device=samples.device)
    indices: list[int] = []
    gains: list[Tensor] = []
    for _ in range(count):
        gain = _conditional_entropy(held, samples) - aleatoric
        best = int(torch.where(free, gain, -torch.inf).argmax())
        free[best] = False
        indices.append(best)
        gains.append(gain[best])
        if len(indices) < count:
            held = _prolong(held, samples[:, best], log_samples[:, best], configurations, generator)
    return Batch(torch.tensor(indices, device=samples.device), torch.stack(gains))


def _conditional_entropy(held: _Configurations, samples: Tensor) -> Tensor:
    """Σ_Y p(Y) H(y | Y) of every candidate, [N]."""
    T, N, C = samples.shape
    posterior = held.posterior
    step = max(1, CHUNK_ELEMENTS // (len(posterior) * C))
    parts = []
    for start in range(0, N, step):
        part = samples[:, start : start + step]
        predicted = (posterior @ part.reshape(T, -1)).view(len(posterior), -1, C)  # [M, n, C]
        parts.append(held.share @ torch.special.entr(predicted).sum(dim=2))
    return torch.cat(parts)


def _prolong(
    held: _Configurations, probs: Tensor, log_probs: Tensor, limit: int, generator: torch.Generator
) -> _Configurations:
    """Add the label of an input with these probabilities [T, C]: every one, or a drawn one."""
    predicted = held.posterior @ probs  # [M, C]
    M, C = predicted.shape
    joint = (held.share[:, None] * predicted).flatten()  # [M · C]
    if limit > M:
        rows = torch.arange(M * C, device=joint.device)[joint > 0]
        share = joint[rows]
        if len(rows) > limit:  # from here on a sample: as many as the limit, evenly spaced
            start = torch.rand((), generator=generator, dtype=torch.float64).item()
            points = (torch.arange(limit, dtype=torch.float64, device=joint.device) + start) / limit
            rows = rows[_inverse(share[None], points[None])[0]]
            share = joint.new_full((limit,), 1 / limit)
    else:
        points = torch.rand(M, 1, generator=generator, dtype=torch.float64).to(joint.device)
        rows = torch.arange(M, device=joint.device) * C + _inverse(predicted, points)[:, 0]
        share = held.share
    before, label = rows // C, rows % C
    return _Configurations(share, held.log_likelihood[before] + log_probs.T[label])


def _inverse(weights: Tensor, points: Tensor) -> Tensor:
    """Positions at which the running share of weights [R, n] passes points [R, k] in 0 … 1."""
    running = weights.cumsum(dim=1)
    found = torch.searchsorted(running, points * running[:, -1:], right=True)
    # Rounding may push the last point to the end; the last weight above 0 is meant.
    position = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, position, 0).amax(dim=1, keepdim=True)
    return found.minimum(last)
