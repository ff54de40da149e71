"""Streaming statistics of Monte Carlo passes on the CPU: launchers.

Shapes      as in triton_update.py and triton_summary.py; y of any strides, float32 or float64
Update      as there: passes ascend, one after another, for each input on its own; with first = 0
            from a state of no passes
Precision   float64 from the first operation on y
Order       classes ascend in every sum: neither chunks of passes nor the inputs beside change a bit
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``, a run of inputs at a time
Memory      none: neither torch nor the C library is asked for any
Cost        two exponentials and a logarithm for each (pass, input, class), about 30 ns
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops.mc_stats._cpu_statistics import summarise_inputs, update_inputs

_SMALL = 1 << 12
"""Entries below which a second thread costs more than it saves."""
_NONE_3, _NONE_2 = np.empty((0, 0, 0)), np.empty((0, 0))


def launch_update(
    y: Tensor,
    mean: Tensor,
    m2: Tensor,
    votes: Tensor,
    expected: Tensor,
    probs: Tensor,
    entropies: Tensor,
    ranges: Tensor | None,
    samples: Tensor | None,
    *,
    first: int,
    softmax: bool,
) -> None:
    """Add the passes of ``y`` to the state; see ``op.update``.

    Args:
        y: ``[passes, B, C]``, float32 or float64.
        mean: ``[B, C]``.
        m2: ``[B, C]``.
        votes: ``[B, C]``.
        expected: ``[B]``.
        probs: ``[J, B, C]``.
        entropies: ``[J, B]``.
        ranges: ``[3, B]`` or None.
        samples: ``[passes, B, C]`` or None.
        first: Number of the first pass.
        softmax: Whether ``y`` holds logits.
    """
    B, C = mean.shape
    if B == 0 or C == 0:  # the entropy of no classes is 0, as the state has it
        return
    state = [t.numpy() for t in (y, mean, m2, votes, expected, probs, entropies)]
    into = (
        _NONE_2 if ranges is None else ranges.numpy(),
        _NONE_3 if samples is None else samples.numpy(),
    )
    _share(lambda a, b: update_inputs(a, b, *state, *into, first, softmax), B, y.numel())


def launch_summary(
    mean: Tensor,
    m2: Tensor,
    votes: Tensor,
    expected: Tensor,
    probs: Tensor,
    entropies: Tensor,
    out_classes: Tensor,
    out_inputs: Tensor,
    *,
    T: int,
) -> None:
    """Write every field into the two outputs; see ``op.summary``.

    Args:
        mean: ``[B, C]``, as the following from ``launch_update``.
        m2: ``[B, C]``.
        votes: ``[B, C]``.
        expected: ``[B]``.
        probs: ``[J, B, C]``.
        entropies: ``[J, B]``.
        out_classes: ``[3, B, C]``.
        out_inputs: ``[7, B]``.
        T: Passes added.
    """
    tensors = (mean, m2, votes, expected, probs, entropies, out_classes, out_inputs)
    state = [t.numpy() for t in tensors]
    _share(lambda a, b: summarise_inputs(a, b, *state, T), mean.shape[0], probs.numel())


def _share(run: Callable[[int, int], None], inputs: int, entries: int) -> None:
    """All inputs, on as many threads as they are worth."""
    threads = torch.get_num_threads() if entries > _SMALL else 1
    each = max(1, -(-inputs // (4 * threads)))
    starts = iter(range(0, inputs, each))  # shared: one thread at a time takes a number

    def work() -> None:
        for start in starts:
            run(start, min(start + each, inputs))

    _threads.share(work, threads)
