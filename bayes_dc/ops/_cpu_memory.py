"""Memory of one call of a CPU launcher: pieces of a workspace, or new where none is given."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Every piece begins at a multiple of this: a line of the cache, a vector of sixteen floats."""
PART = 1 << 20
"""Bytes of operands that are copied at a time into a workspace."""

_WORKSPACE = """\
workspace must be a contiguous uint8 tensor on the CPU; got {got}.
Make it by torch.empty({function}(...), dtype=torch.uint8).
"""
_SMALL = """\
workspace has {got} bytes, fewer than this call needs.
Size it by {function}(...), for the largest shapes and as many threads as will be used.
"""


def rounded(size: int) -> int:
    """Bytes that a piece of ``size`` bytes takes up."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def total(*sizes: int) -> int:
    """Bytes of a workspace, however aligned, for pieces of these sizes."""
    return sum(rounded(size) for size in sizes) + ALIGNMENT


def new(size: int) -> np.ndarray:
    """Memory that nobody gave; kernels read only what they wrote."""
    return np.empty(size, np.uint8)


class Room:
    """Hands out pieces, one behind the other; what it made itself lives as long as it does."""

    def __init__(self, workspace: Tensor | None, function: str) -> None:
        """``function`` names what tells the size of the workspace, for messages."""
        self.workspace = workspace
        self._function = function
        self._made: list[np.ndarray] = []
        if workspace is None:
            return
        if workspace.dtype != torch.uint8 or workspace.device.type != "cpu" or workspace.dim() != 1:
            got = f"{workspace.dtype} {list(workspace.shape)} on {workspace.device}"
            raise ValueError(_WORKSPACE.format(got=got, function=function))
        if not workspace.is_contiguous():
            got = f"strides {workspace.stride()}"
            raise ValueError(_WORKSPACE.format(got=got, function=function))
        self._start = workspace.data_ptr()
        self._end = self._start + workspace.numel()
        self._next = rounded(self._start)

    def inner(self) -> "Room":
        """What is left, to hand out for a while: its pieces are free again when it is dropped."""
        room = Room.__new__(Room)
        room.__dict__.update(self.__dict__)
        room._made = []
        return room

    def address(self, size: int) -> int:
        """A piece of ``size`` bytes; its address."""
        if self.workspace is None:
            memory = new(size + ALIGNMENT)
            self._made.append(memory)
            return rounded(memory.ctypes.data)
        place, self._next = self._next, self._next + rounded(size)
        if self._next > self._end:
            got = self._end - self._start
            raise ValueError(_SMALL.format(got=got, function=self._function))
        return place

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A piece as a contiguous tensor."""
        if self.workspace is None:
            return torch.empty(shape, dtype=dtype)
        size = torch.Size(shape).numel() * dtype.itemsize
        first = self.address(size) - self._start
        return self.workspace[first : first + size].view(dtype).view(shape)

    def slots(self, count: int, size: int) -> list[int]:
        """Addresses of a piece for each of ``count`` threads, of fewer where no more is left."""
        if self.workspace is not None:
            count = min(count, max(1, (self._end - self._next) // rounded(size)))
        return [self.address(size) for _ in range(count)]


def parts(P: int, S: int, R: int, most: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of [P, S, R] of at most ``most`` ≥ 1 rows, of one size; whole passes if they fit."""
    r_step = _even(R, most)
    s_step = _even(S, most // r_step) if r_step >= R else 1
    p_step = _even(P, most // (r_step * s_step)) if s_step >= S else 1
    for p in range(0, P, p_step):
        for s in range(0, S, s_step):
            for r in range(0, R, r_step):
                yield slice(p, p + p_step), slice(s, s + s_step), slice(r, r + r_step)


def _even(count: int, most: int) -> int:
    """A share of ``count``, as large as that of the fewest shares of at most ``most``."""
    shares = -(-count // max(1, most))
    return -(-count // shares) if shares else 1
