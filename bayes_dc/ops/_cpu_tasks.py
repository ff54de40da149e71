"""Tasks of the CPU kernels: threads, scratch memory, arguments."""

import ctypes
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops._cpu_memory import Room


def do_tasks(
    kernel: ModuleType, threads: int, *arguments: tuple[Any, ...], scale: Any, room: Room
) -> None:
    """Do a kernel's tasks on ``threads`` threads; tensors and arrays become addresses."""
    values = [value for part in arguments for value in part]  # keeps what has an address alive
    numbers = [_address(value) for value in values]
    counter = ctypes.c_int64(0)
    tasks = ctypes.addressof(counter)
    scratch = room.inner()
    slots = scratch.slots(threads, kernel.scratch_bytes(scale.itemsize))
    _threads.share(lambda: kernel.run(slots.pop(), tasks, *numbers, scale), len(slots))


def _address(value: Any) -> int:
    """A number as it is, of anything else its address."""
    if type(value) is int:  # nearly all are
        return value
    if isinstance(value, Tensor):
        return value.data_ptr()
    return value.ctypes.data if isinstance(value, np.ndarray) else value


def scalar(value: float, dtype: torch.dtype) -> Any:
    """A number of the type of the sums, which tells Numba the type."""
    return np.float64(value) if dtype == torch.float64 else np.float32(value)


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """Type of products and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32
