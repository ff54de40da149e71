"""The operators torch sees: `bayes_dc::conv2d`, `conv2d_dx`, `conv2d_dw`, and their derivatives.

Shapes: x [P, B, H, W, C], w [N, KH, KW, C / groups], y and gy [P, B, OH, OW, N]; S = B sample ids,
or one for all images of a pass. y is linear in x and in w, so the three operators are closed under
differentiation, as those of the linear layer are; see ``ops/linear/op.py``. The geometry is passed
as single numbers, which every transform of torch takes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.ops import _conv
from bayes_dc.ops._register import (
    compiled_without_gradients,
    importing_triton,
    keep_signatures,
    register,
)

_AT = (
    "Tensor key, Tensor sample_ids, Tensor pass_ids, int keep, int bits, float scale, "
    "int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h, int dilation_w, "
    "int groups"
)
_COUNT = 13
"""Arguments in ``_AT``: three tensors, then numbers."""
_LIBRARY = torch.library.Library("bayes_dc", "FRAGMENT")
_LIBRARY.define(f"conv2d(Tensor x, Tensor w, Tensor? bias, {_AT}) -> Tensor")
_LIBRARY.define(f"conv2d_dx(Tensor gy, Tensor w, {_AT}, SymInt height, SymInt width) -> Tensor")
_LIBRARY.define(f"conv2d_dw(Tensor gy, Tensor x, {_AT}, SymInt kh, SymInt kw) -> Tensor")


def _cpu(name: str) -> Callable[..., None]:
    """A launcher of the CPU kernels; numba is imported with the first."""
    from bayes_dc.ops.conv2d import cpu

    return getattr(cpu, name)


def _triton(name: str) -> Callable[..., None]:
    """A launcher of the Triton kernels; triton is imported with the first."""
    with importing_triton():
        from bayes_dc.ops.conv2d import triton_dw, triton_dx, triton_fwd
    modules = {"launch_fwd": triton_fwd, "launch_dx": triton_dx, "launch_dw": triton_dw}
    return getattr(modules[name], name)


def launcher(name: str, images: Tensor) -> Callable[..., None]:
    """What computes a call: the choice of the operators, for callers that bring their memory.

    Args:
        name: ``"launch_fwd"``, ``"launch_dx"`` or ``"launch_dw"``.
        images: ``[P, B, H, W, C]``; on a GPU the launchers want its channels neighbours in memory.

    Returns:
        A launcher, which writes into the tensor it is given.
    """
    return (_cpu if images.device.type == "cpu" else _triton)(name)


def pools(w: Tensor, groups: int, device: torch.device) -> bool:
    """Whether ``launch_fwd`` can write the largest of 2 × 2 results: it takes ``pool=True`` then.

    Args:
        w: ``[N, KH, KW, C / groups]``, wherever it is.
        groups: Groups of channels.
        device: Where the convolution runs.

    Returns:
        True on a CPU. On a GPU False where another kernel than that for few channels would run: in
        float32 also where it may not be rounded to TensorFloat-32.
    """
    if device.type == "cpu":
        return True
    with importing_triton():
        from bayes_dc.ops.conv2d import triton_few
    return triton_few.suits(w, groups, device)


def _options(at: tuple[Any, ...]) -> dict[str, Any]:
    """The numbers of ``_AT`` as the launchers take them."""
    keep, bits, scale, sh, sw, ph, pw, dh, dw, groups = at[3:_COUNT]
    return {
        "stride": (sh, sw),
        "padding": (ph, pw),
        "dilation": (dh, dw),
        "groups": groups,
        "keep": keep,
        "bits": bits,
        "scale": scale,
    }


def _out_size(x: Tensor, w: Tensor, at: tuple[Any, ...]) -> tuple[int, int]:
    """Height and width of the output."""
    sh, sw, ph, pw, dh, dw = at[6:12]
    height = (x.shape[2] + 2 * ph - dh * (w.shape[1] - 1) - 1) // sh + 1
    width = (x.shape[3] + 2 * pw - dw * (w.shape[2] - 1) - 1) // sw + 1
    return height, width


def _room(t: Tensor, *shape: Any) -> Tensor:
    """An empty [P, B, H, W, C]; on a CPU with channels first in memory where ``t`` has them so."""
    if t.device.type == "cpu" and t.stride(3) < t.stride(4):
        _, B, H, W, C = shape
        # Not a permuted tensor: autograd lets no one modify a view made inside a function.
        return t.new_empty_strided(shape, (B * C * H * W, C * H * W, W, 1, H * W))
    return t.new_empty(shape)


def _channels_last(t: Tensor) -> Tensor:
    """``t`` with neighbouring channels; dimensions of stride 0 stay so."""
    if t.stride(-1) == 1 or t.shape[-1] < 2:
        return t
    compact = t
    for dim in range(t.dim() - 1):
        if t.stride(dim) == 0 and t.shape[dim] > 1:
            compact = compact.narrow(dim, 0, 1)
    return compact.contiguous().expand(t.shape)


def _fwd_cpu(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    out = _fwd_fake(x, w, bias, *at)
    launcher("launch_fwd", x)(x, w, bias, *at[:3], out, **_options(at))
    return out


def _fwd_triton(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    out = x.new_empty((*x.shape[:2], *_out_size(x, w, at), w.shape[0]))
    x, w = _channels_last(x), w.contiguous()
    launcher("launch_fwd", x)(x, w, bias, *at[:3], out, **_options(at))
    return out


def _dx_cpu(gy: Tensor, w: Tensor, *at: Any) -> Tensor:
    out = _dx_fake(gy, w, *at)
    _cpu("launch_dx")(gy, w, *at[:3], out, **_options(at))
    return out


def _dx_triton(gy: Tensor, w: Tensor, *at: Any) -> Tensor:
    out = gy.new_empty(_dx_shape(gy, w, at))
    _triton("launch_dx")(_channels_last(gy), w.contiguous(), *at[:3], out, **_options(at))
    return out


def _dw_cpu(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
    out = gy.new_empty(_dw_shape(gy, x, at))
    _cpu("launch_dw")(gy, x, *at[:3], out, **_options(at))
    return out


def _dw_triton(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
    """With room for the sums of the runs of images, where the shape asks for more than one."""
    launch = _triton("launch_dw")
    from bayes_dc.ops import _launch

    out = gy.new_empty(_dw_shape(gy, x, at))
    splits = _conv.dw_splits(gy.shape[:2].numel(), out.shape[0], out.shape[1:].numel())
    partial = None
    if splits > 1:
        partial = gy.new_empty((splits, *out.shape), dtype=_launch.accumulator_dtype(gy.dtype))
    gy, x = _channels_last(gy), _channels_last(x)
    launch(gy, x, *at[:3], out, **_options(at), partial=partial)
    return out


def _fwd_fake(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    return _room(x, *x.shape[:2], *_out_size(x, w, at), w.shape[0])


def _dx_shape(gy: Tensor, w: Tensor, at: tuple[Any, ...]) -> tuple[int, ...]:
    groups, height, width = at[12:]
    return *gy.shape[:2], height, width, w.shape[3] * groups


def _dx_fake(gy: Tensor, w: Tensor, *at: Any) -> Tensor:
    return _room(gy, *_dx_shape(gy, w, at))


def _dw_shape(gy: Tensor, x: Tensor, at: tuple[Any, ...]) -> tuple[int, ...]:
    groups, kh, kw = at[12:]
    return gy.shape[4], kh, kw, x.shape[4] // groups


def _dw_fake(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
    return gy.new_empty(_dw_shape(gy, x, at))


register(_LIBRARY, "conv2d", _fwd_cpu, _fwd_triton, _fwd_fake)
register(_LIBRARY, "conv2d_dx", _dx_cpu, _dx_triton, _dx_fake)
register(_LIBRARY, "conv2d_dw", _dw_cpu, _dw_triton, _dw_fake)


class _Conv(torch.autograd.Function):
    """``bayes_dc::conv2d`` with gradients for x, w and bias."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.conv2d(x, w, bias, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, w, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, w, *ids = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if gy.device.type != "cpu":
            gy = _channels_last(gy)  # once for both gradients
        dx = _dx(gy, w, *ids, *ctx.static, *x.shape[2:4]) if needs[0] else None
        dw = _dw(gy, x, *ids, *ctx.static, *w.shape[1:3]) if needs[1] else None
        db = gy.sum(dim=(0, 1, 2, 3)) if ctx.has_bias and needs[2] else None
        return dx, dw, db, *[None] * _COUNT


class _ConvDx(torch.autograd.Function):
    """``bayes_dc::conv2d_dx`` with gradients for gy and w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gy: Tensor, w: Tensor, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.conv2d_dx(gy, w, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gy, w, key, sample_ids, pass_ids, *ctx.static = inputs[:-2]
        ctx.save_for_backward(gy, w, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gdx: Tensor) -> tuple[Any, ...]:
        gy, w, *ids = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_gy = _Conv.apply(gdx, w, None, *ids, *ctx.static) if needs[0] else None
        d_w = _ConvDw.apply(gy, gdx, *ids, *ctx.static, *w.shape[1:3]) if needs[1] else None
        return d_gy, d_w, *[None] * (_COUNT + 2)


class _ConvDw(torch.autograd.Function):
    """``bayes_dc::conv2d_dw`` with gradients for gy and x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gy: Tensor, x: Tensor, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.conv2d_dw(gy, x, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gy, x, key, sample_ids, pass_ids, *ctx.static = inputs[:-2]
        ctx.save_for_backward(gy, x, key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gdw: Tensor) -> tuple[Any, ...]:
        gy, x, *ids = ctx.saved_tensors
        needs = ctx.needs_input_grad
        d_gy = _Conv.apply(x, gdw, None, *ids, *ctx.static) if needs[0] else None
        d_x = _ConvDx.apply(gy, gdw, *ids, *ctx.static, *x.shape[2:4]) if needs[1] else None
        return d_gy, d_x, *[None] * (_COUNT + 2)


keep_signatures(_Conv, _ConvDx, _ConvDw)


def _dx(*args: Any) -> Tensor:
    """``conv2d_dx``, differentiable again where a graph is made; a compiled backward makes none."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return torch.ops.bayes_dc.conv2d_dx(*args)
    return _ConvDx.apply(*args)


def _dw(*args: Any) -> Tensor:
    """``conv2d_dw``; see ``_dx``."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return torch.ops.bayes_dc.conv2d_dw(*args)
    return _ConvDw.apply(*args)


def conv2d(x: Tensor, w: Tensor, bias: Tensor | None, *at: Any) -> Tensor:
    """Differentiable ``[P, B, H, W, C]`` → ``[P, B, OH, OW, N]``; see ``reference.forward``."""
    call = _Conv.apply
    if compiled_without_gradients(x, w, bias):
        call = torch.ops.bayes_dc.conv2d
    return call(x, w, bias, *at)
