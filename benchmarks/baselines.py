"""What people would use instead: plain PyTorch, eager and compiled, at p = 0.5.

Masks come from torch's generator, so a result is checked by its mean and variance (``gates.py``).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]


def broadcast(x: Tensor, w: Tensor) -> Tensor:
    """A mask for every row, from a copy of W [N, K] for every row of x [M, K]: y [M, N].

    Memory: ``broadcast_bytes``.
    """
    copies = F.dropout(w.expand(len(x), *w.shape), 0.5, training=True)
    return torch.bmm(copies, x.unsqueeze(2)).squeeze(2)


def broadcast_bytes(M: int, N: int, K: int, device: str, *, backward: bool) -> int:
    """Bytes that ``broadcast`` needs in float32 beyond its inputs and outputs.

    cuda: the copies and a byte of mask for each of M·N·K weights, with the backward two gradients
    of copies more. cpu: the mask is float32, and the backward needs one copy more.
    """
    forward, both = {"cuda": (4 + 1, 4 + 1 + 4 + 4), "cpu": (4 + 4, 4 + 4 + 4)}[device]
    return (both if backward else forward) * M * N * K


def expanded(x: Tensor, w: Tensor) -> Tensor:
    """A mask for every group, from a copy of W [N, K] for every group of x [G, R, K]: [G, R, N]."""
    copies = F.dropout(w.expand(len(x), *w.shape), 0.5, training=True)
    return torch.bmm(x, copies.transpose(1, 2))


def one_mask(x: Tensor, w: Tensor) -> Tensor:
    """One mask for all rows of x [R, K]: y [R, N]."""
    return F.linear(x, F.dropout(w, 0.5, training=True))


def loop(step: Function) -> Function:
    """``step`` for each group of x [G, R, K] in turn: y [G, R, N]."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        return torch.stack([step(group, w) for group in x])

    return run


def grouped_convolution(x: Tensor, w: Tensor, stride: int = 1) -> Tensor:
    """A mask for every image of x [B, C, H, W], from a copy of w [N, C, k, k] for each.

    One convolution in B groups, padded by k // 2.
    """
    B, N, k = len(x), *w.shape[::3]
    copies = F.dropout(w.expand(B, *w.shape), 0.5, training=True)
    y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), copies.flatten(0, 1), None, stride, k // 2, 1, B)
    return y.view(B, N, *y.shape[2:])


def unfolded_convolution(x: Tensor, w: Tensor, stride: int = 1) -> Tensor:
    """The same by products of the copies with the patches of each image."""
    B, N, k = len(x), *w.shape[::3]
    copies = F.dropout(w.flatten(1).expand(B, -1, -1), 0.5, training=True)
    patches = F.unfold(x, k, padding=k // 2, stride=stride)
    size = ((n + 2 * (k // 2) - k) // stride + 1 for n in x.shape[2:])
    return torch.bmm(copies, patches).view(B, N, *size)


def two_products(x: Tensor, w: Tensor) -> Tensor:
    """Moment-matched draws: mean x Wᵀ, variance (x²)(W²)ᵀ at p = 0.5; y [M, N]."""
    mean, variance = F.linear(x, w), F.linear(x * x, w * w)
    return mean + variance.sqrt() * torch.randn_like(mean)


def compiled(function: Function, mode: str = "default") -> Function:
    """``function`` by torch.compile for the shapes it meets first.

    Forgets what was compiled before: otherwise a second shape would be compiled for any shape, and
    after eight torch would go back to eager.
    """
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, mode=mode)


def with_backward(function: Function) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """Outputs and both gradients of ``function(x, w)``, as a call of (x, w, gy)."""

    def both(x: Tensor, w: Tensor, gy: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(function(x, w), (x, w), gy)

    return both


class Statistics(NamedTuple):
    """What a prediction reports, from T passes of class probabilities."""

    mean: Tensor
    variance: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    variation_ratio: Tensor


class Sums(NamedTuple):
    """Sums over passes: of p, p² [B, C], of entropies [B] and of votes [B, C]."""

    probs: Tensor
    squares: Tensor
    entropies: Tensor
    votes: Tensor


def no_passes(rows: int, classes: int, device: str) -> Sums:
    """Sums of no passes."""
    wide = torch.zeros(3, rows, classes, device=device)
    return Sums(wide[0], wide[1], torch.zeros(rows, device=device), wide[2])


def add_pass(sums: Sums, logits: Tensor) -> Sums:
    """Sums with one more pass of logits [B, C]."""
    probs = logits.softmax(dim=1)
    votes = F.one_hot(probs.argmax(dim=1), probs.shape[1])
    return Sums(
        sums.probs + probs,
        sums.squares + probs * probs,
        sums.entropies + _entropy(probs),
        sums.votes + votes,
    )


def statistics(sums: Sums, passes: int) -> Statistics:
    """Of ``passes`` passes."""
    mean = sums.probs / passes
    entropy, expected = _entropy(mean), sums.entropies / passes
    variance = (sums.squares / passes - mean * mean).clamp(min=0) * (passes / max(passes - 1, 1))
    ratio = 1 - sums.votes.amax(dim=1) / passes
    return Statistics(mean, variance, entropy, expected, entropy - expected, ratio)


def all_passes(logits: Tensor) -> Statistics:
    """Of logits [T, B, C] at once."""
    probs = logits.softmax(dim=2)
    votes = F.one_hot(probs.argmax(dim=2), probs.shape[2]).sum(dim=0)
    sums = Sums(probs.sum(0), (probs * probs).sum(0), _entropy(probs).sum(0), votes)
    return statistics(sums, len(logits))


def masked_pass(weights: Iterable[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """One pass of an MLP with one mask for each weight matrix, shared by the batch: logits."""
    *hidden, last = weights
    for w, b in hidden:
        x = F.relu(F.linear(x, F.dropout(w, 0.5, training=True), b))
    return F.linear(x, F.dropout(last[0], 0.5, training=True), last[1])


def loop_prediction(
    step: Callable[..., Sums], weights: list[tuple[Tensor, Tensor]], x: Tensor, passes: int
) -> Statistics:
    """``passes`` calls of ``step``, which is ``next_pass`` or its compiled form."""
    sums = no_passes(len(x), len(weights[-1][0]), str(x.device))
    for _ in range(passes):
        sums = step(sums, weights, x)
    return statistics(sums, passes)


def next_pass(sums: Sums, weights: list[tuple[Tensor, Tensor]], x: Tensor) -> Sums:
    """One pass and its statistics."""
    return add_pass(sums, masked_pass(weights, x))


def folded_without_masks(model: nn.Module, passes: int) -> Callable[[Tensor], Statistics]:
    """All passes in one forward of T·B rows, no masks: the price of uncertainty that is free."""

    def run(x: Tensor) -> Statistics:
        rows = x.expand(passes, *x.shape).reshape(passes * len(x), *x.shape[1:])
        return all_passes(model(rows).unflatten(0, (passes, len(x))))

    return run


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(dim=-1)
