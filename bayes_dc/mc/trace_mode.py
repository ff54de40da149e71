"""What happens to calls that draw masks while a forward is traced: markers take their place."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayes_dc.mc import plan_errors
from bayes_dc.mc.by_torch import drawn_by_torch
from bayes_dc.mc.dropout import Dropout, FunctionCall
from bayes_dc.mc.markers import planned_conv2d, planned_dropout, planned_linear
from bayes_dc.mc.plan_types import Site
from bayes_dc.nn import MaskKeys, dropconnect_layers
from bayes_dc.nn.dropout import check_batched
from bayes_dc.ops import _arguments, dropconnect_conv2d, dropconnect_linear
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.ops.dropout.api import ALPHA
from bayes_dc.rng import keep_digits

_BY_HAND = (
    "it is called with a key of its own rather than by a layer",
    "Use a layer (bayes_dc.DropConnectLinear, DropConnectConv2d, nn.Dropout), whose masks follow "
    "the seed of a prediction.",
)
_INPUTS_FIRST = (
    "masks are keyed by the inputs, which are not along the first dimension of its x {shape}",
    "Keep the inputs along the first dimension, [B, L, K] rather than [L, B, K] or [B · L, K] for "
    "L tokens (batch_first=True); for one image or row give x its rows first (x[None]).",
)
_DTYPES = (
    "it gets {dtypes}, which torch does not multiply",
    "Give the input the dtype of the model (x.float() for one of float32), or convert the model.",
)
_PRODUCTS = {F.linear, F.conv1d, F.conv2d, F.conv3d, dropconnect_linear, dropconnect_conv2d}
_BY_TORCH = (
    "torch draws its dropout (p = {p}) itself, from a generator",
    "Pass dropout=False, which leaves dropout off, or engine='folded', where it is seeded.",
)


class SiteKey:
    """In the place of key words and ids while a model is traced.

    Args:
        source: Where the words come from; see ``Site.key``.
        name: Name of the module.
    """

    def __init__(self, source: tuple[str | int, ...], name: str) -> None:
        self.source, self.name = source, name

    def to(self, device: torch.device) -> "SiteKey":
        """Itself.

        Args:
            device: Not looked at.

        Returns:
            This object.
        """
        return self


class _Coordinates:
    """In the place of ``LayerMasks``."""

    def __init__(self, key: SiteKey) -> None:
        self.key, self.keys = key, self
        self.sample_ids = self.pass_ids = key


@contextmanager
def planned_keys(model: nn.Module, rows: int, *, dropout: bool) -> Iterator[MaskKeys]:
    """Layers and dropout modules that call their functions with ``SiteKey``.

    Args:
        model: The model.
        rows: Rows of the input.
        dropout: Whether dropout draws.

    Yields:
        The keys that are attached meanwhile.
    """
    keys = MaskKeys(0)
    keys.set(pass_ids=0, sample_ids=torch.arange(rows))
    with keys.attached(model, dropout=dropout):
        for name, layer in dropconnect_layers(model).items():
            assert layer.mask_layer is not None
            key = SiteKey(("layer", layer.mask_layer), name)
            layer.masks = _Coordinates(key)  # type: ignore[assignment]
        for forward in keys.dropout:
            forward._key = _key_of(forward.number, forward.name)  # type: ignore[method-assign,assignment]
        yield keys


def _key_of(number: int, name: str) -> Callable[[int, torch.device], Any]:
    return lambda call, device: SiteKey(("dropout", number, call), name)


class TraceMode(TorchFunctionMode):
    """Puts marker operators in the place of what draws masks.

    Args:
        keys: The keys attached to the model.
        rows: Rows of the input.
        dropout: Whether dropout draws.
        channels_last: Whether convolutions shall write channels last.

    Attributes:
        sites: What was asked for, in the order of the calls.
    """

    def __init__(self, keys: MaskKeys, rows: int, *, dropout: bool, channels_last: bool) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self._dropout = Dropout(keys, active=dropout)
        self._rows, self._channels_last = rows, channels_last

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            _check_dtypes(func, (*args, *kwargs.values()))
        if func in self._MARKED:
            key = kwargs.get("key")
            if not isinstance(key, SiteKey):
                plan_errors.refuse(func.__name__, "the forward", "", *_BY_HAND)
            return self._MARKED[func](self, *args, **kwargs)
        call = self._dropout.function_call(func, args, kwargs)
        if call is not None:
            return self._function(call)
        by_torch = drawn_by_torch(func, args, kwargs)
        if by_torch:
            if self._dropout.active:
                why = _BY_TORCH[0].format(p=by_torch.p)
                plan_errors.refuse(by_torch.name, func.__name__, "", why, _BY_TORCH[1])
            args, kwargs = by_torch.off
        return func(*args, **kwargs)

    def _add(self, x: Tensor, least: int, key: SiteKey, p: float, **options: Any) -> int:
        """The number of a new site; ``x`` must have ``least`` dimensions, inputs first."""
        if x.ndim < least or x.shape[0] != self._rows:
            why = _INPUTS_FIRST[0].format(shape=list(x.shape))
            plan_errors.refuse(options["kind"], key.name, "", why, _INPUTS_FIRST[1])
        digits = keep_digits(p)
        index = len(self.sites)
        self.sites.append(
            Site(
                index, key.name, p=p, keep=digits.keep, bits=digits.bits, key=key.source, **options
            )
        )
        return index

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        p = options["p"]
        x, weight, bias = _arguments.autocast(x, weight, bias)
        if keep_digits(p).bits == 0 or x.shape[-1:] != weight.shape[1:] or x.dtype != weight.dtype:
            return F.linear(x, weight, bias)  # which says what sizes do not fit
        index = self._add(
            x,
            2,
            options["key"],
            p,
            kind="linear",
            factor=_factor(p, options["scale"]),
            scope=options["scope"],
            sampler=options["sampler"],
        )
        return planned_linear(x, weight, bias, index)

    def _conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        **options: Any,
    ) -> Tensor:
        x, weight, bias = _arguments.autocast(x, weight, bias)
        plain = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
        p = options["p"]
        if keep_digits(p).bits == 0:
            return plain
        steps, gaps = _pair(stride), _pair(dilation)
        pads = (0, 0)
        if padding == "same":
            total = [gap * (k - 1) for gap, k in zip(gaps, weight.shape[2:], strict=True)]
            if total[0] % 2 or total[1] % 2:
                x = F.pad(x, (0, total[1] % 2, 0, total[0] % 2))
            pads = (total[0] // 2, total[1] // 2)
        elif not isinstance(padding, str):
            pads = _pair(padding)
        index = self._add(
            x,
            4,
            options["key"],
            p,
            kind="conv2d",
            factor=_factor(p, options["scale"]),
            scope=options["scope"],
            stride=steps,
            padding=pads,
            dilation=gaps,
            groups=groups,
        )
        last = self._channels_last or not plain.is_contiguous()
        return planned_conv2d(x, weight, bias, list(plain.shape[1:]), last, index)

    def _keyed(
        self,
        x: Tensor,
        *,
        p: float,
        key: SiteKey,
        channels: bool = False,
        alpha: bool = False,
        **ids: Any,
    ) -> Tensor:
        """As ``keyed_dropout``."""
        if p == 1:
            return torch.zeros_like(x)
        digits = keep_digits(p)
        if digits.bits == 0:
            return x
        keep = digits.keep_probability
        factor = 1 / keep
        if alpha:
            x, factor = x + ALPHA, (keep + keep * (1 - keep) * ALPHA**2) ** -0.5
        index = self._add(x, 1, key, p, kind="dropout", factor=factor, channels=channels)
        y = planned_dropout(x, index)
        return y - factor * keep * ALPHA if alpha else y

    def _function(self, call: FunctionCall) -> Any:
        """Keyed masks in place of those of a dropout function."""
        x, kind = call.x, call.kind
        if not self._dropout.draws(call):
            return (x, torch.ones_like(x).bool()) if kind.with_mask else x
        number = self._dropout.calls
        name = f"F.dropout call {number}"
        check_batched(x, kind.unbatched, name)
        self._dropout.calls += 1
        key = SiteKey(("function", number), name)
        options: dict[str, Any] = {
            "p": call.p,
            "key": key,
            "channels": kind.channels,
            "alpha": kind.alpha,
        }
        y = self._keyed(x, **options)
        if kind.with_mask:
            return y, self._keyed(torch.ones_like(x), **options).bool()
        return x.copy_(y) if call.in_place else y

    _MARKED: ClassVar[dict[Callable[..., Any], Callable[..., Any]]] = {
        dropconnect_linear: _linear,
        dropconnect_conv2d: _conv2d,
        keyed_dropout: _keyed,
    }


def _check_dtypes(func: Callable[..., Any], operands: tuple[Any, ...]) -> None:
    """Refuse operands of several dtypes, which tensors without values are multiplied in."""
    tensors = [t for t in operands if isinstance(t, Tensor)]
    dtypes = dict.fromkeys(str(t.dtype) for t in tensors)
    if len(dtypes) > 1 and not torch.is_autocast_enabled(tensors[0].device.type):
        why = _DTYPES[0].format(dtypes=" and ".join(dtypes))
        plan_errors.refuse(func.__name__, "the forward", "", why, _DTYPES[1])


def _factor(p: float, scale: str) -> float:
    return 1.0 / keep_digits(p).keep_probability if scale == "inverted" else 1.0


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of an argument that may be one number."""
    values = (value, value) if isinstance(value, int) else tuple(value) * (3 - len(value))
    return values[0], values[1]
