"""The operators torch sees: `bayes_dc::linear`, `linear_dx`, `linear_dw`, and their derivatives.

y is linear in x and in w, so the three operators are closed under differentiation: each one's
gradients are calls of the other two. Masks are made again from the coordinates in every call and
never saved. `torch.library.define` + `impl` + `autograd.Function` (rather than `custom_op`) because
`torch.func.grad` and `vmap(grad)` pass through it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.ops import _grouped
from bayes_dc.ops._register import (
    compiled_without_gradients,
    importing_triton,
    keep_signatures,
    register,
)

_COORDINATES = "Tensor key, Tensor sample_ids, Tensor pass_ids, int keep, int bits, float scale"
_LIBRARY = torch.library.Library("bayes_dc", "DEF")
_LIBRARY.define(f"linear(Tensor x, Tensor w, Tensor? bias, {_COORDINATES}) -> Tensor")
_LIBRARY.define(f"linear_dx(Tensor gy, Tensor w, {_COORDINATES}) -> Tensor")
_LIBRARY.define(f"linear_dw(Tensor gy, Tensor x, {_COORDINATES}) -> Tensor")


def _cpu(name: str, rows: Tensor) -> Callable[..., None]:
    """A launcher of the CPU kernels; numba is imported with the first."""
    from bayes_dc.ops.linear import cpu

    return getattr(cpu, name)


def _triton(name: str, rows: Tensor) -> Callable[..., None]:
    """A launcher of the Triton kernels for ``rows`` [P, S, R, …]; triton comes with the first."""
    with importing_triton():
        from bayes_dc.ops.linear import (
            triton_dw,
            triton_dx,
            triton_fwd,
            triton_grouped_dw,
            triton_grouped_dx,
            triton_grouped_fwd,
        )
    by_row = {"launch_fwd": triton_fwd, "launch_dx": triton_dx, "launch_dw": triton_dw}
    by_group = {
        "launch_fwd": triton_grouped_fwd,
        "launch_dx": triton_grouped_dx,
        "launch_dw": triton_grouped_dw,
    }
    grouped = _grouped.uses_tensor_cores(rows.shape[2], rows.dtype)
    return getattr((by_group if grouped else by_row)[name], name)


def launcher(name: str, rows: Tensor) -> Callable[..., None]:
    """What computes a call: the choice of the operators, for callers that bring their memory.

    Args:
        name: ``"launch_fwd"``, ``"launch_dx"`` or ``"launch_dw"``.
        rows: ``[P, S, R, …]``, the operand with the rows that share masks.

    Returns:
        A launcher, which writes into the tensor it is given.
    """
    return (_cpu if rows.device.type == "cpu" else _triton)(name, rows)


def _options(keep: int, bits: int, scale: float) -> dict[str, Any]:
    return {"keep": keep, "bits": bits, "scale": scale}


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    """``linear``; ``at`` are the coordinates of the schema."""
    out = x.new_empty((*x.shape[:3], w.shape[0]))
    launcher("launch_fwd", x)(x, w, bias, *at[:3], out, **_options(*at[3:]))
    return out


def _linear_dx(gy: Tensor, w: Tensor, *at: Any) -> Tensor:
    """``linear_dx``."""
    out = gy.new_empty((*gy.shape[:3], w.shape[1]))
    launcher("launch_dx", gy)(gy, w, *at[:3], out, **_options(*at[3:]))
    return out


def _dw_cpu(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
    out = gy.new_empty((gy.shape[3], x.shape[3]))
    _cpu("launch_dw", gy)(gy, x, *at[:3], out, **_options(*at[3:]))
    return out


def _dw_triton(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
    """With room for the sums of the runs of rows, where the shape asks for more than one."""
    launch = _triton("launch_dw", gy)
    from bayes_dc.ops import _launch

    P, S, R, N = gy.shape
    K = x.shape[3]
    out = gy.new_empty((N, K))
    if _grouped.uses_tensor_cores(R, gy.dtype):
        splits = _grouped.dw_splits(P * S, N, K)
        if _grouped.reads_along_rows(gy):
            gy, x = _along_rows(gy), _along_rows(x)
    else:
        splits = _launch.dw_splits(P * S * R, N, K)
    partial = None
    if splits > 1:
        partial = gy.new_empty((splits, N, K), dtype=_launch.accumulator_dtype(gy.dtype))
    launch(gy, x, *at[:3], out, **_options(*at[3:]), partial=partial)
    return out


def _along_rows(t: Tensor) -> Tensor:
    """A copy of ``t`` whose rows are neighbours in memory, rounded to TensorFloat-32."""
    from bayes_dc.ops.linear import triton_grouped_dw

    room = _grouped.room_along_rows(t)
    triton_grouped_dw.launch_along_rows(t, room)
    return room.expand(t.shape)


def _linear_fake(x: Tensor, w: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:3], w.shape[0]))


def _dx_fake(gy: Tensor, w: Tensor, *_: Any) -> Tensor:
    return gy.new_empty((*gy.shape[:3], w.shape[1]))


def _dw_fake(gy: Tensor, x: Tensor, *_: Any) -> Tensor:
    return gy.new_empty((gy.shape[3], x.shape[3]))


register(_LIBRARY, "linear", _linear, _linear, _linear_fake)
register(_LIBRARY, "linear_dx", _linear_dx, _linear_dx, _dx_fake)
register(_LIBRARY, "linear_dw", _dw_cpu, _dw_triton, _dw_fake)


class _Linear(torch.autograd.Function):
    """``bayes_dc::linear`` with gradients for x, w and bias."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, *coordinates: Any) -> Tensor:
        return torch.ops.bayes_dc.linear(x, w, bias, *coordinates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, w, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, w, *coordinates = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = _dx(gy, w, *coordinates, *ctx.static) if needs[0] else None
        dw = _dw(gy, x, *coordinates, *ctx.static) if needs[1] else None
        db = gy.sum(dim=(0, 1, 2)) if ctx.has_bias and needs[2] else None
        return dx, dw, db, *[None] * 6


class _LinearDx(torch.autograd.Function):
    """``bayes_dc::linear_dx`` with gradients for gy and w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gy: Tensor, w: Tensor, *coordinates: Any) -> Tensor:
        return torch.ops.bayes_dc.linear_dx(gy, w, *coordinates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gy, w, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.save_for_backward(gy, w, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gdx: Tensor) -> tuple[Any, ...]:
        gy, w, *coordinates = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_gy = _Linear.apply(gdx, w, None, *coordinates, *ctx.static) if needs[0] else None
        d_w = _LinearDw.apply(gy, gdx, *coordinates, *ctx.static) if needs[1] else None
        return d_gy, d_w, *[None] * 6


class _LinearDw(torch.autograd.Function):
    """``bayes_dc::linear_dw`` with gradients for gy and x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gy: Tensor, x: Tensor, *coordinates: Any) -> Tensor:
        return torch.ops.bayes_dc.linear_dw(gy, x, *coordinates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gy, x, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.save_for_backward(gy, x, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gdw: Tensor) -> tuple[Any, ...]:
        gy, x, *coordinates = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_gy = _Linear.apply(x, gdw, None, *coordinates, *ctx.static) if needs[0] else None
        d_x = _LinearDx.apply(gy, gdw, *coordinates, *ctx.static) if needs[1] else None
        return d_gy, d_x, *[None] * 6


keep_signatures(_Linear, _LinearDx, _LinearDw)


def _dx(*args: Any) -> Tensor:
    """``linear_dx``, differentiable again; a compiled backward is not, and takes the operator."""
    if torch.compiler.is_compiling():
        return torch.ops.bayes_dc.linear_dx(*args)
    return _LinearDx.apply(*args)


def _dw(*args: Any) -> Tensor:
    """``linear_dw``; see ``_dx``."""
    if torch.compiler.is_compiling():
        return torch.ops.bayes_dc.linear_dw(*args)
    return _LinearDw.apply(*args)


def linear(
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
    """Differentiable ``[P, S, R, K]`` → ``[P, S, R, N]``; see ``reference.forward``."""
    call = _Linear.apply
    if compiled_without_gradients(x, w, bias):
        call = torch.ops.bayes_dc.linear
    return call(x, w, bias, key, sample_ids, pass_ids, keep, bits, scale)
