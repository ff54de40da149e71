"""Per-row DropConnect linear on the CPU: launchers.

Shapes      x [P, S, R, K]   w [N, K]   bias [N] or null   gy [P, S, R, N];  the R rows of group
            (p, s) share the mask of pass_ids[p], sample_ids[s]
Mask        bits of rng/SPEC.md v1, made in a buffer that stays in the first-level cache
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``
Order       sums run over k, n or rows in ascending order, in chains of a fixed length: the same
            bits for any batch, place in it, blocking and number of threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      0.3 MB per thread, whatever G, N and K are; operands not of the type of the sums or not
            contiguous along the last dimension are copied, expanded dimensions once. The forward
            takes all of it from ``workspace``, if given, and copies there 1 MiB of rows at a time
Cost        G·N·K masked multiply-adds; on AVX-512 about 0.06 cycles each, and 0.025 per digit of p
"""

from types import ModuleType

import torch
from torch import Tensor

from bayes_dc.ops import _epilogue
from bayes_dc.ops._cpu_memory import PART, Room, parts, total
from bayes_dc.ops._cpu_tasks import do_tasks, scalar, sums_of
from bayes_dc.ops.linear import _cpu_dw, _cpu_dx, _cpu_fwd
from bayes_dc.ops.linear._cpu_ir import ROWS

_SMALL = 1 << 22
"""Masked multiply-adds below which a second thread costs more than it saves."""
_TASKS_PER_THREAD = 4
_FEW_ROWS = 32
"""Packing weights for fewer rows than these takes a share of the time that is worth avoiding."""
_WORKSPACE = "ops.linear.cpu.workspace_bytes"


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
    epilogue: tuple[Tensor | None, Tensor | None, bool] | None = None,
    workspace: Tensor | None = None,
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
        epilogue: What is done to the result before it is written; see ``_epilogue.Epilogue``.
        workspace: uint8 ``[workspace_bytes(x, w, bias, out)]``, overwritten: with it, and with ids
            that are contiguous, nothing of 4 KiB or more is allocated. None allocates.

    Raises:
        ValueError: If ``workspace`` is not such a tensor, or too small, or ``epilogue`` holds no
            vectors of the outputs.
    """
    _epilogue.options(epilogue, out)
    room, dtype = Room(workspace, _WORKSPACE), sums_of(out.dtype)
    w = _operand(w, dtype, room)
    *ending, relu = epilogue or (None, None, False)
    vectors = [None if t is None else _operand(t, dtype, room) for t in (bias, *ending)]
    rest = (w, *vectors, int(relu))
    P, S, R, _ = x.shape
    shape, ids, digits = (P, S, R, *w.shape), (key, sample_ids, pass_ids), (keep, bits)
    most = _rows_of_a_part(x, out)
    if most == 0 or workspace is None:
        _run(_cpu_fwd, (x, *rest), out, shape, ids, digits, scale, room)
        return
    for p, s, r in parts(P, S, R, most):
        part, ids = x[p, s, r], (key, sample_ids[s], pass_ids[p])
        shape = (*part.shape[:3], *w.shape)
        to, inner = out[p, s, r], room.inner()
        _run(_cpu_fwd, (part, *rest), to, shape, ids, digits, scale, inner)


def workspace_bytes(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor) -> int:
    """Size of the workspace of ``launch_fwd``; it does not depend on the number of rows.

    Args:
        x: A tensor with K, the strides and the dtype of x, on any device.
        w: The same for the weights.
        bias: For the bias, or None.
        out: For the result.

    Returns:
        Bytes, for ``torch.get_num_threads()`` threads. With less, fewer threads work.
    """
    dtype = sums_of(out.dtype)
    rows, copied = _rows_of_a_part(x, out), _copied(x, out)
    sizes = [t.numel() for t in (w, bias) if t is not None and not _usable(t, dtype)]
    sizes += [rows * count for count in copied]
    sizes += [w.shape[0]] * 2  # of an epilogue of another type
    threads = [_cpu_fwd.scratch_bytes(dtype.itemsize)] * torch.get_num_threads()
    return total(*(size * dtype.itemsize for size in sizes), *threads)


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
    _run(_cpu_dx, (gy, w), out, shape, ids, (keep, bits), scale, Room(None, _WORKSPACE))


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
    _run(_cpu_dw, (gy, x), out, shape, ids, (keep, bits), scale, Room(None, _WORKSPACE))


def _run(
    kernel: ModuleType,
    operands: tuple[Tensor | int | None, ...],
    out: Tensor,
    shape: tuple[int, ...],
    ids: tuple[Tensor, Tensor, Tensor],
    digits: tuple[int, int],
    scale: float,
    room: Room,
) -> None:
    """Do a kernel's tasks on as many threads as they are worth, the caller's among them."""
    dtype = sums_of(out.dtype)
    direct = _direct(out, dtype)
    result = out if direct else room.tensor(out.shape, dtype)
    numbers: list[Tensor | int] = []
    for t in operands:
        if isinstance(t, Tensor):
            t = _operand(t, dtype, room)
            numbers += [t, *t.stride()[:-1]]
        else:
            numbers.append(t or 0)
    threads = torch.get_num_threads() if torch.Size(shape).numel() > _SMALL else 1
    do_tasks(
        kernel,
        threads,
        _task_shape(kernel, shape, threads),
        tuple(numbers),
        (result, *shape, *(t.contiguous() for t in ids), *digits),
        scale=scalar(scale, dtype),
        room=room,
    )
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


def _usable(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a kernel reads the tensor as it is."""
    return tensor.dtype == dtype and (tensor.stride(-1) == 1 or tensor.shape[-1] < 2)


def _direct(out: Tensor, dtype: torch.dtype) -> bool:
    """Whether a kernel writes into ``out``."""
    return out.dtype == dtype and out.is_contiguous()


def _operand(tensor: Tensor, dtype: torch.dtype, room: Room) -> Tensor:
    """The values in ``dtype``, contiguous along the last dimension; expanded ones copied once."""
    if _usable(tensor, dtype):
        return tensor
    compact = tensor
    for dim in range(tensor.dim() - 1):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            compact = compact.narrow(dim, 0, 1)
    return room.tensor(compact.shape, dtype).copy_(compact).expand(tensor.shape)


def _copied(x: Tensor, out: Tensor) -> list[int]:
    """Elements to copy for every row, of x and of the result."""
    dtype = sums_of(out.dtype)
    inputs = [] if _usable(x, dtype) else [x.shape[3]]
    return inputs if _direct(out, dtype) else [*inputs, out.shape[3]]


def _rows_of_a_part(x: Tensor, out: Tensor) -> int:
    """Rows whose copies fit into a part of the workspace; 0 where there are none."""
    size = sum(_copied(x, out)) * sums_of(out.dtype).itemsize
    return max(1, PART // size) if size else 0
