"""The public function: meaning of its arguments, their checks, and the way to the operator."""

import math

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from bayes_dc.ops import _arguments
from bayes_dc.ops._results import in_shape, repeated
from bayes_dc.ops.dropout import op
from bayes_dc.rng import KeepDigits, dropout_key, keep_digits
from bayes_dc.rng.spec import MAX_UNITS
from bayes_dc.types import MaskKey

ALPHA = 1.7580993408473766
"""−λα of SELU: alpha dropout sets dropped elements to −ALPHA, its limit at −∞."""

_P = "p must be a dropout probability in [0, 1]; got {got!r}."
_P_TYPE = "p must be a real number in [0, 1], the share of elements dropped; got {got!r} ({kind})."
_CHANNELS = (
    "channel dropout needs x of shape [rows, channels, …]; got {got}. Give one input its first "
    "dimension (x[None]), or use nn.Dropout where there are no channels."
)
_SCALAR = "x must have shape [rows, …]; got a scalar."
_UNITS = "a sample may have fewer than 2**31 units; x {shape} has {got}."


def keyed_dropout(
    x: Tensor,
    *,
    p: float = 0.5,
    key: MaskKey | Tensor,
    sample_ids: Tensor | None = None,
    pass_ids: Tensor | None = None,
    channels: bool = False,
    alpha: bool = False,
) -> Tensor:
    """Dropout with a mask of its own for every sample and pass, made from coordinates.

    With D ~ Bernoulli(keep) for every unit of a sample::

        y = D · x / keep                                                 (dropout)
        y = a · (D · (x + α) − keep · α),  a = (keep + keep · (1 − keep) · α²)^(−1/2)   (alpha)

    Alpha dropout keeps mean 0 and variance 1 of inputs that have them. No mask is stored: backward
    makes it again. A dropped element is 0 even where x is infinite or NaN.

    Args:
        x: ``[rows, …]``, float32, bfloat16, float16 or float64. With ``P`` pass ids and ``S``
            sample ids ``rows`` is P · S, pass after pass, or S: then every pass reads the same
            rows.
        p: Drop probability in [0, 1]. Realised as a binary fraction of at most 16 digits.
        key: Names the mask stream: a ``MaskKey`` (its dropout stream, first call), or the two words
            of ``rng.dropout_key`` as an int64 tensor ``[2]`` on the device of ``x``.
        sample_ids: int64 ``[S]``, identity of each row, taken modulo 2**32; default 0 … S − 1 for
            rows of all passes, S = rows / P.
        pass_ids: int64 ``[P]``; default one pass, number 0. Taken modulo 2**32.
        channels: One bit for each channel x[row, c], not for each element.
        alpha: Alpha dropout, for networks of SELU units.

    Returns:
        ``[P · S, …]`` in the dtype and memory format of ``x``. With p = 0 it may be ``x`` itself,
        with p = 1 it is 0.

    Raises:
        TypeError: If ``x`` is no dense tensor of these dtypes or ``p`` no number.
        ValueError: If a shape, device or option does not fit.

    Determinism:
        A bit depends on (key, sample id, pass id, number of the unit in its sample) only, the same
        for every memory format. Equal bits on every device, and results to the rounding of one
        product.

    Source:
        Srivastava et al. 2014 (dropout); Tompson et al. 2015 (channels); Klambauer et al. 2017
        (alpha); Gal & Ghahramani 2016 (as uncertainty).

    Example:
        >>> keyed_dropout(torch.ones(2, 8), p=0.5, key=MaskKey(seed=0)).shape
        torch.Size([2, 8])
    """
    if has_torch_function_variadic(x):
        return handle_torch_function(
            keyed_dropout,
            (x,),
            x,
            p=p,
            key=key,
            sample_ids=sample_ids,
            pass_ids=pass_ids,
            channels=channels,
            alpha=alpha,
        )
    digits = _digits(p)
    _arguments.check_types(x=x)
    _arguments.check_floating(x)
    if x.ndim == 0 or (channels and x.ndim < 2):
        raise ValueError((_CHANNELS if channels else _SCALAR).format(got=list(x.shape)))
    sample_ids, pass_ids = _arguments.row_ids(x.shape[0], sample_ids, pass_ids, x.device)
    if isinstance(key, MaskKey):
        key = torch.tensor(_constant_dropout_key(*key), device=x.device)
    key = _arguments.key_tensor(key, x.device)
    P, S = pass_ids.shape[0], sample_ids.shape[0]
    out_shape = (P * S, *x.shape[1:])
    passes = P if x.shape[0] == P * S else 1
    if digits is None or digits.bits == 0:
        result = x if passes == P else repeated(x, P)
        if digits is not None:
            return result
        # Written over, not multiplied: 0 for an infinite x too, and the graph stays for backward.
        return result.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0)
    keep = digits.keep_probability
    if alpha:
        x, scale = x + ALPHA, (keep + keep * (1 - keep) * ALPHA**2) ** -0.5
    else:
        scale = 1 / keep
    units = _units(x, passes, S, channels)
    if units.shape[2:].numel() >= MAX_UNITS:
        raise ValueError(_UNITS.format(shape=list(x.shape), got=units.shape[2:].numel()))
    at = (key, sample_ids, pass_ids, digits.keep, digits.bits, scale, channels)
    y = in_shape(op.keyed_dropout(units.expand(P, *units.shape[1:]), *at), out_shape)
    return y - scale * keep * ALPHA if alpha else y


def _digits(p: float) -> KeepDigits | None:
    """Digits of the keep probability; None where nothing is kept."""
    kind = type(p).__name__
    try:
        if isinstance(p, bool) or not hasattr(p, "__float__"):
            raise TypeError
        value = float(p)
    except (TypeError, ValueError) as error:  # an array or a tensor of several elements
        raise TypeError(_P_TYPE.format(got=p, kind=kind)) from error
    if not 0 <= value <= 1:
        raise ValueError(_P.format(got=p))
    return None if value == 1 else keep_digits(value)


def _units(x: Tensor, passes: int, S: int, channels: bool) -> Tensor:
    """X as [P', S, U, V] without a copy where its strides allow."""
    last = x.ndim > 2 and x.stride(1) == 1 and not x.is_contiguous()
    if channels or last:
        return x.reshape(passes, S, x.shape[1], math.prod(x.shape[2:]))
    return x.reshape(passes, S, 1, math.prod(x.shape[1:]))


def _constant_dropout_key(seed: int, layer: int) -> tuple[int, int]:
    """Key words, computed outside a compiled graph."""
    return dropout_key(seed, layer)


# What torch.compiler.assume_constant_result sets, without loading the compiler.
_constant_dropout_key._dynamo_marked_constant = True  # type: ignore[attr-defined]
