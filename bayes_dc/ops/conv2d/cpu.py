"""DropConnect convolution on the CPU: launchers.

Shapes      x [P, B, H, W, C]   w [N, KH, KW, C / groups]   bias [N] or null   gy [P, B, OH, OW, N];
            S = B sample ids, or one for all images of a pass
Mask        bits of rng/SPEC.md v1, k = (kh, kw, c); made for 128 weights × 32 outputs at a time
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``
Order       sums run over k, n or positions in ascending order, in chains of a fixed length: the
            same bits for any batch, place in it, memory format, blocking and number of threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      0.1 MB of scratch per thread, whatever the shape, and a copy of the weights. Where the
            input lacks its zeros, or the type of the sums, it is copied in its memory format, in
            the forward 1 MiB at a time (passes that share images share the copy). The forward
            takes all of it from ``workspace``, if given
Cost        multiply-adds of the dense product, R = OH · OW for every masked weight; see README.md
"""

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _epilogue
from bayes_dc.ops._cpu_memory import Room
from bayes_dc.ops._cpu_tasks import do_tasks, scalar, sums_of
from bayes_dc.ops.conv2d import _cpu_dw
from bayes_dc.ops.conv2d._cpu_ir import ROWS, WIDTH
from bayes_dc.ops.conv2d._cpu_launch import ending_of, gather, threads_for
from bayes_dc.ops.conv2d._cpu_launch import workspace_bytes as workspace_bytes
from bayes_dc.ops.conv2d._cpu_operands import (
    Pair,
    Result,
    by_mask,
    frame_of,
    image_parts,
    in_order,
    input_tiles,
    is_depthwise,
    output_tiles,
    phases,
    results_of,
    rows_or_planes,
    some_taps,
    source_of,
    taps_of,
)
from bayes_dc.ops.conv2d._cpu_planes_launch import over_planes, suits

_WORKSPACE = "ops.conv2d.cpu.workspace_bytes"


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
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
    pool: bool = False,
    workspace: Tensor | None = None,
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
        bits: Number of its binary digits; 0 drops nothing, and a plain convolution is left.
        scale: Factor of the masked sums.
        epilogue: What is done to the result before it is written; see ``_epilogue.Epilogue``.
        pool: Whether ``out`` takes the largest of 2 × 2 results, ``[P, B, OH // 2, OW // 2, N]``.
        workspace: uint8 ``[workspace_bytes(x, w, out, …)]``, overwritten: with it, and with
            contiguous ids, only tables of a geometry's first call are allocated.

    Raises:
        ValueError: If ``workspace`` is not such a tensor, or too small, or ``epilogue`` holds no
            vectors of the outputs.
    """
    _epilogue.options(epilogue, out)
    if out.numel() == 0:
        return
    if w.numel() == 0:
        out.copy_(torch.zeros(()) if bias is None else bias)
        _epilogue.in_place(epilogue, out)
        return
    room, dtype = Room(workspace, _WORKSPACE), sums_of(out.dtype)
    depthwise, per_group = is_depthwise(w, groups), w.shape[3]
    taps, size = taps_of(w, padding, dilation), results_of(out, pool)
    frame = frame_of(x, taps, size, stride, depthwise)
    weights = output_tiles(w, 1 if depthwise else groups, dtype, room)
    ending = ending_of(bias, epilogue, w.shape[0], weights, room)
    for p, b in image_parts(x, out, frame):
        inner = room.inner()
        samples = sample_ids if sample_ids.shape[0] == 1 else sample_ids[b]
        source = source_of(x[p, b], frame, stride, dtype, inner)
        with Result(out[p, b], dtype, inner) as result:
            call = (
                *(source, result, weights, ending),
                (in_order(len(taps) * per_group), source.offsets(taps, per_group)),
                (key, samples, pass_ids[p]),
                (keep, bits, scale),
                inner,
            )
            if suits(source, result, weights, w.shape[0] // groups, pool=pool):
                over_planes(*call, channels=per_group, pool=pool)
            else:
                gather(*call, lanewise=depthwise, channels=per_group, pool=pool)


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
    room, dtype = Room(None, _WORKSPACE), sums_of(out.dtype)
    depthwise = is_depthwise(w, groups)
    outputs = 1 if depthwise else N // groups  # that a tap of an input reads
    weights = output_tiles(w, 1, dtype, room) if depthwise else input_tiles(w, groups, dtype)
    ending = ending_of(None, None, out.shape[4], weights, room)
    size = (out.shape[2], out.shape[3])
    found = phases((KH, KW), size, stride, padding, dilation)
    every = [tap for _, taps, _ in found for _, tap in taps]
    frame = frame_of(gy, every, found[0][2], (1, 1), depthwise)
    source = source_of(gy, frame, (1, 1), dtype, room)
    with Result(out, dtype, room) as result:
        for (h, v), taps, _ in found:
            numbers = np.array([number for number, _ in taps], np.int64)
            gather(
                source,
                result[:, :, h :: stride[0], v :: stride[1]],
                some_taps(weights, numbers, outputs),
                ending,
                (
                    np.repeat(numbers * per_group, outputs),
                    source.offsets(tuple(tap for _, tap in taps), outputs),
                ),
                (key, sample_ids, pass_ids),
                (keep, bits, scale),
                room,
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
    room, dtype = Room(None, _WORKSPACE), sums_of(out.dtype)
    depthwise = is_depthwise(out, groups)
    N, _, _, per_group = out.shape
    taps = taps_of(out, padding, dilation)
    rows = (gy.shape[2], gy.shape[3])
    frame = frame_of(x, taps, rows, stride, depthwise)
    source = source_of(x, frame, stride, dtype, room)
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
        (result, K, in_order(K), np.append(offsets, last), int(depthwise)),
        (key.contiguous(), sample_ids.contiguous(), pass_ids.contiguous(), keep, bits),
        scale=scalar(scale, dtype),
        room=room,
    )
    by_output = result.transpose(2, 3).reshape(columns, tiles * WIDTH, K)[:, :channels]
    out.copy_(by_output.reshape(out.shape))
