"""State of the streaming statistics, and its two kernels for each device.

What they compute is defined by the torch code of ``bayes_dc.mc.statistics``.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops._register import importing_triton

_LOADED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_KEPT = 1 << 20
"""Most probabilities that an update keeps between its two kernels: 8 MiB."""
_LOADED_CPU = (torch.float64, torch.float32)


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
    memory = torch.zeros(
        state_entries(groups, B, C, ranges=ranges), dtype=torch.float64, device=device
    )
    state = state_in(memory, groups, B, C, ranges=ranges)
    if state.ranges is not None:
        state.ranges.fill_(torch.inf)
        state.ranges[1].neg_()
    return state


def state_entries(groups: int, B: int, C: int, *, ranges: bool = False) -> int:
    """Room for a state.

    Args:
        groups: Jackknife groups J.
        B: Inputs.
        C: Classes.
        ranges: Whether the sums and the least entry of the rows are followed.

    Returns:
        Number of float64.
    """
    return sum(map(prod, _sizes(groups, B, C).values())) + (3 * B if ranges else 0)


def state_in(memory: Tensor, groups: int, B: int, C: int, *, ranges: bool = False) -> PassState:
    """A state in memory of the caller; an update with ``first`` = 0 does not read it.

    Args:
        memory: float64 ``[state_entries(…)]``, contiguous; ``ranges`` come last.
        groups: Jackknife groups J.
        B: Inputs.
        C: Classes.
        ranges: Whether the sums and the least entry of the rows are followed.

    Returns:
        Views of the memory.
    """
    sizes = _sizes(groups, B, C)
    if ranges:
        sizes["ranges"] = (3, B)
    pieces = memory.split([prod(size) for size in sizes.values()])
    parts = {n: m.view(s) for (n, s), m in zip(sizes.items(), pieces, strict=True)}
    parts["votes"] = parts["votes"].view(torch.int64)
    return PassState(**{"ranges": None, **parts})


def _sizes(groups: int, B: int, C: int) -> dict[str, tuple[int, ...]]:
    return {
        "mean": (B, C),
        "m2": (B, C),
        "votes": (B, C),
        "expected": (B,),
        "probs": (groups, B, C),
        "entropies": (groups, B),
    }


def row_entries(passes: int, rows: int, C: int, *, ranges: bool = False) -> int:
    """Room that the update on a GPU needs for what it notes of every row.

    Args:
        passes: Most passes of the outputs.
        rows: Most rows of the outputs, passes times inputs.
        C: Classes.
        ranges: Whether the sums and the least entry of the rows are followed.

    Returns:
        Number of float64; few rows have their probabilities there too, which saves time.
    """
    kept = rows * C if rows * C <= _KEPT else 0
    return (6 if ranges else 4) * rows + passes + kept


class Launchers(NamedTuple):
    """What writes into a state and a summary, and allocates nothing.

    Attributes:
        update: Adds passes to a state.
        summary: Writes the two parts of a summary.
        dtypes: Types of outputs that ``update`` reads.
        notes_rows: Whether ``update`` needs ``rows``, float64 ``[row_entries(…)]``.
    """

    update: Callable[..., None]
    summary: Callable[..., None]
    dtypes: tuple[torch.dtype, ...]
    notes_rows: bool


def launchers(device: torch.device) -> Launchers:
    """The launchers of a device.

    Args:
        device: CPU or CUDA.

    Returns:
        Those of ``cpu.py``, or of ``triton_update.py`` and ``triton_summary.py``.
    """
    if device.type == "cuda":
        return Launchers(*_triton(), _LOADED, notes_rows=True)
    from bayes_dc.ops.mc_stats import cpu

    return Launchers(cpu.launch_update, cpu.launch_summary, _LOADED_CPU, notes_rows=False)


def update(
    state: PassState, outputs: Tensor, *, first: int, softmax: bool, samples: Tensor | None = None
) -> None:
    """Add passes first, first + 1, … to the state, in place and in that order, in one launch.

    Args:
        state: State of passes 0 … first − 1, on a CUDA device; with ``first`` = 0 it is written
            over, whatever it holds.
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
    ranges = state.ranges is not None
    passes, B, C = outputs.shape
    entries = row_entries(passes, passes * B, C, ranges=ranges)
    rows = outputs.new_empty(entries, dtype=torch.float64)
    launch_update(outputs, *state, samples, first=first, softmax=softmax, rows=rows)


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
