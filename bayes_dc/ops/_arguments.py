"""Arguments that the public functions share: their checks, autocast, keys and ids of rows."""

from typing import get_args

import torch
from torch import Tensor

from bayes_dc.rng import layer_key
from bayes_dc.types import MaskKey, MaskScale, MaskScope, Sampler

_TYPE = "{name} must be a torch.Tensor; got {got}. Wrap it: torch.as_tensor({name})."
_NESTED = (
    "{name} must be a dense tensor; got a nested one. torch.nn.TransformerEncoder makes them of "
    "padded batches in evaluation mode: build it with enable_nested_tensor=False."
)
_LAYOUT = "{name} must be a dense tensor; got layout {got}. Convert it: {name}.to_dense()."
_X_DTYPE = (
    "x must be a floating point tensor; got {got}. Convert it to float32, bfloat16, float16 or "
    "float64, e.g. x.float()."
)
_DTYPES_OF_X = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
_BIAS = "bias must have shape [{expected}]; got {got}."
_DTYPES = (
    "x, weight and bias must have one dtype; got {x}, {weight} and {bias}. "
    "Convert one of them, or use torch.autocast."
)
_DEVICES = "x, weight and bias must be on one device; got {x}, {weight} and {bias}."
_OPTION = "{name} must be one of {allowed}; got {got!r}."
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
_UNEQUAL = """\
Without sample_ids the rows of x are those of all {passes} passes, pass after pass, and x has {got},
which is no multiple of {passes}.
For rows that all passes share, give their ids: sample_ids=torch.arange({got}, device=x.device).
"""


def check_types(**tensors: object) -> None:
    """Refuse arrays, lists, and tensors that are nested or sparse."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not (name == "bias" and value is None):
            raise TypeError(_TYPE.format(name=name, got=type(value).__name__))
        if isinstance(value, Tensor) and value.is_nested:
            raise TypeError(_NESTED.format(name=name))
        if isinstance(value, Tensor) and value.layout != torch.strided:
            raise TypeError(_LAYOUT.format(name=name, got=value.layout))


def check_floating(x: Tensor) -> None:
    """Refuse integers, and floats that no kernel computes with."""
    if x.dtype not in _DTYPES_OF_X:
        raise TypeError(_X_DTYPE.format(got=x.dtype))


def check_tensors(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The bias fits the weight, and all have one type and one device."""
    N = weight.shape[0]
    if bias is not None and bias.shape != (N,):
        raise ValueError(_BIAS.format(expected=N, got=list(bias.shape)))
    other = weight if bias is None else bias
    if not x.dtype == weight.dtype == other.dtype:
        raise ValueError(_DTYPES.format(x=x.dtype, weight=weight.dtype, bias=other.dtype))
    if not x.device == weight.device == other.device:
        raise ValueError(_DEVICES.format(x=x.device, weight=weight.device, bias=other.device))


def check_options(scope: MaskScope, scale: MaskScale, sampler: Sampler) -> None:
    """Refuse what is no option of any layer."""
    for name, allowed, got in (
        ("scope", get_args(MaskScope), scope),
        ("scale", get_args(MaskScale), scale),
        ("sampler", get_args(Sampler), sampler),
    ):
        if got not in allowed:
            raise ValueError(_OPTION.format(name=name, allowed=allowed, got=got))


def autocast(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast as autocast casts torch's own layers: every floating point argument but float64."""
    device = x.device.type
    if not (_autocast_available(device) and torch.is_autocast_enabled(device)):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t

    return cast(x), cast(weight), None if bias is None else cast(bias)


def row_ids(
    rows: int, sample_ids: Tensor | None, pass_ids: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Sample ids [S] and pass ids [P], given or counted, for P · S rows or S that passes share."""
    if pass_ids is None:
        pass_ids = torch.zeros(1, dtype=torch.int64, device=device)
    _check_ids("pass_ids", pass_ids, device)
    P = pass_ids.numel()
    counted = sample_ids is None
    if sample_ids is None:
        samples = rows // P if P else 0
        sample_ids = torch.arange(samples, dtype=torch.int64, device=device)
    _check_ids("sample_ids", sample_ids, device)
    S = sample_ids.numel()
    if rows not in (P * S, S):
        if counted and P:
            raise ValueError(_UNEQUAL.format(passes=P, got=rows))
        raise ValueError(_ROWS.format(passes=P, samples=S, product=P * S, got=rows))
    return sample_ids, pass_ids


def _check_ids(name: str, ids: Tensor, device: torch.device) -> None:
    """One dimension of int64 on the right device."""
    if not isinstance(ids, Tensor):
        raise ValueError(_IDS.format(name=name, device=device, got=type(ids).__name__))
    if ids.ndim != 1 or ids.dtype != torch.int64 or ids.device != device:
        got = f"{ids.dtype} {list(ids.shape)} on {ids.device}"
        raise ValueError(_IDS.format(name=name, device=device, got=got))


def key_tensor(key: MaskKey | Tensor, device: torch.device) -> Tensor:
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
