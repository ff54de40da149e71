"""The Gaussian sampler on the CPU: launchers.

Shapes      x [P', S, R, K] with P' = 1 or P, w [N, K], bias [N] or null; mean and var
            [P', S, R, N]; out [P, S, R, N]
Normals     rng/SPEC.md v1, made for 256 outputs of a row at a time and used at once
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``;
            normals are float32
Order       fixed: a row's bits do not depend on the other rows, on tasks or threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      0.1 MB of scratch per thread; W packed in a copy; operands that are not of the type of
            the sums or not contiguous are copied. ``launch_linear`` takes all of it from
            ``workspace``, if given, and copies there 1 MiB of rows at a time
Cost        2·P'·S·R·N·K multiply-adds and P·S·R·N normals, about 2 ns each
"""

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops._cpu_memory import PART, Room, parts, total
from bayes_dc.ops._cpu_pack import check_packed, pack, packed_shape
from bayes_dc.ops._cpu_tasks import scalar, sums_of
from bayes_dc.ops.gaussian import _cpu_draw
from bayes_dc.ops.gaussian.factors import moment_factors

_SMALL = 1 << 18
"""Multiply-adds below which a second thread costs more than it saves; a normal counts as 64."""
_NORMAL = 64
_TASKS_PER_THREAD = 4
_SERIAL = 1 << 14
_WORKSPACE = "ops.gaussian.cpu.workspace_bytes"
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_Ids = tuple[Tensor, Tensor, Tensor]


def launch_linear(
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
    packed: Tensor | None = None,
    workspace: Tensor | None = None,
) -> None:
    """Write mean + √var · z with the moments of x; see ``reference.moments`` and ``draw``.

    Args:
        x: Activations, ``[P', S, R, K]`` with P' = 1 (shared by all passes) or P; any strides.
        w: Weights, ``[N, K]``.
        bias: ``[N]``, or None.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, S, R, N]``.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked product.
        packed: What ``pack_weights`` made of w, which is then not read; the result is the same.
        workspace: uint8 ``[workspace_bytes(x, w, bias, out)]``, overwritten: with it, and with
            contiguous ids, nothing of 4 KiB or more is allocated. None allocates.

    Raises:
        ValueError: If ``packed`` or ``workspace`` are not what they must be.
    """
    room, dtype = Room(workspace, _WORKSPACE), sums_of(out.dtype)
    shape = packed_shape(*w.shape)
    if packed is None:
        weights = room.tensor(shape, dtype)
        pack(_values(w, dtype, room), weights, 1, room)
    else:
        weights = check_packed(packed, shape, dtype)
    added = room.tensor((w.shape[0],), dtype).zero_() if bias is None else bias
    fixed = (weights[0].numpy(), _values(added, dtype, room).numpy())
    factors = tuple(scalar(value, dtype) for value in moment_factors(keep, bits, scale))
    if workspace is None or not _copies(x, out):
        _linear(x, fixed, out, factors, (key, sample_ids, pass_ids), room)
        return
    shared = x.shape[0] < out.shape[0]
    # A sample in all passes, if possible: they may share its moments.
    for s, p, _ in parts(out.shape[1], out.shape[0], 1, _groups_of_a_part(x, out)):
        ids, inner = (key, sample_ids[s], pass_ids[p]), room.inner()
        _linear(x[:, s] if shared else x[p, s], fixed, out[p, s], factors, ids, inner)


def workspace_bytes(
    x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, *, packed: bool = False
) -> int:
    """Size of the workspace of ``launch_linear``; it does not depend on passes and samples.

    Args:
        x: A tensor with R, K, the strides and the dtype of x, on any device.
        w: The same for the weights.
        bias: For the bias, or None.
        out: For the result.
        packed: Whether packed weights will be given.

    Returns:
        Bytes, for ``torch.get_num_threads()`` threads. With less, fewer threads work.
    """
    dtype = sums_of(out.dtype)
    tensors = ([] if packed else [w]) + ([] if bias is None else [bias])
    counts = [] if packed else [torch.Size(packed_shape(*w.shape)).numel()]
    # A strided operand of another type is copied twice.
    counts += [t.numel() for t in tensors for _ in range(2) if not _usable(t, dtype)]
    counts += [w.shape[0]] * (bias is None)
    if _copies(x, out):
        rows = _groups_of_a_part(x, out) * x.shape[2]
        counts += [rows * x.shape[3], rows * x.shape[3], rows * w.shape[0]]
    threads = [_cpu_draw.scratch_bytes(dtype.itemsize)] * torch.get_num_threads()
    return total(*(count * dtype.itemsize for count in counts), *threads)


def pack_weights(w: Tensor, out: Tensor | None = None) -> Tensor:
    """Weights ``[N, K]`` as the kernel of ``launch_linear`` reads them, for ``packed``.

    Args:
        w: ``[N, K]``, any strides.
        out: Tensor ``[1, cdiv(N, 32), K, 32]`` in the type of the sums (float64 for float64, else
            float32), at a multiple of 64 bytes; None allocates it.

    Returns:
        ``out``.

    Raises:
        ValueError: If ``out`` is not such a tensor.
    """
    dtype, shape, room = sums_of(w.dtype), packed_shape(*w.shape), Room(None, _WORKSPACE)
    result = torch.empty(shape, dtype=dtype) if out is None else check_packed(out, shape, dtype)
    pack(_values(w, dtype, room), result, 1, room)
    return result


def launch_draw(
    mean: Tensor, var: Tensor, key: Tensor, sample_ids: Tensor, pass_ids: Tensor, out: Tensor
) -> None:
    """Write mean + √var · z.

    Args:
        mean: ``[P', S, R, N]``, P' = 1 (shared by all passes) or P.
        var: ``[P', S, R, N]``; a negative one counts as 0.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P, S, R, N]``.
    """
    room, dtype = Room(None, _WORKSPACE), sums_of(mean.dtype)
    operands = tuple(_rows(t, dtype, room) for t in (mean, var))
    rows, work = operands[0].shape[0], _NORMAL * out.numel()
    ids, zero = (key, sample_ids, pass_ids), (scalar(0.0, dtype),)
    _run(_cpu_draw.draw, operands, out, zero, ids, work, rows, room)


def launch_draw_dvar(
    gy: Tensor, var: Tensor, key: Tensor, sample_ids: Tensor, pass_ids: Tensor, out: Tensor
) -> None:
    """Write Σ gy · z / (2 √var) over the passes that share a variance; 0 where it is 0.

    Args:
        gy: Gradient of the draws, ``[P, S, R, N]``.
        var: ``[P', S, R, N]``, P' = 1 (shared by all passes) or P.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        out: Result, ``[P', S, R, N]``.
    """
    room, dtype = Room(None, _WORKSPACE), sums_of(var.dtype)
    operands = tuple(_rows(t, dtype, room) for t in (gy, var))
    rows, work = operands[1].shape[0], _NORMAL * gy.numel()
    ids, half = (key, sample_ids, pass_ids), (scalar(0.5, dtype),)
    _run(_cpu_draw.draw_dvar, operands, out, half, ids, work, rows, room)


def _linear(
    x: Tensor,
    fixed: tuple[np.ndarray, np.ndarray],
    out: Tensor,
    factors: tuple[np.floating, ...],
    ids: _Ids,
    room: Room,
) -> None:
    """``launch_linear`` with packed weights and a bias."""
    rows, K, N = x.shape[:3].numel(), x.shape[3], out.shape[3]
    operands = (_rows(x, sums_of(out.dtype), room), *fixed)
    work = 2 * rows * N * K + _NORMAL * out.numel()
    splits = -(-N // _cpu_draw.BLOCK)
    _run(_cpu_draw.linear, operands, out, factors, ids, work, rows, room, splits)


def _run(
    kernel: Callable[..., None],
    operands: tuple[np.ndarray, ...],
    out: Tensor,
    factors: tuple[np.floating, ...],
    ids: _Ids,
    work: int,
    rows: int,
    room: Room,
    splits: int = 1,
) -> None:
    """Do a kernel's tasks on as many threads as they are worth."""
    R, N = out.shape[2:]
    if out.numel() == 0:
        return
    dtype = torch.float64 if operands[0].dtype == np.float64 else torch.float32
    direct = _usable(out, dtype)
    result = out.detach() if direct else room.tensor(out.shape, dtype)
    slots = room.slots(
        torch.get_num_threads() if work > _SMALL else 1, _cpu_draw.scratch_bytes(dtype.itemsize)
    )
    threads = len(slots)
    task_rows = _cpu_draw.TASK_ROWS
    while task_rows > 1 and -(-rows // task_rows) * splits < _TASKS_PER_THREAD * threads:
        task_rows //= 2
    counter = ctypes.c_int64(0)
    tasks = ctypes.addressof(counter)
    coordinates = [t.contiguous().numpy() for t in ids]
    arguments = (task_rows, *operands, result.view(-1, N).numpy(), *factors, *coordinates, R)
    _threads.share(lambda: kernel(slots.pop(), tasks, *arguments), threads)
    if not direct:
        _write(out, result)


def _usable(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a kernel reads or writes the tensor as it is."""
    return tensor.dtype == dtype and tensor.is_contiguous()


def _copies(x: Tensor, out: Tensor) -> bool:
    """Whether rows need memory of the kernel's own."""
    dtype = sums_of(out.dtype)
    return not (_usable(x, dtype) and _usable(out, dtype))


def _groups_of_a_part(x: Tensor, out: Tensor) -> int:
    """Groups whose copies, two of x and one of the result, fit into a part of the workspace."""
    size = x.shape[2] * (2 * x.shape[3] + out.shape[3]) * sums_of(out.dtype).itemsize
    return max(1, PART // max(1, size))


def _values(tensor: Tensor, dtype: torch.dtype, room: Room) -> Tensor:
    """The values, contiguous; without OpenMP, whose threads no fork survives."""
    tensor = tensor.detach()
    if tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    if not tensor.is_contiguous():
        bits = _BITS[tensor.element_size()]
        compact = room.tensor(tensor.shape, tensor.dtype)
        np.copyto(compact.view(bits).numpy(), tensor.view(bits).numpy())
        tensor = compact
    if tensor.dtype == dtype:
        return tensor
    result = room.tensor(tensor.shape, dtype)
    _write(result, tensor)
    return result


def _write(out: Tensor, result: Tensor) -> None:
    """Copy and convert, a few elements at a time, which torch does without OpenMP."""
    if not out.is_contiguous():
        out.copy_(result)
        return
    for to, part in zip(out.view(-1).split(_SERIAL), result.view(-1).split(_SERIAL), strict=True):
        to.copy_(part)


def _rows(tensor: Tensor, dtype: torch.dtype, room: Room) -> np.ndarray:
    """The values of [P, S, R, N], a row of them for every row."""
    values = _values(tensor, dtype, room)
    return values.view(tensor.shape[:3].numel(), tensor.shape[3]).numpy()
