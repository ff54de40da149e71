"""Turn the layers of an existing model into DropConnect layers, and back."""

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from bayes_dc.nn.conversion_report import ConversionReport, make_report
from bayes_dc.nn.keys import dropconnect_layers, number_layers
from bayes_dc.nn.module import DropConnectModule
from bayes_dc.nn.readers import read_past
from bayes_dc.nn.selection import (
    Layer,
    PerLayer,
    Select,
    check_keys,
    named_layers,
    selector,
    value_for,
)
from bayes_dc.nn.swap import (
    become_dropconnect,
    become_plain,
    check,
    default_scope,
    is_candidate,
    obstacle,
    plain_class,
)
from bayes_dc.types import MaskScale, MaskScope, Sampler

_NOTHING = """\
convert found no layer to replace: {seen}.
It replaces torch.nn.Linear and torch.nn.Conv2d; check `select` and `exclude_last`, or build the
model with bayes_dc.DropConnectLinear and bayes_dc.DropConnectConv2d.
"""
_NONE = "the model has no torch.nn.Linear and no torch.nn.Conv2d"
_LAZY = (
    "Layer {name!r} is lazy and has no weights yet. Run one batch through the model "
    "(model(x) with torch.no_grad()), then convert; or leave the layer out with `select`."
)
_RUNNING = (
    "Layer {name!r} draws its masks from attached MaskKeys: convert the model before a run, or "
    "detach them first."
)
_CONVERTED = "already a DropConnect layer ({options})"
_READ_PAST = "{owner} reads its weight without calling it, so a mask would have no effect"
_INSIDE = "part of the parametrization of a weight"
_LAST = "the last layer (exclude_last)"
_NOT_SELECTED = "not selected"
_SCRIPT = "TorchScript, which cannot be changed; convert before torch.jit.script or trace"
_OWN = "{kind} holds {names} itself; only nn.Linear and nn.Conv2d have a DropConnect form"
_QUANTISED = "{kind}: its weights are quantised; convert the network before it is quantised"
_AO = "torch.ao.nn."  # its layers hold packed weights, which are no parameters
_SHOWN = 3


def convert(
    model: nn.Module,
    p: PerLayer[float] = 0.5,
    *,
    select: Select = None,
    scope: PerLayer[MaskScope] | None = None,
    scale: MaskScale = "inverted",
    sampler: PerLayer[Sampler] = "bernoulli",
    exclude_last: bool = False,
    dry_run: bool = False,
) -> ConversionReport:
    """Make the ``nn.Linear`` and ``nn.Conv2d`` layers of a model DropConnect layers, in place.

    A layer object stays the same object: its class changes, so parameters, names, hooks, ties,
    parametrizations and optimizer references stay as they are. In evaluation mode the outputs are
    as before (``scale="inverted"``). ``restore`` undoes it.

    Left alone, and listed with the reason: subclasses (their forward may be their own), layers
    whose weight is read by the module that holds them (``nn.MultiheadAttention``,
    ``F.linear(x, self.fc.weight)`` in a forward), and what has no DropConnect form (``nn.LSTM``).
    A layer whose weight is read in a way that cannot be seen in its holder's source, such as
    ``F.linear(x, model.fc.weight)`` in a training loop, is converted, and its masks have no effect
    there: call the layer instead.

    Args:
        model: Model to change. What ``torch.compile`` returned is looked into; a model within
            ``DataParallel`` has names that begin with ``module.``.
        p: Drop probability in [0, 1). One for all layers; a mapping from names, patterns or
            classes (as in ``select``) to one each, of which the first that matches counts; or a
            function of (name, layer).
        select: Which layers: a function of (name, layer) → bool; a name, which stands for that
            layer or all layers below it (``"layer4"``); a pattern (``"*.fc?"``); a class
            (``nn.Conv2d``); one of the first two after ``!``, for all other layers; or a list of
            these, in which the last that fits a layer decides. None converts all.
        scope: Which rows share a mask; in the same forms as ``p``. Where none is given, that of
            the layer: ``"row"`` for linear layers, ``"sample"`` for convolutions.
        scale: See ``DropConnectLinear``.
        sampler: See ``DropConnectLinear``; in the same forms as ``p``.
        exclude_last: Leave the last linear or convolutional layer (in ``model.modules()`` order)
            alone.
        dry_run: Change nothing, and return what would be done.

    Returns:
        What was converted and what was left, with reasons; ``print`` it.

    Raises:
        ValueError: If nothing would be converted, an option is out of range or matches no layer,
            or a selected layer is lazy. The model is then as it was.
        TypeError: If ``model`` is no module, ``p`` no number or ``select`` none of its forms.
        RuntimeError: If ``MaskKeys`` are attached to layers of the model.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 2))
        >>> print(convert(model, p={nn.Conv2d: 0.25, "*": 0.5}))
        converted 2 layers: masks on 44 weights, of 50 parameters of the model
          0  Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1)): p=0.25, scope='sample'
          2  Linear(in_features=4, out_features=2, bias=True): p=0.5, scope='row'
        left alone:
          nothing
    """
    for name, layer in dropconnect_layers(model).items():
        if layer.masks is not None:
            raise RuntimeError(_RUNNING.format(name=name))
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    candidates = named_layers(model, is_candidate)
    chosen, left = _choose(model, candidates, select, exclude_last)
    if not chosen:
        seen = ", ".join(f"{name or 'the model'} ({reason})" for name, reason in left.items())
        raise ValueError(_NOTHING.format(seen=seen or _NONE))
    for option, given in (("p", p), ("scope", scope), ("sampler", sampler)):
        check_keys(option, given, candidates)
    options = [_options(layer, p=p, scope=scope, scale=scale, sampler=sampler) for layer in chosen]
    report = make_report(model, chosen, options, left, dry_run=dry_run)
    if not dry_run:
        _convert(model, chosen, options)
    return report


def restore(model: nn.Module) -> tuple[str, ...]:
    """Turn the DropConnect layers of a model back into ``nn.Linear`` and ``nn.Conv2d``, in place.

    Subclasses of ours, whose forward torch's layers do not have, are left alone.

    Args:
        model: Model to change.

    Returns:
        Names of the layers changed back.
    """
    dropconnect_layers(model)  # a module?
    model = getattr(model, "_orig_mod", model)
    return tuple(name for name, layer in dropconnect_layers(model).items() if become_plain(layer))


def _choose(
    model: nn.Module, candidates: list[Layer], select: Select, exclude_last: bool
) -> tuple[list[Layer], dict[str, str]]:
    """Layers to convert, and name → reason for what is left alone."""
    selected = selector(select, candidates)
    reasons = _reasons(model)
    chosen = []
    for layer in candidates:
        module = layer.module
        lazy = any(is_lazy(parameter) for parameter in module.parameters())
        reason = reasons.get(module) or (None if lazy else obstacle(module))
        if reason is None and exclude_last and layer is candidates[-1]:
            reason = _LAST
        if reason is None and not selected(layer):
            reason = _NOT_SELECTED
        if reason is not None:
            reasons[module] = reason
        elif lazy:
            raise ValueError(_LAZY.format(name=layer.name))
        else:
            chosen.append(layer)
    return chosen, {n: reasons[m] for n, m in model.named_modules() if m in reasons}


def _reasons(model: nn.Module) -> dict[nn.Module, str]:
    """Why modules are left alone, as far as that lies in what they are and where."""
    inside: dict[nn.Module, str] = {}  # of a module that is left alone as a whole
    reasons: dict[nn.Module, str] = {}
    for module in model.modules():
        if module in inside:
            if is_candidate(module):
                reasons[module] = inside[module]
            continue
        if isinstance(module, parametrize.ParametrizationList):
            inside |= dict.fromkeys(module.modules(), _INSIDE)
        elif isinstance(module, torch.jit.ScriptModule):
            inside |= dict.fromkeys(module.modules(), _SCRIPT)
            reasons[module] = _SCRIPT
        elif isinstance(module, DropConnectModule):
            reasons[module] = _CONVERTED.format(options=module.options_repr())
        elif not is_candidate(module):
            if type(module).__module__.startswith(_AO) and hasattr(module, "weight"):
                reasons[module] = _QUANTISED.format(kind=type(module).__name__)
            own = [n for n, t in module.named_parameters(recurse=False) if _is_matrix(t)]
            if own:
                names = ", ".join(own[:_SHOWN]) + (", …" if len(own) > _SHOWN else "")
                reasons[module] = _OWN.format(kind=type(module).__name__, names=names)
        for child in read_past(module):
            if is_candidate(child):
                reasons[child] = _READ_PAST.format(owner=type(module).__name__)
    return reasons


def _is_matrix(parameter: nn.Parameter) -> bool:
    """Whether a parameter is more than one number for each channel."""
    return not is_lazy(parameter) and parameter.ndim > 1


def _options(layer: Layer, **given: Any) -> dict[str, Any]:
    """Options of one layer, checked."""
    plain = plain_class(layer.module)
    assert plain is not None
    defaults = {"scope": default_scope(plain), "sampler": "bernoulli"}
    options = {n: value_for(n, value, layer, defaults.get(n)) for n, value in given.items()}
    try:
        check(plain, options)
    except (TypeError, ValueError) as error:
        error.add_note(f"(for layer {layer.name!r}, {plain.__name__})")
        raise
    options["p"] = float(options["p"])
    return options


def _convert(model: nn.Module, chosen: list[Layer], options: list[dict[str, Any]]) -> None:
    """Change the classes and number the layers: all of it, or nothing."""
    done: list[nn.Module] = []
    try:
        for layer, given in zip(chosen, options, strict=True):
            become_dropconnect(layer.module, given)
            done.append(layer.module)
        number_layers(model)
    except BaseException:
        for module in done:
            become_plain(module)
        raise
