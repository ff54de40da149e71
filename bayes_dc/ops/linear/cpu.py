"""Per-row DropConnect linear on the CPU: launchers.

Shapes      x [P, S, R, K]   w [N, K]   bias [N] or null   gy [P, S, R, N];  the R rows of group
            (p, s) share the mask of pass_ids[p], sample_ids[s]
Mask        bits of rng/SPEC.md v1, made in a buffer that stays in the first-level cache
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``
Order       sums run over k, n or rows in ascending order, in chains of a fixed length: the same
            bits for any batch, place in it, blocking and number of threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      0.3 MB per thread, whatever G, N and K are; operands not of the type of the sums or not
            contiguous along the last dimension are copied, expanded dimensions once
Cost        G·N·K masked multiply-adds; on AVX-512 about 0.06 cycles each, and 0.025 per digit of p
"""

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops.linear import _cpu_dw, _cpu_dx, _cpu_fwd
from bayes_dc.ops.linear._cpu_ir import ROWS

_SMALL = 1 << 22
"""Masked multiply-adds below which a second thread costs more than it saves."""
_TASKS_PER_THREAD = 4
_FEW_ROWS = 32
"""Packing weights for fewer rows than these takes a share of the time that is worth avoiding."""
_ALIGNMENT = 64


def launch_fwd(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """out[p, s, r, n] = scale · Σ_k D[p, s, n, k] w[n, k] x[p, s, r, k] + bias[n].

    Args:
        x: Activations, ``[P, S, R, K]``, any strides.
        w: Weights, ``[N, K]``.
        bias: ``[N]``, or None.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, S, R, N]``.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    shape = (*x.shape[:3], *w.shape)
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_fwd, (x, w, bias), out, shape, ids, (keep, bits), scale)


def launch_dx(
    gy: Tensor,
    w: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """out[p, s, r, k] = scale · Σ_n D[p, s, n, k] w[n, k] gy[p, s, r, n].

    Args:
        gy: Gradient of the output, ``[P, S, R, N]``, any strides.
        w: Weights, ``[N, K]``.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, S, R, K]``.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    shape = (*gy.shape[:3], *w.shape)
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_dx, (gy, w), out, shape, ids, (keep, bits), scale)


def launch_dw(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
) -> None:
    """out[n, k] = scale · Σ_{p, s, r} D[p, s, n, k] gy[p, s, r, n] x[p, s, r, k].

    Args:
        gy: Gradient of the output, ``[P, S, R, N]``, any strides.
        x: Activations, ``[P, S, R, K]``, any strides.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[N, K]``.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked sums.
    """
    shape = (*gy.shape, x.shape[3])
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_dw, (gy, x), out, shape, ids, (keep, bits), scale)


def _run(
    kernel: ModuleType,
    operands: tuple[Tensor | None, ...],
    out: Tensor,
    shape: tuple[int, ...],
    ids: tuple[Tensor, Tensor, Tensor],
    digits: tuple[int, int],
    scale: float,
) -> None:
    """Do a kernel's tasks on as many threads as they are worth, the caller's among them."""
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    direct = out.dtype == dtype and out.is_contiguous()
    result = out if direct else torch.empty(out.shape, dtype=dtype)
    # Both lists keep copies alive while the kernel holds their addresses.
    tensors = [None if t is None else _operand(t, dtype) for t in operands]
    coordinates = [t.contiguous() for t in ids]
    addresses: list[int] = []
    for t in tensors:
        addresses += [0] if t is None else [t.data_ptr(), *t.stride()[:-1]]
    threads = torch.get_num_threads() if torch.Size(shape).numel() > _SMALL else 1
    counter = np.zeros(1, np.int64)
    arguments = (
        counter.ctypes.data,
        *_task_shape(kernel, shape, threads),
        *addresses,
        result.data_ptr(),
        *shape,
        *(t.data_ptr() for t in coordinates),
        *digits,
        np.float64(scale) if dtype == torch.float64 else np.float32(scale),
    )

    def work() -> None:
        memory = _scratch(kernel.scratch_bytes(dtype.itemsize) + _ALIGNMENT)
        start = memory.ctypes.data
        kernel.run(start + -start % _ALIGNMENT, *arguments)

    _threads.share(work, threads)
    if not direct:
        out.copy_(result)


def _task_shape(kernel: ModuleType, shape: tuple[int, ...], threads: int) -> tuple[int, int]:
    """Rows (a multiple of 8) and blocks of a task: the most that still keep every thread busy."""
    rows, blocks = kernel.grid(shape)
    task_rows, task_blocks = kernel.TASK_ROWS, kernel.TASK_BLOCKS
    wanted = _TASKS_PER_THREAD * threads if threads > 1 else 1
    while -(-rows // task_rows) * -(-blocks // task_blocks) < wanted:
        if task_rows > _FEW_ROWS or (task_blocks == 1 and task_rows > ROWS):
            task_rows //= 2
        elif task_blocks > 1:
            task_blocks //= 2
        else:
            break
    return task_rows, task_blocks


def _operand(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in ``dtype``, contiguous along the last dimension; expanded ones copied once."""
    if tensor.dtype == dtype and (tensor.stride(-1) == 1 or tensor.shape[-1] < 2):
        return tensor
    compact = tensor
    for dim in range(tensor.dim() - 1):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            compact = compact.narrow(dim, 0, 1)
    return compact.to(dtype).contiguous().expand(tensor.shape)


def _scratch(size: int) -> np.ndarray:
    """Memory for one thread; kernels read only what they wrote."""
    return np.empty(size, np.uint8)
