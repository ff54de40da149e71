"""Draws from given moments, y = mean + √var z, and the gradient of the variance.

Shapes      mean, var [P', S, R, N] with P' = 1 (shared by all passes) or P; gy, out [P, S, R, N];
            gradient [P', S, R, N]; any strides
Normals     rng/SPEC.md v1 at (sample_ids[s], pass_ids[p], row, n), made in registers
Grid        draw: cdiv(P·S·R, BM) · cdiv(N, 4·QUADS) programs; gradient: the same of P' for P
Precision   float32 (float64 for float64), rounded once to the type of ``out``
Order       the gradient of a shared variance adds its passes in ascending order: no atomics
Cost        about 45 instructions for each normal; writes ``out`` once
Limits      N < 2**26, P·S·R < 2**31; row offsets are int64
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.ops._coordinates import row_coordinates
from bayes_dc.ops.gaussian.triton_noise import noise_tile

_BLOCK = 1024
"""Elements of a tile."""
_RUNTIME = ("S", "R", "M", "N", "passes")


@triton.jit(do_not_specialize=_RUNTIME)
def gaussian_draw_kernel(
    mean_ptr,
    var_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    N,
    stride_mp,
    stride_ms,
    stride_mr,
    stride_mn,
    stride_vp,
    stride_vs,
    stride_vr,
    stride_vn,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    stride_on,
    ACC: tl.constexpr,
    BM: tl.constexpr,
    QUADS: tl.constexpr,
):
    """BM rows × 4 · QUADS outputs."""
    tiles = tl.cdiv(N, 4 * QUADS)
    n4 = tl.program_id(0) % tiles * QUADS
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    p, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    n = (4 * n4 + tl.arange(0, 4 * QUADS)).to(tl.int64)[None, :]
    inside = (m < M)[:, None] & (n < N)
    row_mean = (p * stride_mp + s * stride_ms + r * stride_mr)[:, None]
    row_var = (p * stride_vp + s * stride_vs + r * stride_vr)[:, None]
    mean = tl.load(mean_ptr + row_mean + n * stride_mn, mask=inside, other=0.0).to(ACC)
    var = tl.load(var_ptr + row_var + n * stride_vn, mask=inside, other=0.0).to(ACC)
    sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
    step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    z = noise_tile(k0, k1, sample, step, r.to(tl.uint32), n4, BM, QUADS)
    y = mean + tl.sqrt(tl.where(var < 0.0, 0.0, var)) * z.to(ACC)
    at = out_ptr + (p * stride_op + s * stride_os + r * stride_or)[:, None] + n * stride_on
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_RUNTIME)
def gaussian_draw_dvar_kernel(
    gy_ptr,
    var_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    R,
    M,
    N,
    passes,
    stride_gp,
    stride_gs,
    stride_gr,
    stride_gn,
    stride_vp,
    stride_vs,
    stride_vr,
    stride_vn,
    stride_sample,
    stride_pass,
    stride_op,
    stride_os,
    stride_or,
    stride_on,
    ACC: tl.constexpr,
    BM: tl.constexpr,
    QUADS: tl.constexpr,
):
    """BM rows of the variance × 4 · QUADS outputs, over the ``passes`` that share each."""
    tiles = tl.cdiv(N, 4 * QUADS)
    n4 = tl.program_id(0) % tiles * QUADS
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    first, s, r = row_coordinates(tl.minimum(m, M - 1), S, R)
    n = (4 * n4 + tl.arange(0, 4 * QUADS)).to(tl.int64)[None, :]
    inside = (m < M)[:, None] & (n < N)
    sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    gy = gy_ptr + (s * stride_gs + r * stride_gr)[:, None] + n * stride_gn
    total = tl.zeros([BM, 4 * QUADS], ACC)
    for shared in range(0, passes):
        p = first + shared  # first is 0 where passes > 1
        step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
        z = noise_tile(k0, k1, sample, step, r.to(tl.uint32), n4, BM, QUADS)
        g = tl.load(gy + (p * stride_gp)[:, None], mask=inside, other=0.0)
        total += g.to(ACC) * z.to(ACC)
    row_var = (first * stride_vp + s * stride_vs + r * stride_vr)[:, None]
    var = tl.load(var_ptr + row_var + n * stride_vn, mask=inside, other=0.0).to(ACC)
    # NaN stays NaN, as does a variance of NaN in the draw.
    grad = tl.where(var > 0.0, total * 0.5 / tl.sqrt(tl.where(var > 0.0, var, 1.0)), var - var)
    at = out_ptr + (first * stride_op + s * stride_os + r * stride_or)[:, None] + n * stride_on
    tl.store(at, grad.to(out_ptr.dtype.element_ty), mask=inside)


def launch_draw(
    mean: Tensor, var: Tensor, key: Tensor, sample_ids: Tensor, pass_ids: Tensor, out: Tensor
) -> None:
    """Write draws into ``out``; see ``bayes_dc.ops.gaussian.reference.draw``."""
    P, S, R, N = out.shape
    M = P * S * R
    if M == 0 or N == 0:
        return
    rows, quads = _tile(N)
    grid = (triton.cdiv(N, 4 * quads) * triton.cdiv(M, rows),)
    shared = mean.shape[0] < P
    with _launch.on_device_of(out):
        gaussian_draw_kernel[grid](
            mean,
            var,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
            N,
            *_strides(mean, shared),
            *_strides(var, shared),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            ACC=_launch.accumulator(var.dtype),
            BM=rows,
            QUADS=quads,
        )


def launch_draw_dvar(
    gy: Tensor, var: Tensor, key: Tensor, sample_ids: Tensor, pass_ids: Tensor, out: Tensor
) -> None:
    """Write Σ gy z / (2 √var) over the passes that share a variance, 0 where it is 0."""
    moments, S, R, N = var.shape
    M = moments * S * R
    if M == 0 or N == 0:
        return
    rows, quads = _tile(N)
    grid = (triton.cdiv(N, 4 * quads) * triton.cdiv(M, rows),)
    with _launch.on_device_of(out):
        gaussian_draw_dvar_kernel[grid](
            gy,
            var,
            key,
            sample_ids,
            pass_ids,
            out,
            S,
            R,
            M,
            N,
            gy.shape[0] // moments,
            *gy.stride(),
            *var.stride(),
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride(),
            ACC=_launch.accumulator(var.dtype),
            BM=rows,
            QUADS=quads,
        )


def _strides(moment: Tensor, shared: bool) -> tuple[int, ...]:
    """Strides of a moment; 0 over the passes that share it."""
    return (0, *moment.stride()[1:]) if shared else moment.stride()


def _tile(N: int) -> tuple[int, int]:
    """Rows and quads of a tile: wide, but not much wider than N."""
    quads = min(32, triton.next_power_of_2(triton.cdiv(N, 4)))
    return _BLOCK // (4 * quads), quads
