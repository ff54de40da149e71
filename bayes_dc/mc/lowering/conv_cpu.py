"""Convolutions on a CPU in calls that allocate nothing: patches in pieces, and matrix products.

oneDNN, which torch uses otherwise, brings inputs, weights and results into layouts of its own in
memory that it allocates in each call. Here the patches of some rows of outputs are written into
planned scratch and multiplied; a convolution of one pixel needs none, one of single channels
(depthwise) is a sum of products of shifted images.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.mc.lowering.matrices import product
from bayes_dc.mc.plan_types import Call

nn = torch._C._nn
Pair = tuple[int, int]
_CACHED_BYTES = 1 << 19


class Geometry(NamedTuple):
    """A convolution.

    Attributes:
        kernel: Height and width of the kernel.
        stride: Step of the kernel.
        padding: Zeros on both sides.
        dilation: Distance of taps.
        groups: Groups of channels.
    """

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def is_pointwise(self) -> bool:
        """Whether an output reads one pixel, and every pixel is read."""
        return self[:3] == ((1, 1), (1, 1), (0, 0))


class Piece(NamedTuple):
    """Some rows of outputs of some images.

    Attributes:
        image: First image.
        images: Number of images.
        first: First row of outputs.
        rows: Number of rows of outputs.
        top: First row of the input that is taken.
        bottom: Row of the input after the last one taken.
        skip: Rows of outputs that the part taken has before ``first``.
        whole: Rows of outputs that it has.
    """

    image: int
    images: int
    first: int
    rows: int
    top: int
    bottom: int
    skip: int
    whole: int


def pieces_of(
    images: int, height: int, out_height: int, at: Geometry, size: Pair
) -> Iterator[Piece]:
    """Cut a convolution into pieces.

    Args:
        images: Images.
        height: Rows of an image.
        out_height: Rows of its output.
        at: The convolution.
        size: Images of a piece, and rows of outputs of a piece.

    Yields:
        The pieces. The part of an image that a piece takes is padded with zeros at both ends, which
        at an inner end gives rows of outputs that are left out.
    """
    step, pad = at.stride[0], at.padding[0]
    reach = at.dilation[0] * (at.kernel[0] - 1) + 1
    together, rows = size
    for first in range(0, out_height, rows):
        count = min(rows, out_height - first)
        skip = min(first, -(-pad // step))
        top = (first - skip) * step
        end = (first + count - 1) * step - pad + reach
        bottom = min(height, max(end, top + 1))
        if count == out_height:
            top, bottom, skip = 0, height, 0
        whole = (bottom - top + 2 * pad - reach) // step + 1
        for image in range(0, images, together):
            yield Piece(
                image, min(together, images - image), first, count, top, bottom, skip, whole
            )


def by_patches(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor,
    packed: Tensor | None,
    columns: Tensor,
    at: Geometry,
    size: Pair,
) -> list[Call]:
    """Calls of a convolution, its patches a piece at a time.

    Args:
        x: ``[images, C, H, W]``, any strides.
        w: ``[N, C / groups, KH, KW]``, contiguous.
        bias: ``[N]`` or None.
        out: ``[images, N, OH, OW]``, channels first or last.
        packed: Scratch for the images of a piece, or None if ``x`` is contiguous and not cut.
        columns: Scratch for the patches of a piece.
        at: The convolution.
        size: Images and rows of outputs of a piece.

    Returns:
        The calls.
    """
    N, per_group = w.shape[:2]
    groups, outputs = at.groups, N // at.groups
    channels, height = x.shape[1:3]
    out_height, width = out.shape[2:]
    K = per_group * at.kernel[0] * at.kernel[1]
    weights = w.view(groups, outputs, K)
    calls: list[Call] = []
    for piece in pieces_of(x.shape[0], height, out_height, at, size):
        of = x[piece.image : piece.image + piece.images, :, piece.top : piece.bottom]
        if packed is not None:
            room = packed.view(-1)[: of.numel()].view(of.shape)
            calls.append((room.copy_, (of,), {}))
            of = room
        count = piece.images * channels * K // per_group * piece.whole * width
        patches = columns.view(-1)[:count].view(piece.images, -1, piece.whole * width)
        taps = (at.kernel, at.dilation, at.padding, at.stride)
        calls.append((nn.im2col, (of, *taps), {"out": patches}))
        start, stop = piece.skip * width, (piece.skip + piece.rows) * width
        patches = patches.view(piece.images, groups, K, -1)[..., start:stop]
        to = out[
            piece.image : piece.image + piece.images, :, piece.first : piece.first + piece.rows
        ]
        calls += _multiplied(patches, weights, bias, to)
    return calls


def _multiplied(patches: Tensor, weights: Tensor, bias: Tensor | None, out: Tensor) -> list[Call]:
    """Weights [groups, outputs, K] times patches [images, groups, K, positions]."""
    groups, outputs, _ = weights.shape
    images, N, rows, width = out.shape
    if out.stride(1) == 1 and N > 1:  # channels last: positions are the rows of the product
        to = out.permute(0, 2, 3, 1).view(images, rows * width, groups, outputs)
        if groups == 1:
            by_position = patches[:, 0].transpose(1, 2)
            return product(by_position, weights[0].t(), to[:, :, 0], batch=1, bias=bias)
        calls = product(
            patches.transpose(2, 3), weights.transpose(1, 2), to.transpose(1, 2), batch=2
        )
        return calls if bias is None else [*calls, (out.add_, (bias.view(-1, 1, 1),), {})]
    to = out.view(images, groups, outputs, rows * width)
    if bias is None:
        return product(weights.expand(images, -1, -1, -1), patches, to, batch=2)
    added = bias.view(groups, outputs, 1)
    if groups == 1:
        to, patches, weights = to[:, 0], patches[:, 0], weights.expand(images, -1, -1)
        return [(torch.baddbmm, (added.expand(to.shape), weights, patches), {"out": to})]
    return [
        (torch.baddbmm, (added.expand(y.shape), weights, of), {"out": y})
        for y, of in zip(to, patches, strict=True)
    ]


def by_pixels(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, groups: int) -> list[Call]:
    """Calls of a convolution with a kernel of one pixel, without scratch.

    Args:
        x: ``[images, C, H, W]``, channels first or last.
        w: ``[N, C / groups, 1, 1]``.
        bias: ``[N]`` or None.
        out: ``[images, N, H, W]``, channels first or last as those of ``x``.
        groups: Groups of channels.

    Returns:
        The calls.
    """
    images, channels, height, width = x.shape
    weights = w.view(groups, w.shape[0] // groups, w.shape[1])
    if out.stride(1) == 1 and out.shape[1] > 1 and groups == 1:
        of, to = (t.permute(0, 2, 3, 1) for t in (x, out))
        return product(of, weights[0].t(), to, left=3, bias=bias)
    patches = x.view(images, groups, channels // groups, height * width)
    return _multiplied(patches, weights, bias, out)


def by_taps(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, at: Geometry) -> list[Call]:
    """Calls of a convolution of single channels: a sum over the taps, without scratch.

    Args:
        x: ``[images, C, H, W]``, any strides.
        w: ``[C, 1, KH, KW]``.
        bias: ``[C]`` or None.
        out: ``[images, C, OH, OW]``, any strides.
        at: The convolution.

    Returns:
        The calls, for a few images at a time, which stay in a cache.
    """
    calls: list[Call] = []
    together = max(1, _CACHED_BYTES // ((x[0].numel() + out[0].numel()) * x.element_size()))
    for of, to in zip(x.split(together), out.split(together), strict=True):
        if bias is None:
            calls.append((to.zero_, (), {}))
        else:
            calls.append((to.copy_, (bias.view(-1, 1, 1),), {}))
        calls += _sum_of_taps(of, w, to, at)
    return calls


def _sum_of_taps(x: Tensor, w: Tensor, out: Tensor, at: Geometry) -> list[Call]:
    """What the taps read, times their weights, added to ``out``."""
    calls: list[Call] = []
    for i in range(at.kernel[0]):
        for j in range(at.kernel[1]):
            rows = _seen(i, 0, x.shape[2], out.shape[2], at)
            columns = _seen(j, 1, x.shape[3], out.shape[3], at)
            if rows is None or columns is None:
                continue
            of, to = x[:, :, rows[0], columns[0]], out[:, :, rows[1], columns[1]]
            factor = w[:, 0, i, j].view(-1, 1, 1)
            calls.append((torch.addcmul, (to, of, factor), {"out": to}))
    return calls


def _seen(
    tap: int, axis: int, size: int, out_size: int, at: Geometry
) -> tuple[slice, slice] | None:
    """Which places of the input a tap reads, and for which outputs."""
    step = at.stride[axis]
    shift = tap * at.dilation[axis] - at.padding[axis]
    first = max(0, -(shift // step))
    last = min(out_size - 1, (size - 1 - shift) // step)
    if last < first:
        return None
    start = first * step + shift
    return slice(start, last * step + shift + 1, step), slice(first, last + 1)
