"""What the convolution's CPU kernels read and write: padded images, tiles of weights, phases."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayes_dc.ops.conv2d import _cpu_channels
from bayes_dc.ops.conv2d._cpu_ir import WIDTH
from bayes_dc.ops.conv2d._cpu_tasks import do_tasks, scalar, threads_for

Pair = tuple[int, int]


class Source(NamedTuple):
    """What a kernel reads: padded images, and where the positions of one tap lie in them."""

    images: Tensor
    step: Pair
    low: Pair

    def offsets(self, taps: list[Pair], channels: int) -> np.ndarray:
        """Elements from a position's address to what it reads by taps (in pixels) and channels."""
        _, _, h, w, c = self.images.stride()
        moves = [(i + self.low[0]) * h + (j + self.low[1]) * w for i, j in taps]
        return np.add.outer(np.array(moves, np.int64), np.arange(channels) * c).ravel()

    def strides(self, S: int, channels: int) -> tuple[int, ...]:
        """Elements between passes, masks, images of a mask, rows, columns, groups of channels."""
        *outer, h, w, c = self.images.stride()
        return *by_mask(outer, S), h * self.step[0], w * self.step[1], channels * c


def by_mask(strides: Sequence[int], S: int) -> tuple[int, int, int]:
    """Strides of a pass, a mask of a pass and an image of a mask from those of pass and image."""
    p, b = strides
    return (p, 0, b) if S == 1 else (p, b, 0)


def is_depthwise(w: Tensor, groups: int) -> bool:
    """One output and one input in every group: lanes go along the channels."""
    return groups > 1 and groups == w.shape[0] and w.shape[3] == 1


def taps_of(w: Tensor, padding: Pair, dilation: Pair) -> list[Pair]:
    """Pixels from a position to what each tap reads, in the order of the mask."""
    KH, KW = w.shape[1:3]
    return [
        (h * dilation[0] - padding[0], v * dilation[1] - padding[1])
        for h in range(KH)
        for v in range(KW)
    ]


def phases(
    kernel: Pair, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> list[tuple[Pair, list[tuple[int, Pair]], Pair]]:
    """Phases of the input gradient: first position, taps (number, pixels), number of positions."""

    def along(d: int) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in range(stride[d])]
        for k in range(kernel[d]):
            shift = k * dilation[d] - padding[d]
            phase = shift % stride[d]
            found[phase].append((k, (phase - shift) // stride[d]))
        return found

    rows, columns = along(0), along(1)
    return [
        (
            (h, v),
            [(a * kernel[1] + b, (i, j)) for a, i in rows[h] for b, j in columns[v]],
            (len(range(h, size[0], stride[0])), len(range(v, size[1], stride[1]))),
        )
        for h in range(stride[0])
        for v in range(stride[1])
    ]


def source_of(
    t: Tensor, taps: list[Pair], size: Pair, step: Pair, lanewise: bool, dtype: torch.dtype
) -> Source:
    """``t`` with zeros wherever one of ``size`` positions reads beside it by a tap."""
    low = [max(0, -min((tap[d] for tap in taps), default=0)) for d in range(2)]
    high = [
        max(
            0,
            max((tap[d] for tap in taps), default=0) + (size[d] - 1) * step[d] + 1 - t.shape[2 + d],
        )
        for d in range(2)
    ]
    more = -t.shape[4] % WIDTH if lanewise else 0
    shared = t[:1] if t.stride(0) == 0 and t.shape[0] else t  # by all passes
    images = shared.to(dtype)
    sides = ((low[0], high[0]), (low[1], high[1]), (0, more))
    if lanewise and images.stride(4) != 1:
        images = channels_last(images, *sides)
    elif any((*low, *high, more)):
        images = pad(images, *sides)
    return Source(images.expand(t.shape[0], *images.shape[1:]), step, (low[0], low[1]))


def pad(t: Tensor, *sides: Pair) -> Tensor:
    """Zeros around the last three dimensions, which stay in their order in memory."""
    order = sorted(range(3), key=lambda d: -t.stride(2 + d))
    back = [order.index(d) + 2 for d in range(3)]
    pads = [n for d in reversed(order) for n in sides[d]]
    return F.pad(t.permute(0, 1, *(2 + d for d in order)), pads).permute(0, 1, *back)


def channels_last(t: Tensor, *sides: Pair) -> Tensor:
    """``pad`` with channels last in memory; what is put behind the channels is anything."""
    if t.stride(3) != 1:
        t = t.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    P, B, H, W, C = t.shape
    sizes = [n + sum(side) for n, side in zip((H, W, C), sides, strict=True)]
    padded = torch.zeros((P, B, *sizes), dtype=t.dtype)
    inside = padded[:, :, sides[0][0] :, sides[1][0] :]
    do_tasks(
        _cpu_channels,
        threads_for(t.numel()),
        (P * B, B, H, W, C, t, *t.stride()[:3], t.stride(4), inside, *inside.stride()[:4]),
        scale=scalar(0.0, t.dtype),
    )
    return padded


def rows_or_planes(gy: Tensor) -> Tensor:
    """Channels last, or every channel a plane whose positions are side by side."""
    planes = gy.stride(3) == 1 and gy.stride(2) == gy.shape[3] and gy.stride(4) > 0
    return gy if planes or gy.stride(4) == 1 else gy.contiguous()


def output_tiles(w: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Weights as [groups, tiles, taps · inputs, 32 outputs]; lanes beyond the outputs are 0."""
    N, KH, KW, C = w.shape
    split = _pad_to_tiles(w.view(groups, N // groups, KH, KW, C), 1)
    return _copy(split.permute(0, 1, 3, 4, 5, 2), dtype).view(groups, -1, KH * KW * C, WIDTH)


def input_tiles(w: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Weights as [groups, tiles, taps · outputs, 32 inputs]; lanes beyond the inputs are 0."""
    N, KH, KW, C = w.shape
    split = _pad_to_tiles(w.view(groups, N // groups, KH, KW, C), 4)
    return _copy(split.permute(0, 4, 2, 3, 1, 5), dtype).view(
        groups, -1, KH * KW * N // groups, WIDTH
    )


def _pad_to_tiles(w: Tensor, dim: int) -> Tensor:
    """A dimension as tiles of 32, the last filled up with 0."""
    more = -w.shape[dim] % WIDTH
    if more:
        w = F.pad(w, [0, 0] * (w.ndim - 1 - dim) + [0, more])
    return w.unflatten(dim, (-1, WIDTH))


def _copy(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy in ``dtype``, in one go."""
    return torch.empty(t.shape, dtype=dtype).copy_(t)


def some_taps(weights: Tensor, taps: np.ndarray, outputs: int) -> Tensor:
    """Those of some taps, all of them without a copy."""
    if len(taps) * outputs == weights.shape[2]:
        return weights
    by_tap = weights.unflatten(2, (-1, outputs))
    return by_tap[:, :, torch.from_numpy(taps)].flatten(2, 3)


class Result:
    """Memory of the type of the sums, copied into ``out`` at the end where that has another."""

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.memory = (
            torch.empty_like(out, dtype=dtype_of(out)) if out.dtype != dtype_of(out) else out
        )

    def __enter__(self) -> Tensor:
        return self.memory

    def __exit__(self, *_: object) -> None:
        if self.memory is not self.out:
            self.out.copy_(self.memory)


def dtype_of(t: Tensor) -> torch.dtype:
    """Type of products and sums."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32
