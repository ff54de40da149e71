"""The Gaussian sampler on the CPU: launchers.

Shapes      x [P', S, R, K] with P' = 1 or P, w [N, K], bias [N] or null; mean and var
            [P', S, R, N]; out [P, S, R, N]
Normals     rng/SPEC.md v1, made for 256 outputs of a row at a time and used at once
Precision   products and sums in float32 (float64 for float64), rounded once to the type of ``out``;
            normals are float32
Order       fixed: a row's bits do not depend on the other rows, on tasks or threads
Threads     torch.get_num_threads(), from the pool of ``ops/_threads.py``
Memory      W packed once, operands that are not of the type of the sums or not contiguous copied
Cost        2·P'·S·R·N·K multiply-adds and P·S·R·N normals, about 2 ns each
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayes_dc.ops import _threads
from bayes_dc.ops.gaussian import _cpu_draw
from bayes_dc.ops.gaussian._cpu_products import OUTPUTS
from bayes_dc.ops.gaussian.factors import moment_factors

_SMALL = 1 << 18
"""Multiply-adds below which a second thread costs more than it saves; a normal counts as 64."""
_NORMAL = 64
_TASKS_PER_THREAD = 4
_SERIAL = 1 << 14


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
    """
    dtype = _sums(out)
    K, N = x.shape[3], out.shape[3]
    rows = x.shape[:3].numel()
    mean_scale, var_scale = moment_factors(keep, bits, scale)
    flat = _array(x, dtype).reshape(rows, K)
    operands = (flat, _packed(w, dtype), _bias(bias, N, dtype))
    factors = (flat.dtype.type(mean_scale), flat.dtype.type(var_scale))
    work = 2 * rows * N * K + _NORMAL * out.numel()
    splits = -(-N // _cpu_draw.BLOCK)
    _run(_cpu_draw.linear, operands, out, factors, (key, sample_ids, pass_ids), work, rows, splits)


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
    dtype = _sums(mean)
    operands = tuple(_rows(t, dtype) for t in (mean, var))
    rows, work = operands[0].shape[0], _NORMAL * out.numel()
    kind = operands[0].dtype.type
    _run(_cpu_draw.draw, operands, out, (kind(0),), (key, sample_ids, pass_ids), work, rows)


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
    dtype = _sums(var)
    operands = tuple(_rows(t, dtype) for t in (gy, var))
    rows, work = operands[1].shape[0], _NORMAL * gy.numel()
    kind = operands[0].dtype.type
    _run(_cpu_draw.draw_dvar, operands, out, (kind(0.5),), (key, sample_ids, pass_ids), work, rows)


def _run(
    kernel: Callable[..., None],
    operands: tuple[np.ndarray, ...],
    out: Tensor,
    factors: tuple[np.floating, ...],
    ids: tuple[Tensor, Tensor, Tensor],
    work: int,
    rows: int,
    splits: int = 1,
) -> None:
    """Do a kernel's tasks on as many threads as they are worth."""
    R, N = out.shape[2:]
    if out.numel() == 0:
        return
    dtype = torch.float64 if operands[0].dtype == np.float64 else torch.float32
    direct = out.dtype == dtype and out.is_contiguous()
    result = out.detach() if direct else torch.empty(out.shape, dtype=dtype)
    threads = torch.get_num_threads() if work > _SMALL else 1
    task_rows = _cpu_draw.TASK_ROWS
    while task_rows > 1 and -(-rows // task_rows) * splits < _TASKS_PER_THREAD * threads:
        task_rows //= 2
    counter = np.zeros(1, np.int64)
    coordinates = [t.contiguous().numpy() for t in ids]
    arguments = (task_rows, *operands, result.view(-1, N).numpy(), *factors, *coordinates, R)
    _threads.share(lambda: kernel(counter.ctypes.data, *arguments), threads)
    if not direct:
        _write(out, result)


def _sums(tensor: Tensor) -> torch.dtype:
    """Type of products and sums."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """The values, contiguous; by NumPy: torch's copies use OpenMP, which no fork survives."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.int16).numpy().astype(np.uint16).astype(np.uint32)
        values = (bits << 16).view(np.float32)
    else:
        values = tensor.numpy()
    return np.ascontiguousarray(values, dtype=np.float64 if dtype == torch.float64 else np.float32)


def _write(out: Tensor, result: Tensor) -> None:
    """Copy and convert, a few elements at a time, which torch does without OpenMP."""
    if not out.is_contiguous():
        out.copy_(result)
        return
    for to, part in zip(out.view(-1).split(_SERIAL), result.view(-1).split(_SERIAL), strict=True):
        to.copy_(part)


def _rows(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """The values of [P, S, R, N], a row of them for every row."""
    return _array(tensor, dtype).reshape(tensor.shape[:3].numel(), tensor.shape[3])


def _packed(w: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Weights of 32 outputs side by side: [cdiv(N, 32), K, 32]."""
    values = _array(w, dtype)
    N, K = values.shape
    words = -(-N // OUTPUTS)
    packed = np.zeros((words, K, OUTPUTS), values.dtype)
    whole = N // OUTPUTS
    packed[:whole] = values[: whole * OUTPUTS].reshape(whole, OUTPUTS, K).transpose(0, 2, 1)
    packed[whole:, :, : N - whole * OUTPUTS] = values[whole * OUTPUTS :].T
    return packed


def _bias(bias: Tensor | None, N: int, dtype: torch.dtype) -> np.ndarray:
    """The bias, or zeros."""
    return (
        np.zeros(N, np.float64 if dtype == torch.float64 else np.float32)
        if bias is None
        else _array(bias, dtype)
    )
