"""What the convolution's CPU kernels read and write: framed images, tiles of weights, phases."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayes_dc.ops._cpu_memory import PART, Room, parts
from bayes_dc.ops._cpu_pack import pack, packed_shape
from bayes_dc.ops._cpu_tasks import do_tasks, scalar, sums_of
from bayes_dc.ops.conv2d import _cpu_frame_kernel
from bayes_dc.ops.conv2d._cpu_ir import WIDTH

Pair = tuple[int, int]

_COPY = 1 << 17
"""Elements whose copying is worth a second thread."""


class Frame(NamedTuple):
    """Zeros around images: pixels before and behind along height and width, channels behind."""

    height: Pair
    width: Pair
    channels: int
    last: bool
    """Whether the channels must be neighbours."""

    def copies(self, t: Tensor, dtype: torch.dtype) -> bool:
        """Whether images need memory of their own."""
        around = (*self.height, *self.width, self.channels)
        return t.dtype != dtype or any(around) or (self.last and t.stride(4) != 1)

    def sizes(self, t: Tensor) -> tuple[int, int, int]:
        """Height, width and channels with the zeros."""
        H, W, C = t.shape[2:]
        return H + sum(self.height), W + sum(self.width), C + self.channels


class Source(NamedTuple):
    """What a kernel reads: framed images, and where the positions of one tap lie in them."""

    images: Tensor
    step: Pair
    low: Pair

    def offsets(self, taps: tuple[Pair, ...], channels: int) -> np.ndarray:
        """Bytes from a position's address to what it reads by taps (in pixels) and channels."""
        strides = tuple(n * self.images.element_size() for n in self.images.stride()[2:])
        return _offsets(taps, channels, strides, self.low)

    def strides(self, S: int, channels: int) -> tuple[int, ...]:
        """Elements between passes, masks, images of a mask, rows, columns, groups of channels."""
        *outer, h, w, c = self.images.stride()
        return *by_mask(outer, S), h * self.step[0], w * self.step[1], channels * c


@lru_cache(maxsize=1024)
def _offsets(
    taps: tuple[Pair, ...], channels: int, strides: tuple[int, ...], low: Pair
) -> np.ndarray:
    """``Source.offsets``; of a geometry once, because tables of many channels are not small."""
    h, w, c = strides
    moves = [(i + low[0]) * h + (j + low[1]) * w for i, j in taps]
    return np.add.outer(np.array(moves, np.int64), np.arange(channels) * c).ravel()


@lru_cache(maxsize=1024)
def in_order(count: int) -> np.ndarray:
    """0 … count − 1: the weights of an output."""
    return np.arange(count)


def by_mask(strides: Sequence[int], S: int) -> tuple[int, int, int]:
    """Strides of a pass, a mask of a pass and an image of a mask from those of pass and image."""
    p, b = strides
    return (p, 0, b) if S == 1 else (p, b, 0)


def is_depthwise(w: Tensor, groups: int) -> bool:
    """One output and one input in every group: lanes go along the channels."""
    return groups > 1 and groups == w.shape[0] and w.shape[3] == 1


def taps_of(w: Tensor, padding: Pair, dilation: Pair) -> tuple[Pair, ...]:
    """Pixels from a position to what each tap reads, in the order of the mask."""
    KH, KW = w.shape[1:3]
    return tuple(
        (h * dilation[0] - padding[0], v * dilation[1] - padding[1])
        for h in range(KH)
        for v in range(KW)
    )


def results_of(out: Tensor, pool: bool) -> Pair:
    """Height and width of the results that are computed for ``out`` [P, B, OH, OW, N]."""
    return out.shape[2] * (1 + pool), out.shape[3] * (1 + pool)


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


def frame_of(t: Tensor, taps: Sequence[Pair], size: Pair, step: Pair, lanewise: bool) -> Frame:
    """Zeros wherever one of ``size`` positions reads beside ``t`` by a tap."""

    def along(d: int) -> Pair:
        reads = [tap[d] for tap in taps] or [0]
        return max(0, -min(reads)), max(
            0, max(reads) + (size[d] - 1) * step[d] + 1 - t.shape[2 + d]
        )

    return Frame(along(0), along(1), -t.shape[4] % WIDTH if lanewise else 0, lanewise)


def source_of(t: Tensor, frame: Frame, step: Pair, dtype: torch.dtype, room: Room) -> Source:
    """``t`` with its zeros; passes that share images share the copy."""
    if not frame.copies(t, dtype):
        return Source(t, step, (0, 0))
    shared = t[:1] if t.stride(0) == 0 and t.shape[0] else t  # by all passes
    images = _framed(shared, frame, dtype, room).expand(t.shape[0], -1, -1, -1, -1)
    return Source(images, step, (frame.height[0], frame.width[0]))


def _framed(t: Tensor, frame: Frame, dtype: torch.dtype, room: Room) -> Tensor:
    """A copy with zeros, in the memory format of ``t`` unless channels must be neighbours."""
    around = (frame.height, frame.width, (0, frame.channels))
    order = sorted(range(3), key=lambda d: -t.stride(2 + d))
    if frame.last:
        order = [0, 1, 2]
    sizes = [frame.sizes(t)[d] for d in order]
    images = room.tensor((*t.shape[:2], *sizes), dtype)
    back = [2 + order.index(d) for d in range(3)]
    framed = images.permute(0, 1, *back)
    if t.dtype != dtype:
        if any(sum(side) for side in around):
            images.zero_()
        H, W, C = t.shape[2:]
        (h, _), (w, _), _ = around
        framed[:, :, h : h + H, w : w + W, :C].copy_(t)
        return framed
    strides = [t.stride(2 + d) for d in order]
    lengths = [t.shape[2 + d] for d in order]
    low = [around[d][0] for d in order]
    if strides[1] == lengths[2] and strides[2] == 1 and sizes[2] == lengths[2]:  # lines in one
        low = [low[0], 0, low[1] * sizes[2]]
        lengths = [lengths[0], 1, lengths[1] * lengths[2]]
        sizes = [sizes[0], 1, sizes[1] * sizes[2]]
    do_tasks(
        _cpu_frame_kernel,
        torch.get_num_threads() if images.numel() > _COPY else 1,
        (*t.shape[:2], t, *t.stride()[:2], *strides),
        (*lengths, *low, *sizes, images),
        (int(frame.last and strides[1] == 1 and strides[2] != 1),),
        scale=scalar(0.0, dtype),
        room=room,
    )
    return framed


def rows_or_planes(gy: Tensor) -> Tensor:
    """Channels last, or every channel a plane whose positions are side by side."""
    planes = gy.stride(3) == 1 and gy.stride(2) == gy.shape[3] and gy.stride(4) > 0
    return gy if planes or gy.stride(4) == 1 else gy.contiguous()


def output_tiles(w: Tensor, groups: int, dtype: torch.dtype, room: Room) -> Tensor:
    """Weights as [groups, tiles, taps · inputs, 32 outputs]; lanes beyond the outputs are 0."""
    tiles = room.tensor(packed_shape(w.shape[0], w.shape[1:].numel(), groups), dtype)
    if w.dtype != dtype:
        w = room.tensor(w.shape, dtype).copy_(w)
    pack(w, tiles, groups, room)
    return tiles


def input_tiles(w: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Weights as [groups, tiles, taps · outputs, 32 inputs]; lanes beyond the inputs are 0."""
    N, KH, KW, C = w.shape
    split = w.view(groups, N // groups, KH, KW, C)
    if C % WIDTH:
        split = F.pad(split, [0, -C % WIDTH])
    tiles = split.unflatten(4, (-1, WIDTH)).permute(0, 4, 2, 3, 1, 5)
    copy = torch.empty(tiles.shape, dtype=dtype).copy_(tiles)
    return copy.view(groups, -1, KH * KW * N // groups, WIDTH)


def some_taps(weights: Tensor, taps: np.ndarray, outputs: int) -> Tensor:
    """Those of some taps, all of them without a copy."""
    if len(taps) * outputs == weights.shape[2]:
        return weights
    by_tap = weights.unflatten(2, (-1, outputs))
    return by_tap[:, :, torch.from_numpy(taps)].flatten(2, 3)


class Result:
    """Memory of the type of the sums, copied into ``out`` at the end where that has another."""

    def __init__(self, out: Tensor, dtype: torch.dtype, room: Room) -> None:
        self.out = out
        self.memory = out if out.dtype == dtype else _memory_like(out, dtype, room)

    def __enter__(self) -> Tensor:
        return self.memory

    def __exit__(self, *_: object) -> None:
        if self.memory is not self.out:
            self.out.copy_(self.memory)


def _memory_like(out: Tensor, dtype: torch.dtype, room: Room) -> Tensor:
    """Memory for [P, B, OH, OW, N] with channels first where ``out`` has them so."""
    if out.stride(4) <= out.stride(3):
        return room.tensor(out.shape, dtype)
    P, B, H, W, N = out.shape
    return room.tensor((P, B, N, H, W), dtype).permute(0, 1, 3, 4, 2)


def copied(x: Tensor, out: Tensor, frame: Frame) -> list[int]:
    """Elements to copy for every image, of x and of the result."""
    dtype = sums_of(out.dtype)
    images = [torch.Size(frame.sizes(x)).numel()] if frame.copies(x, dtype) else []
    return images if out.dtype == dtype else [*images, out.shape[2:].numel()]


def images_of_a_part(elements: list[int], dtype: torch.dtype) -> int:
    """Images whose copies, of so many elements each, fit into a part; at least one."""
    return max(1, PART // (sum(elements) * dtype.itemsize)) if elements else 1


def image_parts(x: Tensor, out: Tensor, frame: Frame) -> Iterator[tuple[slice, slice]]:
    """Slices of passes and images that are copied together; all if nothing is copied."""
    dtype = sums_of(out.dtype)
    elements = copied(x, out, frame)
    if not elements:
        yield slice(None), slice(None)
        return
    shared = x.stride(0) == 0 and out.dtype == dtype  # by all passes
    passes = 1 if shared else x.shape[0]
    for p, b, _ in parts(passes, x.shape[1], 1, images_of_a_part(elements, dtype)):
        yield slice(None) if shared else p, b
