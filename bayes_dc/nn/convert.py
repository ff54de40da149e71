"""Turn the linear layers of an existing model into DropConnect layers, and back."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.nn.utils import parametrize

from bayes_dc.nn.keys import dropconnect_layers, number_layers
from bayes_dc.nn.linear import DropConnectLinear
from bayes_dc.nn.module import check_options
from bayes_dc.types import MaskScale, MaskScope, Sampler

_NOTHING = """\
convert found no layer to replace: {seen}.
It replaces torch.nn.Linear; check `select` and `exclude_last`, or build the model with
bayes_dc.DropConnectLinear.
"""


@dataclass(frozen=True)
class ConversionReport:
    """What ``convert`` did.

    Attributes:
        converted: Names of the replaced layers, in ``model.modules()`` order.
        skipped: Name → reason for every linear layer that was left alone.
    """

    converted: tuple[str, ...]
    skipped: dict[str, str] = field(default_factory=dict)


def convert(
    model: nn.Module,
    p: float = 0.5,
    *,
    select: Callable[[str, nn.Module], bool] | None = None,
    scope: MaskScope = "row",
    scale: MaskScale = "inverted",
    sampler: Sampler = "bernoulli",
    exclude_last: bool = False,
) -> ConversionReport:
    """Make ``nn.Linear`` layers of a model DropConnect layers, in place.

    A layer object stays the same object: its class changes, so parameters, names, hooks, ties and
    optimizer references stay as they are. In evaluation mode the outputs are as before
    (``scale="inverted"``). ``restore`` undoes it.

    Args:
        model: Model to change.
        p: Drop probability in [0, 1).
        select: Called with (name, layer); True converts. None converts all.
        scope: See ``DropConnectLinear``.
        scale: See ``DropConnectLinear``.
        sampler: See ``DropConnectLinear``.
        exclude_last: Leave the last linear layer (in ``model.modules()`` order) alone.

    Returns:
        What was converted and what was left, with reasons.

    Raises:
        ValueError: If nothing would be converted, or an option is out of range.
        TypeError: If ``model`` is no module or ``p`` no number.
    """
    dropconnect_layers(model)
    candidates = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    last = candidates[-1][0] if candidates and exclude_last else None
    chosen: list[tuple[str, nn.Linear]] = []
    skipped: dict[str, str] = {}
    for name, layer in candidates:
        reason = _reason_to_skip(name, layer, last, select)
        if reason is None:
            chosen.append((name, layer))
        else:
            skipped[name] = reason
    if not chosen:
        seen = ", ".join(f"{n or 'the model'} ({r})" for n, r in skipped.items())
        raise ValueError(_NOTHING.format(seen=seen or "the model has no torch.nn.Linear"))
    check_options(p=p, scope=scope, scale=scale, sampler=sampler)
    for _, layer in chosen:
        layer.__class__ = DropConnectLinear
        layer.configure(p=p, scope=scope, scale=scale, sampler=sampler)  # type: ignore[operator]
    number_layers(model)
    return ConversionReport(tuple(name for name, _ in chosen), skipped)


def restore(model: nn.Module) -> tuple[str, ...]:
    """Turn every ``DropConnectLinear`` of a model back into ``nn.Linear``, in place.

    Subclasses of it, whose forward ``nn.Linear`` does not have, are left alone.

    Args:
        model: Model to change.

    Returns:
        Names of the layers changed back.
    """
    found = dropconnect_layers(model)
    layers = {name: layer for name, layer in found.items() if type(layer) is DropConnectLinear}
    for layer in layers.values():
        layer.drop_hook()
        for name in ("p", "scope", "scale", "sampler", "mask_layer", "masks"):
            del layer.__dict__[name]
        layer.__class__ = nn.Linear  # type: ignore[assignment]
    return tuple(layers)


def _reason_to_skip(
    name: str,
    layer: nn.Linear,
    last: str | None,
    select: Callable[[str, nn.Module], bool] | None,
) -> str | None:
    """Why a linear layer stays as it is, or None."""
    if isinstance(layer, DropConnectLinear):
        return "already a DropConnect layer"
    if parametrize.is_parametrized(layer):
        return "parametrized: remove the parametrization first"
    if type(layer) is not nn.Linear:
        return f"a subclass of nn.Linear ({type(layer).__name__}) with a forward of its own"
    if name == last:
        return "the last linear layer (exclude_last)"
    if select is not None and not select(name, layer):
        return "not selected"
    return None
