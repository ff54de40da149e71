"""Runs of the convolution's CPU kernels: threads, sizes of tasks, arguments, memory."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops._cpu_memory import Room, total
from bayes_dc.ops._cpu_pack import packed_shape
from bayes_dc.ops._cpu_tasks import do_tasks, scalar, sums_of
from bayes_dc.ops.conv2d import _cpu_gather, _cpu_planes
from bayes_dc.ops.conv2d._cpu_ir import ROWS, WIDTH
from bayes_dc.ops.conv2d._cpu_operands import (
    Pair,
    Source,
    by_mask,
    copied,
    frame_of,
    images_of_a_part,
    is_depthwise,
    results_of,
    taps_of,
)
from bayes_dc.rng.numba_rng import GROUPS

SMALL = 1 << 21
"""Multiply-adds below which a second thread costs more than it saves."""
TASKS_PER_THREAD = 4
_FEW_ROWS = 64
"""Rows of a task below which masking its weights takes a share of the time worth avoiding."""


def threads_for(products: int) -> int:
    """Threads that so many multiply-adds are worth."""
    return torch.get_num_threads() if products > SMALL else 1


class Ending(NamedTuple):
    """What is done to sums before they are written, a lane for each of packed weights."""

    bias: Tensor
    factors: Tensor | int
    summands: Tensor | int
    relu: bool


def ending_of(
    bias: Tensor | None,
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None,
    N: int,
    weights: Tensor,
    room: Room,
) -> Ending:
    """Bias and epilogue in lanes; those beyond the outputs are 0."""
    groups, tiles = weights.shape[:2]
    lanes = room.tensor((3, groups, tiles, WIDTH), weights.dtype).zero_()
    scale, shift, relu = epilogue or (None, None, False)
    if scale is None and shift is not None:
        lanes[1] = 1
    for row, vector in zip(lanes, (bias, scale, shift), strict=True):
        if vector is not None:
            row.view(groups, -1)[:, : N // groups] = vector.view(groups, -1)
    if scale is None and shift is None:
        return Ending(lanes[0], 0, 0, relu)
    return Ending(lanes[0], lanes[1], lanes[2], relu)


def gather(
    source: Source,
    out: Tensor,
    weights: Tensor,
    ending: Ending,
    tables: tuple[np.ndarray, np.ndarray],
    ids: tuple[Tensor, Tensor, Tensor],
    numbers: tuple[int, int, float],
    room: Room,
    *,
    lanewise: bool,
    channels: int,
    along_inputs: int = 0,
    pool: bool = False,
) -> None:
    """One run of ``_cpu_gather`` into ``out`` [P, B, I, J, channels]; offsets count bytes."""
    P, B, I, J, C = out.shape
    if I == 0 or J == 0:
        return
    groups, tiles = weights.shape[:2]
    key, sample_ids, pass_ids = (t.contiguous() for t in ids)
    keep, bits, scale = numbers
    places, offsets = tables
    terms = len(places)
    four = 4 if pool else 1  # results of a written one
    S, R = sample_ids.shape[0], B // sample_ids.shape[0] * I * J * four
    threads = threads_for(out.numel() * four * terms)
    rows, masks = _task_shape(P * S, R, groups * tiles, threads)
    do_tasks(
        _cpu_gather,
        threads,
        (rows, masks, P * S, S, R, I, J),
        (source.images, *source.strides(S, channels)),
        (out, *by_mask(out.stride()[:2], S), *out.stride()[2:]),
        (C // groups, tiles, groups),
        (weights.contiguous(), *ending[:3], int(ending.relu), int(pool)),
        (terms, terms, places, offsets),
        (int(along_inputs > 0), int(lanewise), along_inputs),
        (key, sample_ids, pass_ids, keep, bits),
        scale=scalar(scale, out.dtype),
        room=room,
    )


def _task_shape(masks: int, R: int, columns: int, threads: int) -> tuple[int, int]:
    """Rows (a multiple of 8) and masks of a task: the most that still keep every thread busy."""
    rows = min(_cpu_gather.TASK_ROWS, -(-R // ROWS) * ROWS)
    together = GROUPS if rows <= _cpu_gather.TASK_ROWS // GROUPS else 1
    wanted = TASKS_PER_THREAD * threads if threads > 1 else 1
    while -(-R // rows) * -(-masks // together) * columns < wanted:
        if together > 1:
            together //= 2
        elif rows > _FEW_ROWS:
            rows = -(-rows // 2 // ROWS) * ROWS
        else:
            break
    return rows, together


def workspace_bytes(
    x: Tensor,
    w: Tensor,
    out: Tensor,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    pool: bool = False,
) -> int:
    """Size of the workspace of ``launch_fwd``; it does not depend on the number of images.

    Args:
        x: A tensor with the sizes of an image, the strides and the dtype of x, on any device.
        w: The same for the weights.
        out: For the result.
        stride: Along height and width.
        padding: Zeros on both sides.
        dilation: Distance of taps.
        groups: Groups of channels.
        pool: Whether ``out`` takes the largest of 2 × 2 results.

    Returns:
        Bytes, for ``torch.get_num_threads()`` threads. With less, fewer threads work.
    """
    dtype, depthwise = sums_of(out.dtype), is_depthwise(w, groups)
    taps, size = taps_of(w, padding, dilation), results_of(out, pool)
    frame = frame_of(x, taps, size, stride, depthwise)
    packed = packed_shape(w.shape[0], w.shape[1:].numel(), 1 if depthwise else groups)
    counts = [torch.Size(packed).numel(), 3 * packed[0] * packed[1] * packed[3]]
    counts += [w.numel()] * (w.dtype != dtype)
    images = copied(x, out, frame)
    counts += [images_of_a_part(images, dtype) * count for count in images]
    scratch = max(k.scratch_bytes(dtype.itemsize) for k in (_cpu_gather, _cpu_planes))
    threads = [scratch] * torch.get_num_threads()
    return total(*(count * dtype.itemsize for count in counts), *threads)
