"""What the Hopper kernels of every op share: tensor maps, and a name that Triton changed.

A tensor map tells TMA where the rows of a tensor lie: the last dimension is contiguous, the others
have strides of whole 16 bytes, and what lies beyond the ends reads as zeros.
"""

from functools import lru_cache

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Renamed between the versions of Triton.
block_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier

VIEWS_MAY_OVERLAP = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
"""Whether shared memory may be seen as boxes that overlap; later versions refuse such a view."""

_ALIGNMENT_BYTES = 16


def by_tma(t: Tensor) -> bool:
    """Whether ``describe`` can describe ``t``, of two dimensions or more, in place.

    Zero strides are those of dimensions before the last two that share their rows. Rows must not
    overlap; of a single row the distance to the next does not matter.
    """
    size = t.element_size()
    return (
        (t.stride(-1) == 1 or t.shape[-1] == 1)
        and t.data_ptr() % _ALIGNMENT_BYTES == 0
        and (t.shape[-2] == 1 or t.stride(-2) >= max(1, t.shape[-1]))
        and all(
            s * size % _ALIGNMENT_BYTES == 0
            for s, n in zip(t.stride()[:-1], t.shape[:-1], strict=True)
            if n > 1
        )
    )


def rows_of(t: Tensor) -> Tensor | None:
    """[..., K] as [M, K] without a copy; None where the rows are not all at one distance."""
    stride, rows = 0, 1
    for size, step in zip(reversed(t.shape[:-1]), reversed(t.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if rows == 1:
            stride = step
        elif step != stride * rows:
            return None
        rows *= size
    return t.as_strided((rows, t.shape[-1]), (stride, t.stride(-1)))


def row_stride(t: Tensor) -> int:
    """Distance of the rows of ``t``; where there is one row only, its width in whole 16 bytes."""
    if t.shape[-2] > 1:
        return t.stride(-2)
    vector = _ALIGNMENT_BYTES // t.element_size()
    return -(-t.shape[-1] // vector) * vector


def describe(t: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tensor map of ``t`` [..., M, K] for blocks of ``rows`` × ``columns``; ``by_tma`` holds.

    A dimension with stride 0 becomes one of size 1: tensor maps have no zero strides.
    """
    return describe_parts(t, (1,) * (t.dim() - 2), rows, columns)


def describe_parts(t: Tensor, parts: tuple[int, ...], rows: int, columns: int) -> TensorDescriptor:
    """``describe`` for blocks of several ``parts``, for each dimension before the last two.

    The block has one where these share their rows (stride 0).
    """
    outer = range(t.dim() - 2)
    row = row_stride(t)
    shape = [t.shape[d] if t.stride(d) > 0 else 1 for d in outer]
    strides = [t.stride(d) if shape[d] > 1 else row * t.shape[-2] for d in outer]
    block = (*(n if t.stride(d) > 0 else 1 for d, n in enumerate(parts)), rows, columns)
    return _described(t, (*shape, *t.shape[-2:]), (*strides, row, 1), block)


def describe_box(t: Tensor, box: tuple[int, ...]) -> TensorDescriptor:
    """Tensor map of ``t`` for blocks of this shape; ``by_tma`` holds, and no stride is 0."""
    aligned = _ALIGNMENT_BYTES // t.element_size()
    strides = [s if n > 1 else aligned for s, n in zip(t.stride(), t.shape, strict=True)]
    return _described(t, tuple(t.shape), (*strides[:-1], 1), box)


def images_of(t: Tensor) -> tuple[int, int, int] | None:
    """Images of ``t`` [P, B, H, W, C] as one dimension: number, distance, number of one pass.

    Passes that share their images count none; None where images are not all at one distance.
    """
    P, B = t.shape[:2]
    if P == 1 or t.stride(0) == 0:
        return B, t.stride(1), 0
    if B == 1:
        return P, t.stride(0), 1
    return (P * B, t.stride(1), B) if t.stride(0) == B * t.stride(1) else None


def images_by_tma(t: Tensor, stride: int) -> bool:
    """Whether ``describe_images`` can describe ``t`` [P, B, H, W, C] in place.

    With a stride of 2 the columns of a phase are channels of a pixel twice as wide.
    """
    H, W, C = t.shape[2:]
    images = images_of(t)
    if images is None:
        return False
    outer = ((images[0], images[1]), (H, t.stride(2)), (W, t.stride(3)))
    return (
        (t.stride(4) == 1 or C == 1)
        and t.data_ptr() % _ALIGNMENT_BYTES == 0
        and all(
            n == 1 or (s > 0 and s * t.element_size() % _ALIGNMENT_BYTES == 0) for n, s in outer
        )
        and (W == 1 or t.stride(3) >= C)
        and (stride == 1 or (H % stride == 0 and W % stride == 0 and t.stride(3) == C))
    )


def describe_images(
    t: Tensor, box: tuple[int, int, int], channels: int, stride: int
) -> tuple[TensorDescriptor, int]:
    """Tensor map of ``t`` [P, B, H, W, C] for boxes of images, rows, columns and channels.

    Every ``stride``-th row and column, ``images_by_tma`` holds. Dimensions of the map: image, row,
    phase of the row, column, phase of the column · C + channel. Also the images of one pass.
    """
    images, distance, per_pass = images_of(t) or (0, 0, 0)
    H, W, C = t.shape[2:]
    vector = _ALIGNMENT_BYTES // t.element_size()
    column = t.stride(3) if W > 1 else -(-C // vector) * vector
    row = t.stride(2) if H > 1 else column * W
    shape = (images, H // stride, stride, W // stride, stride * C)
    strides = (distance if images > 1 else row * H, stride * row, row, stride * column, 1)
    return _described(t, shape, strides, (box[0], box[1], 1, box[2], channels)), per_pass


def describe_taps(w: Tensor, outputs: int, channels: int) -> TensorDescriptor:
    """Tensor map of contiguous weights [N, KH, KW, C] for blocks of outputs × channels of a tap."""
    N, KH, KW, C = w.shape
    return _described(w, (N, KH * KW, C), (KH * KW * C, C, 1), (outputs, 1, channels))


_MOST_KNOWN = 4096
_known: dict[tuple[object, ...], dict[str, object]] = {}


def _described(
    t: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...]
) -> TensorDescriptor:
    """A tensor map; the checks of its constructor run once, they take as long as a launch."""
    key = (shape, strides, block, t.dtype)
    known = _known.get(key)
    if known is None:
        layout = _layout(block, t.dtype)
        described = TensorDescriptor(t, [*shape], [*strides], [*block], layout)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = {name: v for name, v in vars(described).items() if name != "base"}
        return described
    described = object.__new__(TensorDescriptor)
    vars(described).update(known, base=t)
    return described


@lru_cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Layout of a block in shared memory."""
    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(block), element)
