"""What every Triton launcher needs to know: device, types, alignment and launch configuration.

Configurations change speed only. A row's mask and the order of its sums do not depend on them,
except for ``splits`` of the weight gradient, which is a function of the shape.
"""

import contextlib
import os
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _device, _tuned

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

_TARGET_PROGRAMS = 2048
_FEW_PROGRAMS = 264  # two for each multiprocessor of a large GPU
_FEW_ROWS = 1024  # of as many programs
_MIN_ROWS_PER_SPLIT = 32
_MAX_PARTIAL_ELEMENTS = 1 << 26
_MAX_ROWS = 2**31 - 256
_TOO_MANY_ROWS = (
    "A call on the GPU takes at most {most} rows (passes × samples × positions); got {got}. "
    "Split the input along its first dimension, or pass fewer pass_ids at a time."
)


class RowConfig(NamedTuple):
    """Launch configuration of a row kernel.

    Attributes:
        rows: Rows per lane; of one copy (weight gradient).
        lanes: Lanes along the rows, of the forward 32, or fewer with the others on other inputs, or
            1: then every row is a program of its own, of 16 outputs and as many ranges of inputs,
            and the other numbers do not count. Along the inputs, four each (weight gradient).
        quads: Groups of four inputs: of one copy (forward: 1, 2, 4; 1 if ``lanes`` are fewer than
            32), of a program (gradient).
        warps: Warps per program, each on other inputs (forward; ``32 / lanes`` times as many parts
            are at most 16).
        registers: Highest number of registers per lane, 0 for the compiler's choice.
    """

    rows: int = 4
    lanes: int = 32
    quads: int = 1
    warps: int = 1
    registers: int = 0


def fwd_config(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> RowConfig:
    """Configuration of the forward: measured on this GPU, or one that fits any (no device)."""
    if INTERPRETED:
        return RowConfig(rows=1, lanes=_power_of_two(M))
    found = _tuned.lookup("linear_fwd", device, dtype, M=M, N=N, K=K)
    if found is not None:
        return RowConfig(**found)
    if N <= 16 and M <= _FEW_ROWS:
        return RowConfig(rows=1, lanes=1)
    columns = -(-N // 32)
    if columns * -(-M // 8) <= _FEW_PROGRAMS:
        return RowConfig(rows=1, lanes=8, quads=1, warps=4)
    programs = columns * -(-M // 32)
    if programs <= _FEW_PROGRAMS:
        return RowConfig(rows=1, quads=2, warps=16, registers=128)
    if programs < _TARGET_PROGRAMS:
        return RowConfig(rows=1, quads=4, warps=4, registers=168)
    return RowConfig(rows=1, quads=4, registers=128)


def dx_config(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> RowConfig:
    """Configuration of the input gradient."""
    if INTERPRETED:
        return RowConfig(rows=1, quads=_power_of_two(-(-K // 4)), lanes=_power_of_two(M))
    found = _tuned.lookup("linear_dx", device, dtype, M=M, N=N, K=K)
    if found is not None:
        return RowConfig(**found)
    return RowConfig(rows=4, lanes=2, quads=16)


def dw_config(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> RowConfig:
    """Configuration of the weight gradient."""
    if INTERPRETED:
        return RowConfig(lanes=_power_of_two(-(-K // 4)))
    found = _tuned.lookup("linear_dw", device, dtype, M=M, N=N, K=K)
    if found is not None:
        return RowConfig(**found)
    return RowConfig(rows=16)


def dw_splits(M: int, N: int, K: int) -> int:
    """Runs of rows the weight gradient is split into; a function of the shape alone.

    Split where one program per 32 × 128 tile would leave a large GPU idle.
    """
    programs = max(1, -(-N // 32) * -(-K // 128))
    wanted = min(_TARGET_PROGRAMS // programs, M // _MIN_ROWS_PER_SPLIT)
    return max(1, min(wanted, _MAX_PARTIAL_ELEMENTS // max(1, N * K)))


def count_rows(t: Tensor) -> int:
    """P·S·R of a tensor ``[P, S, R, …]``; kernels count rows, with a tile to spare, in int32."""
    rows = t.shape[:3].numel()
    if rows > _MAX_ROWS:
        raise ValueError(_TOO_MANY_ROWS.format(most=_MAX_ROWS, got=rows))
    return rows


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """Type of products and sums."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """The same as a torch type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def quads(t: Tensor) -> bool:
    """Whether aligned vectors of four elements can be read along the last dimension of ``t``."""
    return (
        t.shape[-1] % 4 == 0
        and t.shape[-1] > 0
        and t.stride(-1) == 1
        and t.data_ptr() % (4 * t.element_size()) == 0
        and all(
            s % 4 == 0 for s, size in zip(t.stride()[:-1], t.shape[:-1], strict=True) if size > 1
        )
    )


def constant_stride(w: Tensor) -> int:
    """Distance of the rows of ``w`` as a compile-time constant, 0 to pass it at run time.

    A constant lets the compiler fold 32 row addresses into one register pair and immediates, whose
    range is 2**23 bytes; without it they spill.
    """
    stride = w.stride(0)
    return stride if quads(w) and 0 < stride * 32 * w.element_size() < 1 << 23 else 0


def use_ptx(t: Tensor) -> bool:
    """Whether the PTX forms of the helpers apply: an NVIDIA GPU and float32 sums."""
    return t.is_cuda and torch.version.hip is None and t.dtype != torch.float64


def early(device: torch.device) -> dict[str, bool]:
    """Options of a launch whose programs may begin while the last ones of the launch before end.

    They wait for it before they read: what is saved is the time until they are there.
    """
    return {"EARLY": True, "launch_pdl": True} if _device.on_hopper(device) else {}


def on_device_of(t: Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the tensor's device current: Triton launches on the current one."""
    return torch.cuda.device(t.device) if t.is_cuda else contextlib.nullcontext()


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
