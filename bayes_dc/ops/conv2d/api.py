"""The public function: meaning of its arguments, their checks, and the way to the operator."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from bayes_dc.ops import _arguments
from bayes_dc.ops._results import in_shape, repeated
from bayes_dc.ops.conv2d import op
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.rng import keep_digits
from bayes_dc.rng.spec import MAX_OUTPUTS
from bayes_dc.types import CONV_SAMPLER, CONV_SCOPE, MaskKey, MaskScale, MaskScope, Sampler

_X = "x must have shape [rows, C, H, W] or [C, H, W]; got {got}."
_WEIGHT = "weight must have shape [N, C / groups, KH, KW], with N, KH and KW at least 1; got {got}."
_CHANNELS = (
    "x must have {expected} channels for weight {weight} and groups={groups}; got {got}. Channels "
    "are the third dimension from the end: [rows, C, H, W]."
)
_GROUPS = (
    "groups must be a positive integer that divides the outputs, {outputs} in weight {weight}; got "
    "{got!r}."
)
_NUMBERS = "{name} must be an integer or a pair of integers, each at least {lowest}; got {got!r}."
_PADDING = (
    "padding must be 'same', 'valid', an integer or a pair of integers, each at least 0; got "
    "{got!r}."
)
_SAME = (
    "padding='same' keeps the size of the input, which a stride does not; got stride={got}. Set "
    "stride=1, or give the padding in numbers."
)
_FITS = (
    "The kernel must fit into the padded input: with dilation it covers {kernel} pixels, and x has "
    "{size}, padding included. Use a larger input, more padding or a smaller dilation."
)


class _Layout(NamedTuple):
    """x as [P', S, H, W, C], P' = P or 1 for images that all passes share, and the ids."""

    x: Tensor
    sample_ids: Tensor
    pass_ids: Tensor
    batched: bool


def dropconnect_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    p: float = 0.5,
    key: MaskKey | Tensor,
    sample_ids: Tensor | None = None,
    pass_ids: Tensor | None = None,
    scope: MaskScope = "sample",
    scale: MaskScale = "inverted",
    sampler: Sampler = "bernoulli",
) -> Tensor:
    """Convolution whose weights are dropped by a mask of their own for every image and pass.

    ``F.conv2d`` with D ∘ W in place of W, D ~ Bernoulli(keep), at all positions of an image::

        y[r, n, i, j] = s · Σ_k D[r, n, k] · W[n, k] · patch[r, k, i, j] + bias[n]
        E[y] = s · keep · (W * x) + b     Var[y] = s² · keep · (1 − keep) · (W² * x²)

    with k = (kh, kw, c) over the weights that an output reads, * a convolution, s = 1 / keep for
    ``scale="inverted"`` and 1 for ``"none"``. Outputs of one image share its mask, so they are
    correlated. No mask is stored, forward or backward.

    Args:
        x: Images ``[rows, C, H, W]`` or ``[C, H, W]``, in any memory format; float32, bfloat16,
            float16 or float64. With ``P`` pass ids and ``S`` sample ids ``rows`` is P · S, pass
            after pass, or S: then every pass reads the same images.
        weight: ``[N, C / groups, KH, KW]``, same dtype and device.
        bias: ``[N]`` or None; never dropped.
        stride: Step of the kernel, one number or (height, width).
        padding: Zeros on both sides, one number or (height, width); ``"same"``: as many as keep the
            size (an odd one more at the end), for stride 1; ``"valid"``: none.
        dilation: Distance of neighbouring taps, one number or (height, width).
        groups: Groups of channels; output n reads those of its group only.
        p: Drop probability in [0, 1). Realised as a binary fraction of at most 16 digits.
        key: Names the mask stream: a ``MaskKey``, or the two layer key words as an int64 tensor
            ``[2]`` on the device of ``x``.
        sample_ids: int64 ``[S]``, identity of each image, taken modulo 2**32; default 0 … S − 1 for
            rows of all passes, S = rows / P.
        pass_ids: int64 ``[P]``; default one pass, number 0. Taken modulo 2**32.
        scope: ``"sample"`` one mask per image, ``"pass"`` one for the whole batch.
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"``; there is no other for convolutions.

    Returns:
        ``[P · S, N, OH, OW]``, or ``[N, OH, OW]`` for a ``[C, H, W]`` input in one pass, in the
        dtype of ``x`` (under autocast in its dtype). As from ``F.conv2d``, channels are last in
        memory if they are in ``x`` or ``weight``.

    Raises:
        TypeError: If ``p`` is not a number, a tensor is something else or not dense, or ``x`` is of
            another dtype.
        ValueError: If a shape, dtype, device or option does not fit.

    Determinism:
        A mask bit depends on (key, sample id, pass id, n, kh, kw, c) only. Repeats bit for bit on
        one device, for any memory format; devices agree to rounding.

    Accuracy:
        Products and sums in float32 (float64 for float64), one rounding to the output dtype. On a
        GPU float32 is multiplied in TensorFloat-32 where ``F.conv2d`` may do so.

    Source:
        Mobiny et al. 2021, *DropConnect is effective in modeling uncertainty of Bayesian deep
        networks* (masks on the weights of convolutions, one for a pass); one mask for every sample
        as in Wan et al. 2013, *Regularization of neural networks using DropConnect*.

    Example:
        >>> x, w = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)
        >>> dropconnect_conv2d(x, w, padding=1, p=0.5, key=MaskKey(seed=0)).shape
        torch.Size([2, 4, 8, 8])
    """
    if has_torch_function_variadic(x, weight):
        return handle_torch_function(
            dropconnect_conv2d,
            (x, weight),
            x,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
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
    _check_shapes(x, weight, groups)
    _arguments.check_tensors(x, weight, bias)
    _arguments.check_options(scope, scale, sampler)
    if scope == "row":
        raise ValueError(CONV_SCOPE.format(got=scope))
    if sampler != "bernoulli":
        raise ValueError(CONV_SAMPLER.format(got=sampler))
    x, at = _geometry(x, weight, stride, padding, dilation, groups)
    layout = _layout(x, sample_ids, pass_ids, scope)
    key = _arguments.key_tensor(key, x.device)
    last = any(_is_channels_last(t) for t in (x, weight))
    memory_format = torch.channels_last if last else torch.contiguous_format
    P, S = layout.pass_ids.shape[0], layout.x.shape[1]
    if digits.bits == 0:
        y = F.conv2d(x, weight, bias, *at)
        if layout.x.shape[0] != P:
            y = repeated(y if y.ndim == 4 else y.unsqueeze(0), P)
            y = y.contiguous(memory_format=memory_format)
        return y
    y = op.conv2d(
        layout.x.expand(P, *layout.x.shape[1:]),
        weight.permute(0, 2, 3, 1),
        bias,
        key,
        layout.sample_ids,
        layout.pass_ids,
        digits.keep,
        digits.bits,
        1.0 / digits.keep_probability if scale == "inverted" else 1.0,
        *at.stride,
        *at.padding,
        *at.dilation,
        at.groups,
    )
    y = y.permute(0, 1, 4, 2, 3)
    y = in_shape(y, (P * S, *y.shape[2:])).contiguous(memory_format=memory_format)
    return y if layout.batched else y.squeeze(0)


def _check_shapes(x: Tensor, weight: Tensor, groups: int) -> None:
    """Refuse what ``F.conv2d`` refuses."""
    _arguments.check_floating(x)
    if x.ndim not in {3, 4}:
        raise ValueError(_X.format(got=list(x.shape)))
    fits = weight.ndim == 4 and weight.shape[0] < MAX_OUTPUTS
    if not fits or 0 in (weight.shape[0], *weight.shape[2:]):
        raise ValueError(_WEIGHT.format(got=list(weight.shape)))
    N, per_group = weight.shape[:2]
    if not _is_integer(groups) or groups < 1 or N % groups:
        raise ValueError(_GROUPS.format(outputs=N, weight=list(weight.shape), got=groups))
    if x.shape[-3] != per_group * groups:
        raise ValueError(
            _CHANNELS.format(
                expected=per_group * groups,
                weight=list(weight.shape),
                groups=groups,
                got=x.shape[-3],
            )
        )


def _geometry(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> tuple[Tensor, Geometry]:
    """The geometry with symmetric padding; what is not symmetric is added to x."""
    steps = _pair("stride", stride, 1)
    gaps = _pair("dilation", dilation, 1)
    if padding == "same":
        if steps != (1, 1):
            raise ValueError(_SAME.format(got=steps))
        total = [gap * (k - 1) for gap, k in zip(gaps, weight.shape[2:], strict=True)]
        if total[0] % 2 or total[1] % 2:
            x = F.pad(x, (0, total[1] % 2, 0, total[0] % 2))
        pads = (total[0] // 2, total[1] // 2)
    elif padding == "valid":
        pads = (0, 0)
    elif isinstance(padding, str):
        raise ValueError(_PADDING.format(got=padding))
    else:
        pads = _pair("padding", padding, 0)
    sizes = [n + 2 * pad for n, pad in zip(x.shape[-2:], pads, strict=True)]
    covered = [gap * (k - 1) + 1 for gap, k in zip(gaps, weight.shape[2:], strict=True)]
    if sizes[0] < covered[0] or sizes[1] < covered[1]:
        kernel, size = (f"{a} × {b}" for a, b in (covered, sizes))
        raise ValueError(_FITS.format(kernel=kernel, size=size))
    return x, Geometry(steps, pads, gaps, groups)


def _pair(name: str, value: int | Sequence[int], lowest: int) -> tuple[int, int]:
    """Height and width of an argument that may be one number."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) == 1:
        values *= 2
    if len(values) != 2 or not all(_is_integer(v) and v >= lowest for v in values):
        message = _PADDING if name == "padding" else _NUMBERS
        raise ValueError(message.format(name=name, lowest=lowest, got=value))
    return values


def _is_integer(value: object) -> bool:
    """A Python integer, also a symbolic one, but no bool."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _layout(
    x: Tensor, sample_ids: Tensor | None, pass_ids: Tensor | None, scope: MaskScope
) -> _Layout:
    """Bring x into [P', S, H, W, C] without copying it."""
    images = x if x.ndim == 4 else x.unsqueeze(0)
    rows = images.shape[0]
    sample_ids, pass_ids = _arguments.row_ids(rows, sample_ids, pass_ids, x.device)
    P, S = pass_ids.numel(), sample_ids.numel()
    if scope == "pass":
        sample_ids = torch.zeros(1, dtype=torch.int64, device=x.device)
    x5 = images.reshape(P if rows == P * S else 1, S, *images.shape[1:]).permute(0, 1, 3, 4, 2)
    return _Layout(x5, sample_ids, pass_ids, batched=x.ndim == 4 or P * S != 1)


def _is_channels_last(t: Tensor) -> bool:
    """Whether ``F.conv2d`` would answer ``t`` with channels last in memory."""
    if t.ndim != 4 or t.is_contiguous() or t.stride(1) == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        if t.stride(d) < least:
            return False
        least = t.stride(d) * max(1, t.shape[d])
    return True
