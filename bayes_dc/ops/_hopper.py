"""What the Hopper kernels of every op share: tensor maps, and a name that Triton changed.

A tensor map tells TMA where the rows of a tensor lie: the last dimension is contiguous, the others
have strides of whole 16 bytes, and what lies beyond the ends reads as zeros.
"""

from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Renamed between the versions of Triton.
block_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier

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
    outer = range(t.dim() - 2)
    row = row_stride(t)
    shape = [t.shape[d] if t.stride(d) > 0 else 1 for d in outer]
    strides = [t.stride(d) if shape[d] > 1 else row * t.shape[-2] for d in outer]
    block = [*(1 for _ in outer), rows, columns]
    layout = _layout(tuple(block), t.dtype)
    return TensorDescriptor(t, [*shape, *t.shape[-2:]], [*strides, row, 1], block, layout)


@lru_cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Layout of a block in shared memory."""
    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(block), element)
