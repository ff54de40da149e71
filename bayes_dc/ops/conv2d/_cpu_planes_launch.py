"""Runs of ``_cpu_planes``: which convolutions it is for, sizes of tasks, arguments."""

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops._cpu_emit import LANES
from bayes_dc.ops._cpu_memory import Room
from bayes_dc.ops._cpu_tasks import do_tasks, scalar
from bayes_dc.ops.conv2d import _cpu_planes
from bayes_dc.ops.conv2d._cpu_ir import WIDTH
from bayes_dc.ops.conv2d._cpu_launch import TASKS_PER_THREAD, Ending, threads_for
from bayes_dc.ops.conv2d._cpu_operands import Source, by_mask, results_of
from bayes_dc.ops.conv2d._cpu_planes_ir import TILE
from bayes_dc.rng.numba_rng import GROUPS

_SHARE = 0.9
"""Most multiplications, of those of a lane for each output, that are worth the other kernel."""


def suits(source: Source, out: Tensor, weights: Tensor, channels: int, *, pool: bool) -> bool:
    """Whether neighbouring positions should be lanes; the results are the same.

    Args:
        source: Framed images.
        out: Result, ``[P, B, OH, OW, N]``, of the type of the sums.
        weights: Packed weights.
        channels: Outputs of a group.
        pool: Whether ``out`` takes the largest of 2 × 2 results.

    Returns:
        True where a step of one position is one element in both, and fewer products are made.
    """
    height, width = results_of(out, pool)
    line = source.images.stride(2)
    fits = (
        weights.dtype == torch.float32
        and weights.shape[1] == 1
        and weights.shape[2] <= _cpu_planes.TERMS
        and source.step == (1, 1)
        and source.images.stride(3) == out.stride(3) == 1
        and line >= width
        and line * pool + width <= _cpu_planes.POSITIONS
        # The largest of two lines are written over these two, whole vectors at a time.
        and (not pool or -(-(width // 2) // LANES) * LANES <= 2 * line)
    )
    if not fits:
        return False
    band = _band(height, width, line, 1 + pool)
    positions = (band - 1) * line + width
    computed = -(-height // band) * -(-positions // TILE) * TILE
    fewer = (channels + channels % 2) * computed <= _SHARE * WIDTH * height * width
    return positions >= TILE and fewer  # a tile reads no more than its band and those before


def over_planes(
    source: Source,
    out: Tensor,
    weights: Tensor,
    ending: Ending,
    tables: tuple[np.ndarray, np.ndarray],
    ids: tuple[Tensor, Tensor, Tensor],
    numbers: tuple[int, int, float],
    room: Room,
    *,
    channels: int,
    pool: bool,
) -> None:
    """One run into ``out`` [P, B, I, J, channels]; the arguments are those of ``gather``."""
    P, B, _, _, C = out.shape
    groups, _, terms, _ = weights.shape
    height, width = results_of(out, pool)
    key, sample_ids, pass_ids = (t.contiguous() for t in ids)
    keep, bits, scale = numbers
    S = sample_ids.shape[0]
    images = B // S
    p, s, b, i, _, g = source.strides(S, channels)
    band = _band(height, width, i, 1 + pool)
    threads = threads_for(P * B * C * height * width * terms)
    bands, masks = _task_shape(P * S, images * -(-height // band), groups, threads)
    out_p, out_b, out_i, _, out_n = out.stride()
    do_tasks(
        _cpu_planes,
        threads,
        (bands, masks, P * S, S, images, band, height, width),
        (source.images, p, s, b, i, g),
        (out, *by_mask((out_p, out_b), S), out_i, out_n, C // groups, groups),
        (weights, *ending[:3], int(ending.relu), int(pool), terms, *tables),
        (key, sample_ids, pass_ids, keep, bits),
        scale=scalar(scale, out.dtype),
        room=room,
    )


def _band(height: int, width: int, line: int, step: int) -> int:
    """Lines of a band, a multiple of ``step``: all bands alike, as few as there can be."""
    most = max(step, ((_cpu_planes.POSITIONS - width) // line + 1) // step * step)
    return -(-height // (step * -(-height // most))) * step


def _task_shape(masks: int, bands: int, groups: int, threads: int) -> tuple[int, int]:
    """Bands and masks of a task: the most that still keep every thread busy."""
    together = GROUPS
    wanted = TASKS_PER_THREAD * threads if threads > 1 else 1
    whole = bands
    while -(-whole // bands) * -(-masks // together) * groups < wanted:
        if bands > 1:
            bands = -(-bands // 2)
        elif together > 1:
            together //= 2
        else:
            break
    return bands, together
