"""Keyed dropout on the CPU: launcher.

Shapes      x, out [P, S, U, V], any strides, a zero stride of x included
Mask        rng/SPEC.md (Dropout), made for 8192 units at a time and used at once
Precision   one product in float32 (float64 for float64), rounded to the type of ``out``
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      11 KB per thread; other types than those of the product are converted 1 MiB at a time.
            All of it is taken from ``workspace``, if given
Cost        a word of the generator per digit of p and 32 units, and a pass over memory
"""

import torch
from torch import Tensor

from bayes_dc.ops._cpu_memory import PART, Room, parts, total
from bayes_dc.ops._cpu_tasks import do_tasks, scalar, sums_of
from bayes_dc.ops.dropout import _cpu_bits

_SMALL = 1 << 15
"""Elements below which a second thread costs more than it saves."""
_WORKSPACE = "ops.dropout.cpu.workspace_bytes"


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
    workspace: Tensor | None = None,
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
        workspace: uint8 ``[workspace_bytes(x, out)]``, overwritten: with it, and with contiguous
            ids, nothing of 4 KiB or more is allocated. None allocates.

    Raises:
        ValueError: If ``workspace`` is not such a tensor, or too small.
    """
    P, S, _, _ = x.shape
    if x.numel() == 0:
        return
    room, dtype = Room(workspace, _WORKSPACE), sums_of(out.dtype)
    ids = tuple(t.contiguous() for t in (key, sample_ids, pass_ids))
    if x.dtype == out.dtype == dtype:
        _run(x, out, ids, keep, bits, scale, by_channel, room)
        return
    for p, s, _ in parts(P, S, 1, _samples_of_a_part(x, dtype)):
        inner = room.inner()
        part = inner.tensor(x[p, s].shape, dtype).copy_(x[p, s])
        here = (ids[0], ids[1][s], ids[2][p])
        _run(part, part, here, keep, bits, scale, by_channel, inner)
        out[p, s] = part


def workspace_bytes(x: Tensor, out: Tensor) -> int:
    """Size of the workspace of ``launch_dropout``; it does not depend on passes and samples.

    Args:
        x: A tensor with the U, V and dtype of x, on any device.
        out: The same for the result.

    Returns:
        Bytes, for ``torch.get_num_threads()`` threads. With less, fewer threads work.
    """
    dtype = sums_of(out.dtype)
    threads = [_cpu_bits.scratch_bytes(dtype.itemsize)] * torch.get_num_threads()
    if x.dtype == out.dtype == dtype:
        return total(*threads)
    part = _samples_of_a_part(x, dtype) * x.shape[2:].numel()
    return total(part * dtype.itemsize, *threads)


def _samples_of_a_part(x: Tensor, dtype: torch.dtype) -> int:
    """Samples that are converted together, at least one."""
    return max(1, PART // max(1, x.shape[2:].numel() * dtype.itemsize))


def _run(
    x: Tensor,
    out: Tensor,
    ids: tuple[Tensor, ...],
    keep: int,
    bits: int,
    scale: float,
    by_channel: bool,
    room: Room,
) -> None:
    """Make the masks of all rows and apply them, on as many threads as they are worth."""
    do_tasks(
        _cpu_bits,
        torch.get_num_threads() if x.numel() > _SMALL else 1,
        (*x.shape, int(by_channel), x, *x.stride(), out, *out.stride()),
        (*ids, keep, bits),
        scale=scalar(scale, out.dtype),
        room=room,
    )
