"""Keyed dropout on the CPU: launcher.

Shapes      x, out [P, S, U, V], any strides, a zero stride of x included
Mask        rng/SPEC.md (Dropout), made for a part of the rows at a time and used at once
Precision   one product, rounded to the type of ``out``
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      one byte for each unit of 2**22 elements, or of one sample if that is larger
Cost        a word of the generator per digit of p and 32 units; about 2 ns for an element
"""

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops.dropout._cpu_bits import UNITS, fill_dropped

_ELEMENTS = 1 << 22
"""Elements whose masks are held together."""
_SMALL = 1 << 15
"""Units below which a second thread costs more than it saves."""


def launch_dropout(
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    by_channel: bool,
) -> None:
    """Write scale · x where a unit is kept, 0 elsewhere; see ``reference.forward``.

    Args:
        x: ``[P, S, U, V]``.
        key: The two words of the call's key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, S, U, V]``.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor on what is kept.
        by_channel: Whether a unit is one of the U channels, or an element.
    """
    P, S, U, V = x.shape
    if x.numel() == 0:
        return
    units = U if by_channel else U * V
    ids = [t.contiguous().numpy() for t in (key, sample_ids, pass_ids)]
    samples = max(1, min(S, _ELEMENTS // (U * V)))
    passes = max(1, _ELEMENTS // (S * U * V)) if samples == S else 1
    for p in range(0, P, passes):
        for s in range(0, S, samples):
            part = (slice(p, p + passes), slice(s, s + samples))
            into = out[part]
            dropped = np.empty((into.shape[0] * into.shape[1], units), np.uint8)
            _fill(dropped, p * S + s, ids, keep, bits)
            torch.mul(x[part], scale, out=into)
            mask = torch.from_numpy(dropped).view(torch.bool)
            into.masked_fill_(mask.view(*into.shape[:3], 1 if by_channel else V), 0)


def _fill(dropped: np.ndarray, first: int, ids: list[np.ndarray], keep: int, bits: int) -> None:
    """Make the bytes of all rows, on as many threads as they are worth."""
    blocks = dropped.shape[0] * -(-dropped.shape[1] // UNITS)
    threads = torch.get_num_threads() if dropped.size * bits > _SMALL else 1
    each = max(1, -(-blocks // (4 * threads)))
    starts = iter(range(0, blocks, each))  # shared: one thread at a time takes a number

    def work() -> None:
        for start in starts:
            fill_dropped(*(dropped, start, min(start + each, blocks), first), *ids, keep, bits)

    _threads.share(work, threads)
