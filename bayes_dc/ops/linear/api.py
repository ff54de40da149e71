"""The public function: meaning of its arguments, their checks, and the way to the operator."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from bayes_dc.ops import _arguments
from bayes_dc.ops._results import in_shape, repeated
from bayes_dc.ops.gaussian import gaussian_linear
from bayes_dc.ops.linear import op
from bayes_dc.rng import keep_digits
from bayes_dc.rng.spec import MAX_NORMAL_OUTPUTS, MAX_OUTPUTS
from bayes_dc.types import GAUSSIAN_SCOPE, MaskKey, MaskScale, MaskScope, Sampler

_WEIGHT = "weight must have shape [N, K]; got {got}."
_FEATURES = "x must have {expected} features in its last dimension (weight is {weight}); got {got}."
_NORMALS = (
    "sampler='gaussian' has normals for fewer than 2**26 outputs; weight has {got}. "
    "Use sampler='bernoulli', or split the layer."
)


class _Layout(NamedTuple):
    """x as [P', S, R, K], P' = P or 1 for rows that all passes share, and the ids of its groups."""

    x: Tensor
    sample_ids: Tensor
    pass_ids: Tensor
    out_shape: tuple[int, ...]


def dropconnect_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    p: float = 0.5,
    key: MaskKey | Tensor,
    sample_ids: Tensor | None = None,
    pass_ids: Tensor | None = None,
    scope: MaskScope = "row",
    scale: MaskScale = "inverted",
    sampler: Sampler = "bernoulli",
) -> Tensor:
    """Linear map whose weights are dropped by a mask of their own for every row and pass.

    For mask group g and its rows r, with D ~ Bernoulli(keep)::

        y[g, r, n] = s · Σ_k D[g, n, k] · weight[n, k] · x[g, r, k] + bias[n]
        E[y] = s · keep · W x + b     Var[y_n] = s² · keep · (1 − keep) · Σ_k (W_nk x_k)²

    s = 1 / keep for ``scale="inverted"``, 1 for ``"none"``. No mask is stored, forward or backward.
    With ``sampler="gaussian"`` y is instead drawn from the normal distribution with this mean and
    variance: two matrix products for any number of passes over the same rows, and what the masks
    converge to for many inputs of comparable weight (``ops/gaussian/README.md``).

    Args:
        x: Input ``[rows, …, K]`` or ``[K]``, float32, bfloat16, float16 or float64. With ``P``
            pass ids and ``S`` sample ids ``rows`` is P · S, pass after pass, or S: then every pass
            reads the same rows.
        weight: ``[N, K]``, same dtype and device.
        bias: ``[N]`` or None; never dropped.
        p: Drop probability in [0, 1). Realised as a binary fraction of at most 16 digits.
        key: Names the mask stream: a ``MaskKey``, or the two layer key words as an int64 tensor
            ``[2]`` on the device of ``x``.
        sample_ids: int64 ``[S]``, identity of each row, taken modulo 2**32; default 0 … S − 1 for
            rows of all passes, S = rows / P.
        pass_ids: int64 ``[P]``; default one pass, number 0. Taken modulo 2**32.
        scope: ``"row"`` one mask per row of every leading dimension, ``"sample"`` one per entry of
            the first dimension, shared by the others, ``"pass"`` one for the whole batch.
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"`` masks, or ``"gaussian"`` draws, which need ``scope="row"``.

    Returns:
        ``[P · S, …, N]``, or ``[N]`` for a ``[K]`` input in one pass, in the dtype of ``x`` (under
        autocast in its dtype).

    Raises:
        TypeError: If ``p`` is not a number, a tensor is something else or not dense, or ``x`` is of
            another dtype.
        ValueError: If a shape, dtype, device or option does not fit.

    Determinism:
        A mask bit depends on (key, sample id, pass id, n, k) only, a normal on the same without k.
        Repeats bit for bit on one device; devices agree to rounding.

    Accuracy:
        Products and sums in float32 (float64 for float64), one rounding to the output dtype. On a
        GPU the Gaussian sampler multiplies as ``F.linear`` does for the dtype (TensorFloat-32 where
        torch may use it).

    Source:
        Wan et al. 2013, *Regularization of neural networks using DropConnect* (there p is the keep
        probability and the bias is dropped too). Wang & Manning 2013, *Fast dropout training*;
        Kingma et al. 2015, *Variational dropout and the local reparameterization trick*.

    Example:
        >>> x, w = torch.ones(2, 8), torch.ones(4, 8)
        >>> dropconnect_linear(x, w, p=0.5, key=MaskKey(seed=0)).shape
        torch.Size([2, 4])
    """
    if has_torch_function_variadic(x, weight):
        return handle_torch_function(
            dropconnect_linear,
            (x, weight),
            x,
            weight,
            bias,
            p=p,
            key=key,
            sample_ids=sample_ids,
            pass_ids=pass_ids,
            scope=scope,
            scale=scale,
            sampler=sampler,
        )
    digits = keep_digits(p)
    _arguments.check_types(x=x, weight=weight, bias=bias)
    x, weight, bias = _arguments.autocast(x, weight, bias)
    _check_shapes(x, weight)
    _arguments.check_tensors(x, weight, bias)
    _arguments.check_options(scope, scale, sampler)
    _check_sampler(sampler, scope, weight)
    layout = _layout(x, sample_ids, pass_ids, scope)
    key = _arguments.key_tensor(key, x.device)
    if digits.bits == 0:
        y = F.linear(x, weight, bias)
        if y.shape[:-1] == layout.out_shape:
            return y
        return repeated(y if y.ndim > 1 else y.unsqueeze(0), layout.pass_ids.shape[0])
    coordinates = (
        key,
        layout.sample_ids,
        layout.pass_ids,
        digits.keep,
        digits.bits,
        1.0 / digits.keep_probability if scale == "inverted" else 1.0,
    )
    if sampler == "gaussian":
        y = gaussian_linear(layout.x, weight, bias, *coordinates)
    else:
        x = layout.x.expand(layout.pass_ids.shape[0], *layout.x.shape[1:])
        y = op.linear(x, weight, bias, *coordinates)
    return in_shape(y, (*layout.out_shape, weight.shape[0]))


def _check_shapes(x: Tensor, weight: Tensor) -> None:
    """Refuse what the operator does not define."""
    _arguments.check_floating(x)
    if weight.ndim != 2 or weight.shape[0] >= MAX_OUTPUTS:
        raise ValueError(_WEIGHT.format(got=list(weight.shape)))
    N, K = weight.shape
    if x.ndim == 0 or x.shape[-1] != K:
        got = x.shape[-1] if x.ndim else "a scalar"
        raise ValueError(_FEATURES.format(expected=K, weight=[N, K], got=got))


def _check_sampler(sampler: Sampler, scope: MaskScope, weight: Tensor) -> None:
    """Refuse draws where the Gaussian sampler has none."""
    if sampler == "gaussian":
        if scope != "row":
            raise ValueError(GAUSSIAN_SCOPE.format(got=scope))
        if weight.shape[0] >= MAX_NORMAL_OUTPUTS:
            raise ValueError(_NORMALS.format(got=weight.shape[0]))


def _layout(
    x: Tensor, sample_ids: Tensor | None, pass_ids: Tensor | None, scope: MaskScope
) -> _Layout:
    """Bring x into [P, S, R, K] without copying it where its strides allow."""
    device = x.device
    lead = x.shape[:-1]
    rows, inner = (lead[0], lead[1:]) if lead else (1, ())
    sample_ids, pass_ids = _arguments.row_ids(rows, sample_ids, pass_ids, device)
    P, S = pass_ids.numel(), sample_ids.numel()
    L = 1
    for size in inner:
        L *= size
    passes = P if rows == P * S else 1
    K = x.shape[-1]
    if scope == "row":
        if inner:
            positions = torch.arange(L, dtype=torch.int64, device=device)
            sample_ids = (sample_ids[:, None] * L + positions).reshape(-1)
        x4 = x.reshape(passes, S * L, 1, K)
    elif scope == "sample":
        x4 = x.reshape(passes, S, L, K)
    else:
        sample_ids = torch.zeros(1, dtype=torch.int64, device=device)
        x4 = x.reshape(passes, 1, S * L, K)
    out_shape = (P * S, *inner) if lead or P * S != 1 else ()
    return _Layout(x4, sample_ids, pass_ids, out_shape)
