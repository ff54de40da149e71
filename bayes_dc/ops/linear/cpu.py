"""Per-row DropConnect linear on the CPU: launchers.

Shapes      x [P, S, R, K]   w [N, K]   bias [N] or null   gy [P, S, R, N];  the R rows of group (p, s)
            share the mask of pass_ids[p], sample_ids[s]
Mask        bits of rng/SPEC.md v1, made in a buffer that stays in the first-level cache; never stored
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``
Order       every result is one chain of additions in ascending order of k, n or rows: the same bits for
            any batch, position in it, blocking and number of threads
Threads     torch.get_num_threads(), from a pool of this module's own: unlike Numba's threading layers it
            works after a fork and from several Python threads at once, and compiles in half the time
Memory      0.3 MB per thread, whatever G, N and K are; operands that are not float32 or not contiguous
            along their last dimension are copied, expanded dimensions once
Limits      rows with ids modulo 2**32; K < 2**32, N < 2**29
"""

import os
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops.linear import _cpu_dw, _cpu_dx, _cpu_fwd
from bayes_dc.ops.linear._cpu_ir import ROWS, WORD
from bayes_dc.rng.numba_rng import INPUTS

_SMALL = 1 << 20
"""Masked multiply-adds below which a second thread costs more than it saves."""
_TASKS_PER_THREAD = 4
_ALIGNMENT = 64

_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


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
    threads = _threads(shape)
    limits = (_cpu_fwd.TASK_ROWS, _cpu_fwd.TASK_WORDS)
    grid = _task_shape(x.shape[:3].numel(), -(-w.shape[0] // WORD), limits, threads)
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_fwd, threads, grid, (x, w, bias), out, shape, ids, (keep, bits), scale)


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
    threads = _threads(shape)
    limits = (_cpu_dx.TASK_ROWS, _cpu_dx.TASK_BLOCKS)
    grid = _task_shape(gy.shape[:3].numel(), -(-w.shape[1] // INPUTS), limits, threads)
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_dx, threads, grid, (gy, w), out, shape, ids, (keep, bits), scale)


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
    threads = _threads(shape)
    limits = (ROWS, _cpu_dw.TASK_BLOCKS)
    words = -(-shape[3] // WORD)
    grid = _task_shape(words * ROWS, -(-shape[4] // INPUTS), limits, threads)
    ids = (key, sample_ids, pass_ids)
    _run(_cpu_dw, threads, grid, (gy, x), out, shape, ids, (keep, bits), scale)


def _threads(shape: tuple[int, ...]) -> int:
    """Threads worth starting for P · S · R · N · K multiply-adds."""
    return torch.get_num_threads() if torch.Size(shape).numel() > _SMALL else 1


def _task_shape(rows: int, blocks: int, limits: tuple[int, int], threads: int) -> tuple[int, int]:
    """Rows and blocks of one task: as many as the limits allow that still feed every thread.

    Results do not depend on it. Rows stay a multiple of 8; fewer than 32 cost more packing, so blocks
    are split first from there on.
    """
    task_rows, task_blocks = limits
    wanted = _TASKS_PER_THREAD * threads if threads > 1 else 1
    while -(-rows // task_rows) * -(-blocks // task_blocks) < wanted:
        if task_rows >= 64 or (task_blocks == 1 and task_rows >= 2 * ROWS):
            task_rows //= 2
        elif task_blocks > 1:
            task_blocks //= 2
        else:
            break
    return task_rows, task_blocks


def _operand(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in ``dtype`` with unit last stride; copied if need be, expanded dimensions once."""
    if tensor.dtype == dtype and (tensor.stride(-1) == 1 or tensor.shape[-1] < 2):
        return tensor
    kept = [
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for stride, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
    ]
    compact = tensor[tuple(kept)].to(dtype, memory_format=torch.contiguous_format)
    return compact.contiguous().expand(tensor.shape)


def _run(
    kernel: ModuleType,
    threads: int,
    grid: tuple[int, int],
    operands: tuple[Tensor | None, ...],
    out: Tensor,
    shape: tuple[int, ...],
    ids: tuple[Tensor, Tensor, Tensor],
    digits: tuple[int, int],
    scale: float,
) -> None:
    """Run a kernel's tasks on ``threads`` threads and wait for them."""
    dtype = torch.float64 if out.dtype == torch.float64 else torch.float32
    direct = out.dtype == dtype and out.is_contiguous()
    result = out if direct else torch.empty(out.shape, dtype=dtype)
    # The lists keep copies alive while the kernel holds their addresses.
    tensors = [None if t is None else _operand(t, dtype) for t in operands]
    coordinates = [t.contiguous() for t in ids]
    addresses: list[int] = []
    for t in tensors:
        addresses += [0] if t is None else [t.data_ptr(), *t.stride()[:-1]]
    arguments = (
        *grid,
        *addresses,
        result.data_ptr(),
        *shape,
        *(t.data_ptr() for t in coordinates),
        *digits,
        np.float64(scale) if dtype == torch.float64 else np.float32(scale),
    )
    counter = np.zeros(1, np.int64)
    scratch_bytes = kernel.scratch_bytes(dtype.itemsize) + _ALIGNMENT

    def work() -> None:
        scratch = np.empty(scratch_bytes, np.uint8)
        start = scratch.ctypes.data
        kernel.run(start + -start % _ALIGNMENT, counter.ctypes.data, *arguments)

    helpers = [_workers().submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        helper.result()
    if not direct:
        out.copy_(result)


def _workers() -> ThreadPoolExecutor:
    """The pool; made at the first call of a process and lost in a forked child."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(thread_name_prefix="bayes_dc"))
    return _pool[0]
