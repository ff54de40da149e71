"""State of the streaming statistics, and its two kernels for CUDA tensors.

What they compute is defined by the torch code of ``bayes_dc.mc.statistics``.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops._register import importing_triton

_LOADED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class PassState(NamedTuple):
    """Sums over the passes so far, for B inputs, C classes and J jackknife groups.

    Attributes:
        mean: Mean probabilities, float64 ``[B, C]``.
        m2: Sum of squared deviations from the mean, float64 ``[B, C]``.
        votes: Passes whose largest probability is this class, int64 ``[B, C]``.
        expected: Mean entropy, float64 ``[B]``.
        probs: Sums of probabilities over the passes of a group, float64 ``[J, B, C]``.
        entropies: Sums of entropies over the passes of a group, float64 ``[J, B]``.
        ranges: Least and largest sum, and least entry, of the rows without NaN, float64
            ``[3, B]``; None where they are not asked for.
    """

    mean: Tensor
    m2: Tensor
    votes: Tensor
    expected: Tensor
    probs: Tensor
    entropies: Tensor
    ranges: Tensor | None


def new_state(
    groups: int, B: int, C: int, device: torch.device, *, ranges: bool = False
) -> PassState:
    """The state before the first pass.

    Args:
        groups: Jackknife groups J, at least 1.
        B: Inputs.
        C: Classes.
        device: Where to accumulate.
        ranges: Also follow the sums and the least entry of the rows.

    Returns:
        Zeros in one piece of memory; ``ranges`` are infinite.
    """
    sizes = {
        "mean": (B, C),
        "m2": (B, C),
        "votes": (B, C),
        "expected": (B,),
        "probs": (groups, B, C),
        "entropies": (groups, B),
    }
    counts = [torch.Size(size).numel() for size in sizes.values()]
    memory = torch.zeros(sum(counts), dtype=torch.float64, device=device).split(counts)
    parts = {n: m.view(s) for (n, s), m in zip(sizes.items(), memory, strict=True)}
    parts["votes"] = parts["votes"].view(torch.int64)
    limits = None
    if ranges:
        limits = torch.full((3, B), torch.inf, dtype=torch.float64, device=device)
        limits[1].neg_()
    return PassState(**parts, ranges=limits)


def update(
    state: PassState, outputs: Tensor, *, first: int, softmax: bool, samples: Tensor | None = None
) -> None:
    """Add passes first, first + 1, … to the state, in place and in that order, in one launch.

    Args:
        state: State of passes 0 … first − 1, on a CUDA device.
        outputs: ``[passes, B, C]``, floating point, any strides.
        first: Number of the first pass.
        softmax: Whether outputs are logits; else they are taken as probabilities.
        samples: Where to write the probabilities, float64 ``[passes, B, C]``, contiguous, or None.

    Determinism:
        An input's state depends, to the bit, on its own rows only, and not on how passes are cut
        into calls.

    Accuracy:
        float64. Beside exp, log and the order of sums over classes, equal to the torch code.
    """
    if outputs.dtype not in _LOADED:  # an 8-bit type: exact in float32
        outputs = outputs.float()
    launch_update, _ = _triton()
    launch_update(outputs, *state, samples, first=first, softmax=softmax)


def summary(state: PassState, *, passes: int) -> tuple[Tensor, ...]:
    """Statistics of the passes added so far, in one launch.

    Args:
        state: The state, on a CUDA device.
        passes: Passes added, at least 1.

    Returns:
        The fields of ``bayes_dc.mc.statistics.Summary``, in their order, float64.
    """
    B, C = state.mean.shape
    classes = state.mean.new_empty((3, B, C))
    inputs = state.mean.new_empty((7, B))
    _, launch_summary = _triton()
    launch_summary(*state[:6], classes, inputs, T=passes)
    return fields(classes, inputs)


def fields(classes: Tensor, inputs: Tensor) -> tuple[Tensor, ...]:
    """The fields of a summary in what ``launch_summary`` wrote.

    Args:
        classes: ``[3, B, C]``.
        inputs: ``[7, B]``.

    Returns:
        As ``summary``; views.
    """
    mean, variance, mean_se = classes
    return mean, variance, *inputs[:5], mean_se, *inputs[5:]


def _triton() -> tuple[Callable[..., None], Callable[..., None]]:
    """The launchers; triton is imported with the first call."""
    with importing_triton("Statistics of CUDA tensors need"):
        from bayes_dc.ops.mc_stats.triton_summary import launch_summary
        from bayes_dc.ops.mc_stats.triton_update import launch_update
    return launch_update, launch_summary
