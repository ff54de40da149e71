"""Tasks of the convolution's CPU kernels: threads, scratch memory, arguments."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads

SMALL = 1 << 21
"""Multiply-adds below which a second thread costs more than it saves."""
_ALIGNMENT = 64


def threads_for(products: int) -> int:
    """Threads that so many multiply-adds are worth."""
    return torch.get_num_threads() if products > SMALL else 1


def do_tasks(kernel: ModuleType, threads: int, *arguments: tuple[Any, ...], scale: Any) -> None:
    """Do a kernel's tasks on ``threads`` threads; tensors and arrays become addresses."""
    values = [value for part in arguments for value in part]  # keeps what has an address alive
    numbers = [_address(value) for value in values]
    counter = np.zeros(1, np.int64)

    def work() -> None:
        memory = _scratch(kernel.scratch_bytes(scale.itemsize) + _ALIGNMENT)
        start = memory.ctypes.data
        kernel.run(start + -start % _ALIGNMENT, counter.ctypes.data, *numbers, scale)

    _threads.share(work, threads)


def _address(value: Any) -> int:
    """A number as it is, of anything else its address."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return value.ctypes.data if isinstance(value, np.ndarray) else value


def _scratch(size: int) -> np.ndarray:
    """Memory for one thread; kernels read only what they wrote."""
    return np.empty(size, np.uint8)


def scalar(value: float, dtype: torch.dtype) -> Any:
    """A number of the type of the sums, which tells Numba the type."""
    return np.float64(value) if dtype == torch.float64 else np.float32(value)
