"""What a conversion did, as data and as a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from bayes_dc.nn.selection import Layer
from bayes_dc.nn.swap import plain_class

_THE_MODEL = "(the model itself)"
_WIDEST = 40
_UNSAID = {"scale": "inverted", "sampler": "bernoulli"}
"""Options that a description leaves out."""


@dataclass(frozen=True)
class ConversionReport:
    """What ``convert`` did, or with ``dry_run`` would do; ``print`` shows it as a table.

    Attributes:
        converted: Name → description of each layer made a DropConnect layer, in
            ``model.modules()`` order.
        left_alone: Name → reason, for every other linear layer, convolution and module with
            weights of its own (parameters of two and more dimensions).
        masked_weights: Weights to which the masks of these layers apply, shared ones counted once,
            computed ones (parametrizations) as computed.
        parameters: All parameters of the model, shared ones counted once.
        dry_run: Whether the model was left as it was.
    """

    converted: Mapping[str, str]
    left_alone: Mapping[str, str]
    masked_weights: int
    parameters: int
    dry_run: bool = False

    def __str__(self) -> str:
        """The table, one layer on a line."""
        did = "would convert" if self.dry_run else "converted"
        count = len(self.converted)
        title = (
            f"{did} {count} layer{'' if count == 1 else 's'}: masks on {self.masked_weights:,} "
            f"weights, of {self.parameters:,} parameters of the model"
        )
        return "\n".join([title, *_rows(self.converted), "left alone:", *_rows(self.left_alone)])


def make_report(
    model: nn.Module,
    layers: Sequence[Layer],
    options: Sequence[Mapping[str, Any]],
    left_alone: Mapping[str, str],
    *,
    dry_run: bool,
) -> ConversionReport:
    """Describe a conversion before it is made.

    Args:
        model: The model as it is.
        layers: Layers to convert.
        options: Options of each.
        left_alone: Name → reason.
        dry_run: Whether it will not be made.

    Returns:
        The report.
    """
    holders: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(name)
    converted = {
        layer.name: _describe(layer, given, holders)
        for layer, given in zip(layers, options, strict=True)
    }
    masked = {_identity(layer.module): _weights(layer.module) for layer in layers}
    total = sum(p.numel() for p in model.parameters() if not is_lazy(p))
    return ConversionReport(converted, left_alone, sum(masked.values()), total, dry_run)


def _describe(layer: Layer, options: Mapping[str, Any], holders: dict[int, list[str]]) -> str:
    """What a layer is, how it is masked, under which other names, and who shares its weight."""
    plain = plain_class(layer.module)
    assert plain is not None
    shown = {name: value for name, value in options.items() if value != _UNSAID.get(name)}
    text = f"{plain.__name__}({layer.module.extra_repr()}): "
    text += ", ".join(f"{name}={value!r}" for name, value in shown.items())
    if len(layer.names) > 1:
        text += f"; also {', '.join(layer.names[1:])}"
    own = {f"{name}.weight".removeprefix(".") for name in layer.names}
    others = [name for name in holders.get(id(_weight(layer.module)), []) if name not in own]
    if others:
        text += f"; shares its weight with {', '.join(others)}"
    return text


def _weight(module: nn.Module) -> nn.Parameter | None:
    """The weight if it is a parameter, and not computed from others."""
    return module._parameters.get("weight")


def _identity(module: nn.Module) -> int:
    """The same number for layers that share their weight."""
    weight = _weight(module)
    return id(module if weight is None else weight)


def _weights(module: nn.Module) -> int:
    """How many weights a layer has; computed ones are not computed for this."""
    if isinstance(module, nn.Conv2d):
        return module.out_channels * module.in_channels // module.groups * prod(module.kernel_size)
    assert isinstance(module, nn.Linear)
    return module.out_features * module.in_features


def _rows(entries: Mapping[str, str]) -> Iterator[str]:
    """Names and what is said of them, in two columns."""
    names = [name or _THE_MODEL for name in entries]
    width = min(max(map(len, names), default=0), _WIDEST)
    for name, text in zip(names, entries.values(), strict=True):
        yield f"  {name:<{width}}  {text}"
    if not names:
        yield "  nothing"
