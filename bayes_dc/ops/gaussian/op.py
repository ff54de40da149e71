"""The operators torch sees: ``bayes_dc::gaussian_linear``, and two that its backward needs.

``gaussian_draw_dvar`` is the gradient of draws with respect to their variance; ``gaussian_draw`` of
mean 0 and variance 1 is the normals, which the gradient of that needs.

Nothing but the operands is saved for backward: normals are made again from their coordinates and
the variance from its product. What is left of backward is matrix products in plain torch, so that
second derivatives need no operators of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.ops import _device
from bayes_dc.ops._register import (
    compiled_without_gradients,
    importing_triton,
    keep_signatures,
    register,
)
from bayes_dc.ops.gaussian.factors import moment_factors
from bayes_dc.ops.gaussian.factors import rounded as _rounded
from bayes_dc.ops.gaussian.factors import squares as _squares

_AT = "Tensor key, Tensor sample_ids, Tensor pass_ids"
_LIBRARY = torch.library.Library("bayes_dc", "FRAGMENT")
_LIBRARY.define(
    f"gaussian_linear(Tensor x, Tensor w, Tensor? bias, {_AT}, int keep, int bits, float scale)"
    " -> Tensor"
)
_LIBRARY.define(f"gaussian_draw(Tensor mean, Tensor var, {_AT}, ScalarType dtype) -> Tensor")
_LIBRARY.define(f"gaussian_draw_dvar(Tensor gy, Tensor var, {_AT}) -> Tensor")

_FEW_INPUTS = 64


def _cpu(name: str) -> Callable[..., None]:
    """A launcher of the CPU kernels; numba is imported with the first."""
    from bayes_dc.ops.gaussian import cpu

    return getattr(cpu, name)


def _triton(name: str) -> Callable[..., Any]:
    """A function of the Triton kernels; triton is imported with the first."""
    with importing_triton():
        from bayes_dc.ops.gaussian import triton_draw, triton_hopper, triton_moments
    modules = (triton_draw, triton_hopper, triton_moments)
    return next(getattr(m, name) for m in modules if hasattr(m, name))


def launcher(name: str, rows: Tensor) -> Callable[..., Any]:
    """A launcher for the device of a tensor, for callers that bring their memory.

    Args:
        name: ``"launch_draw"``, ``"launch_draw_dvar"`` or, on a GPU, ``"launch_moments"``.
        rows: One of its operands.

    Returns:
        A launcher, which writes into the tensors it is given.
    """
    return (_cpu if rows.device.type == "cpu" else _triton)(name)


def fused_launcher(x: Tensor, w: Tensor, squares: Tensor, out: Tensor) -> Callable[..., None]:
    """What makes products and draws in one launch, on a GPU, where no passes share rows.

    Args:
        x: ``[P, S, R, K]``.
        w: ``factors.rounded`` of the weights, ``[N, K]``.
        squares: ``factors.squares`` of the weights.
        out: ``[P, S, R, N]``.

    Returns:
        ``launch_hopper`` where its kernel suits the tensors, else ``launch_linear``.
    """
    suits = _triton("suits_hopper")(x, w, squares, out)
    return _triton("launch_hopper" if suits else "launch_linear")


def _options(keep: int, bits: int, scale: float) -> dict[str, Any]:
    return {"keep": keep, "bits": bits, "scale": scale}


def _linear_cpu(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    out = _linear_fake(x, w, bias, *at)
    _cpu("launch_linear")(x, w, bias, *at[:3], out, **_options(*at[3:]))
    return out


def _linear_cuda(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    """One kernel; or moments once and draws from them, where all passes share them."""
    out, options = _linear_fake(x, w, bias, *at), _options(*at[3:])
    if out.numel() == 0:
        return out
    x, w, bias = x.detach(), w.detach(), None if bias is None else bias.detach()
    if not on_tensor_cores(x.dtype, x.shape[3]):  # which would not keep the dtype's accuracy
        mean, var = _torch_moments(x, w, bias, **options)
    elif out.shape[0] == x.shape[0]:
        squares, w = _squares(w), _rounded(w)
        launch = fused_launcher(x, w, squares, out)
        launch(x, w, bias, *at[:3], out, **options, squares=squares)
        return out
    else:
        mean = x.new_empty((*x.shape[:3], w.shape[0]), dtype=torch.float32)
        var = torch.empty_like(mean)
        _triton("launch_moments")(x, _rounded(w), bias, mean, var, **options, squares=_squares(w))
    _triton("launch_draw")(mean, var, *at[:3], out)
    return out


def _linear_fake(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    return x.new_empty((at[2].shape[0], *x.shape[1:3], w.shape[0]))


def on_tensor_cores(dtype: torch.dtype, K: int) -> bool:
    """Whether a GPU computes moments on tensor cores; for a few squares they are not accurate.

    Args:
        dtype: Type of the tensors.
        K: Inputs.

    Returns:
        True for 16 bits, and for float32 where torch may use TensorFloat-32.
    """
    if dtype == torch.float32:
        return K >= _FEW_INPUTS and _device.tensor_float32()
    return dtype == torch.bfloat16 or (dtype == torch.float16 and K >= _FEW_INPUTS)


def _torch_moments(
    x: Tensor, w: Tensor, bias: Tensor | None, keep: int, bits: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance by torch's matrix products; float16 has not the range of squares."""
    if x.dtype == torch.float16:
        x, w, bias = x.float(), w.float(), None if bias is None else bias.float()
    factors = moment_factors(keep, bits, scale)
    mean = torch.matmul(x, w.T).mul_(factors[0])
    var = torch.matmul(x.square(), w.square().T).mul_(factors[1])
    return (mean if bias is None else mean.add_(bias)), var


def _draw_by(launcher: Callable[[str], Callable[..., None]]) -> Callable[..., Tensor]:
    """``gaussian_draw`` with the launchers of one device."""

    def draw(mean: Tensor, var: Tensor, *at: Any) -> Tensor:
        out = _draw_fake(mean, var, *at)
        launcher("launch_draw")(mean, var, *at[:3], out)
        return out

    return draw


def _draw_fake(mean: Tensor, var: Tensor, *at: Any) -> Tensor:
    return mean.new_empty((at[2].shape[0], *mean.shape[1:]), dtype=at[3])


def _dvar_by(launcher: Callable[[str], Callable[..., None]]) -> Callable[..., Tensor]:
    """``gaussian_draw_dvar`` with the launchers of one device."""

    def dvar(gy: Tensor, var: Tensor, *at: Any) -> Tensor:
        out = _dvar_fake(gy, var)
        launcher("launch_draw_dvar")(gy, var, *at, out)
        return out

    return dvar


def _dvar_fake(gy: Tensor, var: Tensor, *_: Any) -> Tensor:
    return var.new_empty(var.shape)


register(_LIBRARY, "gaussian_linear", _linear_cpu, _linear_cuda, _linear_fake)
register(_LIBRARY, "gaussian_draw", _draw_by(_cpu), _draw_by(_triton), _draw_fake)
register(_LIBRARY, "gaussian_draw_dvar", _dvar_by(_cpu), _dvar_by(_triton), _dvar_fake)


class _Linear(torch.autograd.Function):
    """``bayes_dc::gaussian_linear`` with gradients for x, w and bias."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.gaussian_linear(x, w, bias, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, w, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, w, *at = ctx.saved_tensors
        needs = ctx.needs_input_grad
        mean_scale, var_scale = moment_factors(*ctx.static)
        sums = torch.float64 if x.dtype == torch.float64 else torch.float32
        # float16 has not the range of squares
        kind = torch.bfloat16 if x.dtype == torch.float16 else x.dtype
        x2, w2 = x.to(kind).square(), (var_scale * w.to(sums).square()).to(kind)
        g_mean = gy.sum(dim=0, keepdim=True) if x.shape[0] != gy.shape[0] else gy
        g_var = _dvar(gy, torch.matmul(x2, w2.T).to(sums), *at).to(kind)
        dx = dw = None
        if needs[0]:
            dx = _scaled(torch.matmul(g_mean, w).to(sums), mean_scale)
            dx = dx.addcmul(x.to(sums), torch.matmul(g_var, w2).to(sums), value=2).to(x.dtype)
        if needs[1]:
            flat_mean, flat_var = (g.flatten(0, 2).T for g in (g_mean, g_var))
            through_var = (flat_var @ x2.flatten(0, 2)).to(sums)
            dw = _scaled((flat_mean @ x.flatten(0, 2)).to(sums), mean_scale)
            dw = dw.addcmul(w.to(sums), through_var, value=2 * var_scale).to(w.dtype)
        db = gy.sum(dim=(0, 1, 2)) if ctx.has_bias and needs[2] else None
        return dx, dw, db, *[None] * 6


def _scaled(t: Tensor, factor: float) -> Tensor:
    """``factor · t``; the mean's factor is 1 for inverted scaling, and a pass over memory."""
    return t if factor == 1.0 else factor * t


class _DrawDvar(torch.autograd.Function):
    """``bayes_dc::gaussian_draw_dvar`` with gradients for gy and the variance, in plain torch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gy: Tensor, var: Tensor, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.gaussian_draw_dvar(gy, var, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        gy, var, *at = ctx.saved_tensors
        nothing, one = torch.zeros_like(var).detach(), torch.ones_like(var).detach()
        z = torch.ops.bayes_dc.gaussian_draw(nothing, one, *at, var.dtype)
        positive = var > 0
        slope = torch.where(positive, torch.where(positive, var, one).rsqrt() / 2, nothing)
        products = (gy * z).sum(dim=0, keepdim=True) if var.shape[0] != gy.shape[0] else gy * z
        return (g * slope * z).to(gy.dtype), -2 * g * products * slope**3, None, None, None


keep_signatures(_Linear, _DrawDvar)


def _dvar(*args: Any) -> Tensor:
    """``gaussian_draw_dvar``, differentiable again; a compiled backward takes the operator."""
    if torch.compiler.is_compiling():
        return torch.ops.bayes_dc.gaussian_draw_dvar(*args)
    return _DrawDvar.apply(*args)


def gaussian_linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    keep: int,
    bits: int,
    scale: float,
) -> Tensor:
    """Draws y = mean + √var z with the moments of the masked product; differentiable.

    Args:
        x: ``[P', S, R, K]`` with P' = P, or 1 where every pass reads the same rows.
        w: ``[N, K]``.
        bias: ``[N]`` or None.
        key: The two words of the layer key, int64 ``[2]``.
        sample_ids: int64 ``[S]``, taken modulo 2**32.
        pass_ids: int64 ``[P]``, taken modulo 2**32.
        keep: Numerator of the keep probability ``keep / 2**bits``.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked product.

    Returns:
        ``[P, S, R, N]`` in the dtype of ``x``.
    """
    call = _Linear.apply
    if compiled_without_gradients(x, w, bias):
        call = torch.ops.bayes_dc.gaussian_linear
    return call(x, w, bias, key, sample_ids, pass_ids, keep, bits, scale)
