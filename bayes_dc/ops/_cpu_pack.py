"""Weights as the CPU kernels of all layers read them: those of 32 outputs side by side."""

import torch
from torch import Tensor

from bayes_dc.ops import _cpu_pack_kernel
from bayes_dc.ops._cpu_memory import ALIGNMENT, Room
from bayes_dc.ops._cpu_pack_kernel import WIDTH
from bayes_dc.ops._cpu_tasks import do_tasks, scalar

_SMALL = 1 << 17
"""Weights below which a second thread costs more than it saves."""

_PACKED = """\
packed must be contiguous {dtype} {shape} at a multiple of {alignment} bytes, as pack_weights makes
it; got {got_dtype} {got} with strides {strides} at {address}.
"""


def packed_shape(outputs: int, weights: int, groups: int = 1) -> tuple[int, int, int, int]:
    """Shape of packed weights, ``[groups, tiles of 32 outputs, weights of an output, 32]``."""
    return groups, -(-(outputs // groups) // WIDTH), weights, WIDTH


def pack(w: Tensor, out: Tensor, groups: int, room: Room) -> None:
    """Write w ``[N, K]`` or ``[N, KH, KW, C]``, any strides, into ``out`` of the same dtype."""
    sizes, strides = tuple(w.shape), w.stride()
    if w.dim() == 2:
        sizes, strides = (sizes[0], 1, 1, sizes[1]), (strides[0], 0, 0, strides[1])
    do_tasks(
        _cpu_pack_kernel,
        torch.get_num_threads() if w.numel() > _SMALL else 1,
        (w, *strides, out, groups, sizes[0] // groups, *sizes[1:]),
        scale=scalar(0.0, w.dtype),
        room=room,
    )


def check_packed(packed: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Weights that somebody packed, if they are what the kernels read."""
    aligned = packed.data_ptr() % ALIGNMENT == 0 or packed.numel() == 0
    if packed.shape != shape or packed.dtype != dtype or not (packed.is_contiguous() and aligned):
        raise ValueError(
            _PACKED.format(
                dtype=dtype,
                shape=list(shape),
                alignment=ALIGNMENT,
                got_dtype=packed.dtype,
                got=list(packed.shape),
                strides=packed.stride(),
                address=hex(packed.data_ptr()),
            )
        )
    return packed
