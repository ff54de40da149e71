"""A layer changes its class, and with it nothing else: parameters, hooks and ties stay."""

import inspect
from typing import Any, TypeGuard, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bayes_dc.nn.conv2d import DropConnectConv2d
from bayes_dc.nn.linear import DropConnectLinear
from bayes_dc.nn.module import DropConnectModule
from bayes_dc.types import MaskScope

_CLASSES: dict[type[nn.Module], type[DropConnectModule]] = {
    nn.Linear: DropConnectLinear,
    nn.Conv2d: DropConnectConv2d,
}
PLAIN = tuple(_CLASSES)
"""Layers that have a DropConnect form."""

_STATE = ("p", "scope", "scale", "sampler", "mask_layer", "masks")
"""What ``configure`` adds to an object."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_SUBCLASS = "a subclass of nn.{parent} ({name}), whose forward may be its own"
_REPLACED = "its forward was replaced on the object; restore that first"
_CLASH = "it has an attribute {name!r} of its own, which DropConnect layers use"
_NO_WEIGHT = "it has no weight"
_TENSOR = "its weight is a {got}, not a plain tensor; convert before it is made one"
_DTYPE = "its weight is {got}; masks are applied to floating point weights of 16 bits or more"


def is_candidate(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Whether a module is a linear layer or a convolution, or a subclass of one.

    Args:
        module: Any module.

    Returns:
        True if it is.
    """
    return isinstance(module, PLAIN)


def plain_class(layer: nn.Module) -> type[nn.Module] | None:
    """The class in ``PLAIN`` that a layer has, beneath parametrizations.

    Args:
        layer: Any module.

    Returns:
        The class; None for all others, subclasses included.
    """
    return _beneath(layer, PLAIN)


def default_scope(plain: type[nn.Module]) -> MaskScope:
    """Scope of a DropConnect layer that was given none.

    Args:
        plain: A class in ``PLAIN``.

    Returns:
        Which rows share a mask.
    """
    scope = inspect.signature(_CLASSES[plain]).parameters["scope"].default
    assert scope in get_args(MaskScope)
    return scope


def obstacle(layer: nn.Module) -> str | None:
    """Why a layer cannot change its class, or None.

    Args:
        layer: A linear layer or a convolution, or a subclass of one, with weights.

    Returns:
        The reason.
    """
    plain = plain_class(layer)
    if plain is None:
        parent = "Linear" if isinstance(layer, nn.Linear) else "Conv2d"
        return _SUBCLASS.format(parent=parent, name=type(layer).__name__)
    if "forward" in vars(layer):
        return _REPLACED
    new = {*dir(_CLASSES[plain]), *_STATE} - {*dir(plain)}
    taken = {*vars(layer), *layer._parameters, *layer._buffers, *layer._modules} & new
    if taken:
        return _CLASH.format(name=min(taken))
    return _weight_obstacle(layer)


def check(plain: type[nn.Module], options: dict[str, Any]) -> None:
    """Refuse options that the DropConnect form of a layer does not take.

    Args:
        plain: A class in ``PLAIN``.
        options: Arguments of ``DropConnectModule.configure``.
    """
    probe = _CLASSES[plain].__new__(_CLASSES[plain])
    nn.Module.__init__(probe)
    probe.configure(**options)


def become_dropconnect(layer: nn.Module, options: dict[str, Any]) -> None:
    """Give a layer the DropConnect class, in place.

    Args:
        layer: A layer with a ``plain_class`` and no ``obstacle``.
        options: Arguments of ``DropConnectModule.configure``.
    """
    plain = plain_class(layer)
    assert plain is not None
    _change_class(layer, _CLASSES[plain])
    layer.configure(**options)  # type: ignore[operator]


def become_plain(layer: nn.Module) -> bool:
    """Take ``become_dropconnect`` back, in place.

    Args:
        layer: Any module.

    Returns:
        Whether it could be: not so for subclasses of our layers.
    """
    current = _beneath(layer, tuple(_CLASSES.values()))
    if current is None:
        return False
    assert isinstance(layer, DropConnectModule)
    layer.drop_hook()
    for name in _STATE:
        del layer.__dict__[name]
    _change_class(layer, next(p for p, d in _CLASSES.items() if d is current))
    return True


def _beneath(layer: nn.Module, classes: tuple[type[nn.Module], ...]) -> type[nn.Module] | None:
    """The one of ``classes`` that a layer has, seen through the class of a parametrized layer."""
    kind = type(layer)
    if parametrize.is_parametrized(layer) and kind not in classes:
        kind = kind.__base__  # type: ignore[assignment]
    return kind if kind in classes else None


def _change_class(layer: nn.Module, new: type[nn.Module]) -> None:
    """Set the class; torch's own class of a parametrized layer is made again on top of it."""
    current = type(layer)
    if parametrize.is_parametrized(layer):
        # The properties by which parametrized tensors are computed are in the class, not in the
        # object, and the class may be shared by deep copies: it cannot get another base.
        body = {k: v for k, v in vars(current).items() if k not in {"__dict__", "__weakref__"}}
        new = type(f"Parametrized{new.__name__}", (new,), body)
    layer.__class__ = new


def _weight_obstacle(layer: nn.Module) -> str | None:
    """Why a layer's weight cannot be masked, or None."""
    if parametrize.is_parametrized(layer, "weight"):
        # Not layer.weight: computing it has side effects (spectral_norm).
        computed = layer.get_submodule("parametrizations").get_submodule("weight")
        weights: list[object] = [*computed.parameters()]
    else:
        weights = [getattr(layer, "weight", None)]
    for weight in weights:
        if not isinstance(weight, Tensor):
            return _NO_WEIGHT
        if type(weight) not in {Tensor, nn.Parameter}:
            return _TENSOR.format(got=type(weight).__name__)
        if weight.dtype not in _DTYPES:
            return _DTYPE.format(got=weight.dtype)
    return None
