"""The operator torch sees: ``bayes_dc::keyed_dropout``, which is its own derivative.

y is linear in x and its gradient is the same call on the gradient of y: masks are made again from
their coordinates and never saved, and derivatives of any order need no other operator.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.ops._register import (
    compiled_without_gradients,
    importing_triton,
    keep_signatures,
    register,
)

_LIBRARY = torch.library.Library("bayes_dc", "FRAGMENT")
_LIBRARY.define(
    "keyed_dropout(Tensor x, Tensor key, Tensor sample_ids, Tensor pass_ids, int keep, int bits, "
    "float scale, bool by_channel) -> Tensor"
)


def _cpu() -> Callable[..., None]:
    """The launcher of the CPU kernel; numba is imported with the first call."""
    from bayes_dc.ops.dropout.cpu import launch_dropout

    return launch_dropout


def _triton() -> Callable[..., None]:
    """The launcher of the Triton kernels; triton is imported with the first call."""
    with importing_triton():
        from bayes_dc.ops.dropout.triton_dropout import launch_dropout
    return launch_dropout


def launcher(x: Tensor) -> Callable[..., None]:
    """What computes a call: the choice of the operator, for callers that bring their memory.

    Args:
        x: ``[P, S, U, V]``.

    Returns:
        A launcher, which writes into the tensor it is given.
    """
    return _cpu() if x.device.type == "cpu" else _triton()


def _keyed_dropout(x: Tensor, *at: Any) -> Tensor:
    """``keyed_dropout``; ``at`` are the arguments of the schema after x."""
    out = _dropout_fake(x)
    keep, bits, scale, by_channel = at[3:]
    launcher(x)(x, *at[:3], out, keep=keep, bits=bits, scale=scale, by_channel=by_channel)
    return out


def _dropout_fake(x: Tensor, *_: Any) -> Tensor:
    """Room for the result, with the channels of a sample as neighbours where x has them so."""
    P, S, U, V = x.shape
    if U > 1 and V > 1 and x.stride(2) == 1 and x.stride(3) != 1:
        # Not a transposed tensor: autograd lets no one modify a view made inside a function.
        return x.new_empty_strided((P, S, U, V), (S * U * V, U * V, 1, U))
    return x.new_empty((P, S, U, V))


register(_LIBRARY, "keyed_dropout", _keyed_dropout, _keyed_dropout, _dropout_fake)


class _Dropout(torch.autograd.Function):
    """``bayes_dc::keyed_dropout`` with a gradient for x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *at: Any) -> Tensor:
        return torch.ops.bayes_dc.keyed_dropout(x, *at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, key, sample_ids, pass_ids, *ctx.static = inputs
        ctx.save_for_backward(key, sample_ids, pass_ids)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        call = _Dropout.apply
        if torch.compiler.is_compiling():  # a compiled backward is not differentiated again
            call = torch.ops.bayes_dc.keyed_dropout
        return call(gy, *ctx.saved_tensors, *ctx.static), *[None] * 7


keep_signatures(_Dropout)


def keyed_dropout(
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    keep: int,
    bits: int,
    scale: float,
    by_channel: bool,
) -> Tensor:
    """Differentiable ``[P, S, U, V]`` → ``[P, S, U, V]``; see ``reference.forward``."""
    call = _Dropout.apply
    if compiled_without_gradients(x):
        call = torch.ops.bayes_dc.keyed_dropout
    return call(x, key, sample_ids, pass_ids, keep, bits, scale, by_channel)
