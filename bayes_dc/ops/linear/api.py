"""The public function: meaning of its arguments, their checks, and the way to the operator."""

from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from bayes_dc.ops.gaussian import gaussian_linear
from bayes_dc.ops.linear import op
from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.rng.spec import MAX_NORMAL_OUTPUTS, MAX_OUTPUTS
from bayes_dc.types import GAUSSIAN_SCOPE, MaskKey, MaskScale, MaskScope, Sampler

_TYPE = "{name} must be a torch.Tensor; got {got}. Wrap it: torch.as_tensor({name})."
_X_DTYPE = "x must be a floating point tensor; got {got}. Convert it, e.g. x.float()."
_WEIGHT = "weight must have shape [N, K]; got {got}."
_FEATURES = "x must have {expected} features in its last dimension (weight is {weight}); got {got}."
_BIAS = "bias must have shape [{expected}]; got {got}."
_DTYPES = (
    "x, weight and bias must have one dtype; got {x}, {weight} and {bias}. "
    "Convert one of them, or use torch.autocast."
)
_DEVICES = "x, weight and bias must be on one device; got {x}, {weight} and {bias}."
_SCOPE = "scope must be one of {allowed}; got {got!r}."
_SCALE = "scale must be one of {allowed}; got {got!r}."
_SAMPLER = "sampler must be one of {allowed}; got {got!r}."
_NORMALS = (
    "sampler='gaussian' has normals for fewer than 2**26 outputs; weight has {got}. "
    "Use sampler='bernoulli', or split the layer."
)
_KEY = (
    "key must be a MaskKey(seed, layer) or an int64 tensor [2] of layer key words on the device of "
    "x; got {got}."
)
_IDS = "{name} must be an int64 tensor of one dimension on the device of x ({device}); got {got}."
_ROWS = """\
x must have one row for each (pass, sample), {passes} × {samples} = {product}, pass after pass, or
one for each sample, {samples}, shared by all passes; got {got} rows.
Give sample_ids one entry for each row of a pass and pass_ids one for each pass.
"""


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
        sample_ids: int64 ``[S]``, identity of each row; default 0 … S − 1. Taken modulo 2**32.
        pass_ids: int64 ``[P]``; default one pass, number 0. Taken modulo 2**32.
        scope: ``"row"`` one mask per row of every leading dimension, ``"sample"`` one per entry of
            the first dimension, shared by the others, ``"pass"`` one for the whole batch.
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"`` masks, or ``"gaussian"`` draws, which need ``scope="row"``.

    Returns:
        ``[P · S, …, N]``, or ``[N]`` for a ``[K]`` input in one pass, in the dtype of ``x`` (under
        autocast in its dtype).

    Raises:
        TypeError: If ``p`` is not a number, a tensor is something else, or ``x`` is not floating
            point.
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
    _check_types(x=x, weight=weight, bias=bias)
    x, weight, bias = _autocast(x, weight, bias)
    _check_tensors(x, weight, bias)
    if scope not in get_args(MaskScope):
        raise ValueError(_SCOPE.format(allowed=get_args(MaskScope), got=scope))
    if scale not in get_args(MaskScale):
        raise ValueError(_SCALE.format(allowed=get_args(MaskScale), got=scale))
    _check_sampler(sampler, scope, weight)
    layout = _layout(x, sample_ids, pass_ids, scope)
    key = _key_tensor(key, x.device)
    if digits.bits == 0:
        y = F.linear(x, weight, bias)
        passes = layout.pass_ids.shape[0] if y.shape[:-1] != layout.out_shape else 1
        return y.expand(passes, *y.shape).reshape(*layout.out_shape, weight.shape[0])
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
    return y.reshape(*layout.out_shape, weight.shape[0])


def _autocast(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast as autocast casts ``F.linear``: every floating point argument but float64."""
    device = x.device.type
    if not (_autocast_available(device) and torch.is_autocast_enabled(device)):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t

    return cast(x), cast(weight), None if bias is None else cast(bias)


def _check_types(**tensors: object) -> None:
    """Refuse arrays and lists."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not (name == "bias" and value is None):
            raise TypeError(_TYPE.format(name=name, got=type(value).__name__))


def _check_tensors(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Refuse what the operator does not define."""
    if not x.is_floating_point():
        raise TypeError(_X_DTYPE.format(got=x.dtype))
    if weight.ndim != 2 or weight.shape[0] >= MAX_OUTPUTS:
        raise ValueError(_WEIGHT.format(got=list(weight.shape)))
    N, K = weight.shape
    if x.ndim == 0 or x.shape[-1] != K:
        got = x.shape[-1] if x.ndim else "a scalar"
        raise ValueError(_FEATURES.format(expected=K, weight=[N, K], got=got))
    if bias is not None and bias.shape != (N,):
        raise ValueError(_BIAS.format(expected=N, got=list(bias.shape)))
    other = weight if bias is None else bias
    if not x.dtype == weight.dtype == other.dtype:
        raise ValueError(_DTYPES.format(x=x.dtype, weight=weight.dtype, bias=other.dtype))
    if not x.device == weight.device == other.device:
        raise ValueError(_DEVICES.format(x=x.device, weight=weight.device, bias=other.device))


def _check_sampler(sampler: Sampler, scope: MaskScope, weight: Tensor) -> None:
    """Refuse an unknown sampler, and draws where the Gaussian one has none."""
    if sampler not in get_args(Sampler):
        raise ValueError(_SAMPLER.format(allowed=get_args(Sampler), got=sampler))
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
    if pass_ids is None:
        pass_ids = torch.zeros(1, dtype=torch.int64, device=device)
    _check_ids("pass_ids", pass_ids, device)
    P = pass_ids.numel()
    if sample_ids is None:
        samples = rows // P if P else 0
        sample_ids = torch.arange(samples, dtype=torch.int64, device=device)
    _check_ids("sample_ids", sample_ids, device)
    S = sample_ids.numel()
    if rows not in (P * S, S):
        raise ValueError(_ROWS.format(passes=P, samples=S, product=P * S, got=rows))
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


def _check_ids(name: str, ids: Tensor, device: torch.device) -> None:
    """One dimension of int64 on the right device."""
    if not isinstance(ids, Tensor):
        raise ValueError(_IDS.format(name=name, device=device, got=type(ids).__name__))
    if ids.ndim != 1 or ids.dtype != torch.int64 or ids.device != device:
        got = f"{ids.dtype} {list(ids.shape)} on {ids.device}"
        raise ValueError(_IDS.format(name=name, device=device, got=got))


def _key_tensor(key: MaskKey | Tensor, device: torch.device) -> Tensor:
    """The layer key words on the device of x."""
    if isinstance(key, Tensor):
        if key.shape != (2,) or key.dtype != torch.int64 or key.device != device:
            got = f"{key.dtype} {list(key.shape)} on {key.device}"
            raise ValueError(_KEY.format(got=got))
        return key.contiguous()
    if not isinstance(key, MaskKey):
        raise ValueError(_KEY.format(got=repr(key)))
    return torch.tensor(_constant_layer_key(key.seed, key.layer), device=device)


def _constant_layer_key(seed: int, layer: int) -> tuple[int, int]:
    """Layer key words, computed outside a compiled graph."""
    return layer_key(seed, layer)


def _autocast_available(device: str) -> bool:
    """Whether autocast knows the device type; torch 2.11 cannot trace the question."""
    return torch.amp.is_autocast_available(device)


# What torch.compiler.assume_constant_result sets, without loading the compiler: 0.7 s and sympy.
_constant_layer_key._dynamo_marked_constant = True  # type: ignore[attr-defined]
_autocast_available._dynamo_marked_constant = True  # type: ignore[attr-defined]
