"""DropConnect convolution on the CPU: launchers.

Shapes      x [P, B, H, W, C]   w [N, KH, KW, C / groups]   bias [N] or null   gy [P, B, OH, OW, N];
            S = B sample ids, or one for all images of a pass
Mask        bits of rng/SPEC.md v1, k = (kh, kw, c); made for 128 weights × 32 outputs at a time
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``
Order       sums run over k, n or positions in ascending order, in chains of a fixed length: the
            same bits for any batch, place in it, memory format, blocking and number of threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      0.1 MB of scratch per thread, whatever the shape; a copy of the input with its padding
            in its memory format and the type of the sums (none where it is so already; passes that
            share images share the copy), and one of the weights
Cost        multiply-adds of the dense product, R = OH · OW for every masked weight; see README.md
"""

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops.conv2d import _cpu_dw, _cpu_gather
from bayes_dc.ops.conv2d._cpu_ir import ROWS, WIDTH
from bayes_dc.ops.conv2d._cpu_operands import (
    Pair,
    Result,
    Source,
    by_mask,
    dtype_of,
    input_tiles,
    is_depthwise,
    output_tiles,
    phases,
    rows_or_planes,
    some_taps,
    source_of,
    taps_of,
)
from bayes_dc.ops.conv2d._cpu_tasks import do_tasks, scalar, threads_for
from bayes_dc.rng.numba_rng import GROUPS

_TASKS_PER_THREAD = 4
_FEW_ROWS = 64
"""Rows of a task below which masking its weights takes a share of the time worth avoiding."""


def launch_fwd(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """Write the masked convolution into ``out``; see ``bayes_dc.ops.conv2d.reference.forward``.

    Args:
        x: Images, ``[P, B, H, W, C]``, any strides.
        w: Weights, ``[N, KH, KW, C / groups]``, any strides.
        bias: ``[N]``, or None.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[B]`` or ``[1]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, B, OH, OW, N]``.
        stride: Along height and width.
        padding: Zeros on both sides.
        dilation: Distance of taps.
        groups: Groups of channels.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    if out.numel() == 0:
        return
    if w.numel() == 0:
        out.copy_(torch.zeros(()) if bias is None else bias)
        return
    taps = taps_of(w, padding, dilation)
    size = (out.shape[2], out.shape[3])
    depthwise = is_depthwise(w, groups)
    source = source_of(x, taps, size, stride, depthwise, dtype_of(out))
    per_group = w.shape[3]
    places = np.arange(len(taps) * per_group)
    offsets = source.offsets(taps, per_group)
    weights = output_tiles(w, 1 if depthwise else groups, dtype_of(out))
    with Result(out) as result:
        _gather(
            source,
            result,
            weights,
            bias,
            (places, offsets),
            (key, sample_ids, pass_ids),
            (keep, bits, scale),
            groups=1 if depthwise else groups,
            lanewise=depthwise,
            channels=per_group,
        )


def launch_dx(
    gy: Tensor,
    w: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """Write the input gradient into ``out``; see ``bayes_dc.ops.conv2d.reference.grad_input``.

    A stride divides the input into phases, positions that meet the same taps; each is one call.

    Args:
        gy: Gradient of the output, ``[P, B, OH, OW, N]``, any strides.
        w: Weights, ``[N, KH, KW, C / groups]``, any strides.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[B]`` or ``[1]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, B, H, W, C]``.
        stride: Along height and width.
        padding: Zeros on both sides.
        dilation: Distance of taps.
        groups: Groups of channels.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    if out.numel() == 0:
        return
    if gy.numel() == 0:
        out.zero_()
        return
    N, KH, KW, per_group = w.shape
    depthwise = is_depthwise(w, groups)
    outputs = 1 if depthwise else N // groups  # that a tap of an input reads
    tiles = output_tiles if depthwise else input_tiles
    weights = tiles(w, 1 if depthwise else groups, dtype_of(out))
    size = (out.shape[2], out.shape[3])
    found = phases((KH, KW), size, stride, padding, dilation)
    every = [tap for _, taps, _ in found for _, tap in taps]
    source = source_of(gy, every, found[0][2], (1, 1), depthwise, dtype_of(out))
    with Result(out) as result:
        for (h, v), taps, _ in found:
            numbers = np.array([number for number, _ in taps], np.int64)
            _gather(
                source,
                result[:, :, h :: stride[0], v :: stride[1]],
                some_taps(weights, numbers, outputs),
                None,
                (
                    np.repeat(numbers * per_group, outputs),
                    source.offsets([tap for _, tap in taps], outputs),
                ),
                (key, sample_ids, pass_ids),
                (keep, bits, scale),
                groups=1 if depthwise else groups,
                lanewise=depthwise,
                channels=outputs,
                along_inputs=0 if depthwise else outputs,
            )


def launch_dw(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """Write the weight gradient into ``out``; see ``bayes_dc.ops.conv2d.reference.grad_weight``.

    Args:
        gy: Gradient of the output, ``[P, B, OH, OW, N]``, any strides.
        x: Images, ``[P, B, H, W, C]``, any strides.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[B]`` or ``[1]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[N, KH, KW, C / groups]``.
        stride: Along height and width.
        padding: Zeros on both sides.
        dilation: Distance of taps.
        groups: Groups of channels.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    if out.numel() == 0:
        return
    if gy.numel() == 0:
        out.zero_()
        return
    dtype = dtype_of(out)
    depthwise = is_depthwise(out, groups)
    N, _, _, per_group = out.shape
    taps = taps_of(out, padding, dilation)
    rows = (gy.shape[2], gy.shape[3])
    source = source_of(x, taps, rows, stride, depthwise, dtype)
    K = len(taps) * per_group
    offsets = source.offsets(taps, per_group)
    last = np.full(-K % ROWS, offsets[-1])
    columns = 1 if depthwise else groups
    channels = N // columns
    tiles = -(-channels // WIDTH)
    result = torch.empty((columns, tiles, K, WIDTH), dtype=dtype)
    upstream = rows_or_planes(gy.to(dtype))
    P, B = gy.shape[:2]
    S, images = sample_ids.shape[0], B // sample_ids.shape[0]
    threads = threads_for(gy.numel() * K)
    terms = _cpu_dw.TASK_TERMS
    while threads > 1 and terms > ROWS and columns * tiles * -(-K // terms) < 2 * threads:
        terms //= 2
    do_tasks(
        _cpu_dw,
        threads,
        (terms, P * S, S, images * rows[0] * rows[1], *rows),
        (source.images, *source.strides(S, per_group)),
        (upstream, *by_mask(upstream.stride()[:2], S), *upstream.stride()[2:]),
        (channels, tiles, columns),
        (result, K, np.arange(K), np.append(offsets, last) * dtype.itemsize, int(depthwise)),
        (key.contiguous(), sample_ids.contiguous(), pass_ids.contiguous(), keep, bits),
        scale=scalar(scale, dtype),
    )
    by_output = result.transpose(2, 3).reshape(columns, tiles * WIDTH, K)[:, :channels]
    out.copy_(by_output.reshape(out.shape))


def _gather(
    source: Source,
    out: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    tables: tuple[np.ndarray, np.ndarray],
    ids: tuple[Tensor, Tensor, Tensor],
    numbers: tuple[int, int, float],
    *,
    groups: int,
    lanewise: bool,
    channels: int,
    along_inputs: int = 0,
) -> None:
    """One run of ``_cpu_gather`` into ``out`` [P, B, I, J, channels]; offsets count elements."""
    P, B, I, J, C = out.shape
    if I == 0 or J == 0:
        return
    key, sample_ids, pass_ids = (t.contiguous() for t in ids)
    keep, bits, scale = numbers
    places, offsets = tables
    terms = len(places)
    S, R = sample_ids.shape[0], B // sample_ids.shape[0] * I * J
    dtype = out.dtype
    added = torch.zeros((groups, weights.shape[1], WIDTH), dtype=dtype)
    if bias is not None:
        added.view(groups, -1)[:, : C // groups] = bias.view(groups, -1)
    threads = threads_for(out.numel() * terms)
    columns = groups * weights.shape[1]
    rows, masks = _task_shape(P * S, R, columns, threads)
    do_tasks(
        _cpu_gather,
        threads,
        (rows, masks, P * S, S, R, I, J),
        (source.images, *source.strides(S, channels)),
        (out, *by_mask(out.stride()[:2], S), *out.stride()[2:]),
        (C // groups, weights.shape[1], groups),
        (weights.contiguous(), added, terms, terms, places, offsets * dtype.itemsize),
        (int(along_inputs > 0), int(lanewise), along_inputs),
        (key, sample_ids, pass_ids, keep, bits),
        scale=scalar(scale, dtype),
    )


def _task_shape(masks: int, R: int, columns: int, threads: int) -> tuple[int, int]:
    """Rows (a multiple of 8) and masks of a task: the most that still keep every thread busy."""
    rows = min(_cpu_gather.TASK_ROWS, -(-R // ROWS) * ROWS)
    together = GROUPS if rows <= _cpu_gather.TASK_ROWS // GROUPS else 1
    wanted = _TASKS_PER_THREAD * threads if threads > 1 else 1
    while -(-R // rows) * -(-masks // together) * columns < wanted:
        if together > 1:
            together //= 2
        elif rows > _FEW_ROWS:
            rows = -(-rows // 2 // ROWS) * ROWS
        else:
            break
    return rows, together
