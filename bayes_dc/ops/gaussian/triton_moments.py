"""Both moments of the masked product on tensor cores, and the draw from them.

Shapes      x [P, S, R, K], w [N, K], any strides; squares [N, K] = w² in bfloat16, strides of its
            own; b [N] or null; out [P, S, R, N]; m counts the P·S·R rows
Normals     rng/SPEC.md v1, made when the sums are ready
Grid        cdiv(N, BN) · cdiv(M, BM) programs
Precision   x² and w² in bfloat16, which has the range of float32; its rounding is not biased and
            averages out over the inputs, where TensorFloat-32 would cut bits off. Sums in float32,
            one rounding to the type of ``out``. float32 operands of the mean in TensorFloat-32.
Order       k ascends inside one program: no atomics, no split
Cost        2·M·N·K multiply-adds, and about 45 instructions for each normal
Limits      N < 2**26, M < 2**31; row offsets are int64
Source      Wang & Manning 2013, *Fast dropout training*; Kingma et al. 2015, *Variational dropout
            and the local reparameterization trick*
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _device, _launch, _tuned
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.gaussian.factors import moment_factors
from bayes_dc.ops.gaussian.triton_noise import noise_tile

_LARGE_SHARED_MEMORY = 160 << 10
_FEW_PROGRAMS = 132


class GaussianConfig(NamedTuple):
    """Launch configuration.

    Attributes:
        rows: Rows per tile.
        outputs: Outputs per tile.
        inputs: Inputs per tile.
        warps: Warps per program.
        stages: Tiles in flight.
    """

    rows: int = 64
    outputs: int = 64
    inputs: int = 32
    warps: int = 4
    stages: int = 2


def gaussian_config(
    M: int, N: int, K: int, dtype: torch.dtype, device: torch.device
) -> GaussianConfig:
    """Configuration measured on this GPU, or one that fits its shared memory."""
    if _launch.INTERPRETED:
        return GaussianConfig(rows=16, outputs=16, inputs=16)
    found = _tuned.lookup("gaussian_linear", device, dtype, M=M, N=N, K=K)
    if found is not None:
        return GaussianConfig(**found)
    outputs = min(128, max(16, triton.next_power_of_2(N)))
    if _device.gpu(device).shared_memory_bytes < _LARGE_SHARED_MEMORY:
        return GaussianConfig(outputs=min(64, outputs))
    inputs = 32 if dtype == torch.float32 else 64
    if triton.cdiv(M, 128) * triton.cdiv(N, outputs) < _FEW_PROGRAMS:
        return GaussianConfig(rows=64, outputs=min(64, outputs), inputs=inputs, stages=4)
    warps = 8 if outputs == 128 else 4
    return GaussianConfig(rows=128, outputs=outputs, inputs=inputs, warps=warps, stages=3)


@triton.jit
def _add_products(
    x, w, squares, mean, var, k, K, EVEN_K: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """Add the inputs ``k`` to both sums."""
    if EVEN_K:
        xs = tl.load(x)
        ws = tl.load(w)
        ws2 = tl.load(squares)
    else:
        valid = (k < K)[None, :]
        xs = tl.load(x, mask=valid, other=0.0)
        ws = tl.load(w, mask=valid, other=0.0)
        ws2 = tl.load(squares, mask=valid, other=0.0)
    xf = xs.to(tl.float32)
    xs2 = (xf * xf).to(ws2.dtype)
    if WIDEN:  # the interpreter multiplies the bits of a bfloat16
        xs, ws, xs2, ws2 = xf, ws.to(tl.float32), xs2.to(tl.float32), ws2.to(tl.float32)
    mean = tl.dot(xs, tl.trans(ws), mean, input_precision="tf32")
    var = tl.dot(xs2, tl.trans(ws2), var, input_precision="tf32")
    return mean, var


@triton.jit(do_not_specialize=["S", "R", "M"])
def gaussian_linear_kernel(
    x_ptr,
    w_ptr,
    squares_ptr,
    b_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    var_ptr,
    S,
    R,
    M,
    N,
    K,
    stride_xp,
    stride_xs,
    stride_xr,
    stride_xk,
    stride_wn,
    stride_wk,
    stride_qn,
    stride_qk,
    stride_b,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    stride_on,
    MEAN_SCALE: tl.constexpr,
    VAR_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DRAW: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDEN: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """BM rows × BN outputs: draws in ``out``, or mean in ``out`` and variance in ``var``."""
    tiles = tl.cdiv(N, BN)
    pn = tl.program_id(0) % tiles
    pm = tl.program_id(0) // tiles
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    wide = k.to(tl.int64)[None, :]
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    x = x_ptr + (p * stride_xp + s * stride_xs + r * stride_xr)[:, None] + wide * stride_xk
    row_w = tl.minimum(n, N - 1).to(tl.int64)[:, None]
    w = w_ptr + row_w * stride_wn + wide * stride_wk
    squares = squares_ptr + row_w * stride_qn + wide * stride_qk
    mean = tl.zeros([BM, BN], tl.float32)
    var = tl.zeros([BM, BN], tl.float32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        mean, var = _add_products(x, w, squares, mean, var, first + k, K, EVEN_K, WIDEN)
        x += tl.cast(BK, tl.int64) * stride_xk
        w += tl.cast(BK, tl.int64) * stride_wk
        squares += tl.cast(BK, tl.int64) * stride_qk
    mean *= MEAN_SCALE
    var *= VAR_SCALE
    if HAS_BIAS:
        b = tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=n < N, other=0.0)
        mean += b.to(tl.float32)[None, :]
    at = (p * stride_op + s * stride_os + r * stride_or)[:, None]
    at += (n.to(tl.int64) * stride_on)[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    if DRAW:
        sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
        step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
        k0 = tl.load(key_ptr).to(tl.uint32)
        k1 = tl.load(key_ptr + 1).to(tl.uint32)
        z = noise_tile(k0, k1, sample, step, r.to(tl.uint32), pn * (BN // 4), BM, BN // 4)
        mean += tl.sqrt(var) * z
    else:
        tl.store(var_ptr + at, var, mask=inside)
    tl.store(out_ptr + at, mean.to(out_ptr.dtype.element_ty), mask=inside)


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
    squares: Tensor,
    config: GaussianConfig | None = None,
) -> None:
    """Write draws into ``out``; see ``bayes_dc.ops.gaussian.reference``.

    ``squares`` is w² in bfloat16; ``x`` has as many passes as ``out``.
    """
    factors = moment_factors(keep, bits, scale)
    _launch_kernel(x, w, bias, (key, sample_ids, pass_ids), out, None, squares, factors, config)


def launch_moments(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    squares: Tensor,
    config: GaussianConfig | None = None,
) -> None:
    """Write mean and variance, float32 tensors of one layout; see ``reference.moments``."""
    factors = moment_factors(keep, bits, scale)
    _launch_kernel(x, w, bias, None, mean, var, squares, factors, config)


def _launch_kernel(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    ids: tuple[Tensor, Tensor, Tensor] | None,
    out: Tensor,
    var: Tensor | None,
    squares: Tensor,
    factors: tuple[float, float],
    config: GaussianConfig | None,
) -> None:
    P, S, R, N = out.shape
    K = x.shape[3]
    M = P * S * R
    if M == 0 or N == 0:
        return
    config = config or gaussian_config(M, N, K, x.dtype, x.device)
    key, sample_ids, pass_ids = ids or (x, x, x)
    grid = (triton.cdiv(N, config.outputs) * triton.cdiv(M, config.rows),)
    with _launch.on_device_of(x):
        gaussian_linear_kernel[grid](
            x,
            w,
            squares,
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            var if var is not None else out,
            S,
            R,
            M,
            N,
            K,
            *x.stride(),
            *w.stride(),
            *squares.stride(),
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            MEAN_SCALE=factors[0],
            VAR_SCALE=factors[1],
            HAS_BIAS=bias is not None,
            DRAW=var is None,
            EVEN_K=K % config.inputs == 0,
            WIDEN=_launch.INTERPRETED,
            BM=config.rows,
            BN=config.outputs,
            BK=config.inputs,
            STAGES=config.stages,
            num_warps=config.warps,
            num_stages=config.stages,
        )
