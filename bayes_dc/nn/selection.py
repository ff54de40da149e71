"""Which layers, and which options for each: names, patterns, types and functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

from torch import nn

T = TypeVar("T")
Key = str | type[nn.Module]
"""A name, a pattern or a class of layers."""
Select = Callable[[str, nn.Module], bool] | Key | Sequence[Key] | None
PerLayer: TypeAlias = T | Mapping[Key, T] | Callable[[str, nn.Module], T]
"""One value for all layers, or a value for each."""

_SELECT = (
    "select must be a function of (name, layer), a name, a pattern such as 'layer4.*', a class, or "
    "a list of these; got {got!r}."
)
_KEY = "The keys of {option} must be names, patterns such as 'layer4.*' or classes; got {got!r}."
_UNUSED = (
    "{option} names {got}, and no linear or convolutional layer matches. A name stands for "
    "the layer or for all layers below it, * for any characters. Layers: {layers}."
)
_MISSING = (
    "{option} has no value for layer {name!r}. Add one under its name, under a pattern such as "
    "'*', or leave the layer out with `select`."
)
_SHOWN = 12


class Layer:
    """A layer and all names it has in its model.

    Args:
        module: The layer.
        names: Its names, the one in ``model.named_modules()`` first.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = module
        self.names = tuple(names)

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]

    def matches(self, key: Key) -> bool:
        """Whether a key means this layer.

        Args:
            key: A class; or the name, with wildcards or without, of the layer or of a module
                that holds it.

        Returns:
            True if it does.
        """
        if isinstance(key, type):
            return isinstance(self.module, key)
        patterns = (key, f"{key}.*")
        return any(
            f"{name}.".startswith(f"{key}.") or any(fnmatchcase(name, one) for one in patterns)
            for name in self.names  # a name may hold what has a meaning in patterns: "heads.a[0]"
        )


def named_layers(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> list[Layer]:
    """Layers of a model, each once, in ``model.modules()`` order.

    Args:
        model: Any module.
        wanted: Which modules to return.

    Returns:
        The layers, with their names.
    """
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if wanted(module):
            names.setdefault(module, []).append(name)
    return [Layer(module, found) for module, found in names.items()]


def selector(select: Select, layers: Iterable[Layer]) -> Callable[[Layer], bool]:
    """What ``select`` means.

    Args:
        select: As in ``convert``.
        layers: All layers, by which names are checked.

    Returns:
        Layer → whether it is selected.

    Raises:
        TypeError: If ``select`` is something else.
        ValueError: If a name or class matches no layer.
    """
    if select is None:
        return lambda layer: True
    if callable(select) and not isinstance(select, type):
        choose = select
        return lambda layer: bool(choose(layer.name, layer.module))
    keys = [select] if isinstance(select, (str, type)) else select
    if not isinstance(keys, (list, tuple)):  # their order counts
        raise TypeError(_SELECT.format(got=select))
    wrong = [key for key in keys if not isinstance(key, (str, type))]
    if wrong:
        raise TypeError(_SELECT.format(got=wrong[0]))
    rules = [_rule(key) for key in keys]
    _check_used("select", [key for key, _ in rules], layers)
    start = bool(rules) and not rules[0][1]  # "!a" alone: all but a

    def selected(layer: Layer) -> bool:
        return next((wanted for key, wanted in reversed(rules) if layer.matches(key)), start)

    return selected


def check_keys(option: str, given: object, layers: Iterable[Layer]) -> None:
    """Refuse a mapping with keys that mean no layer.

    Args:
        option: Name of the argument.
        given: Its value.
        layers: All layers.

    Raises:
        TypeError: If a key is neither a string nor a class.
        ValueError: If a key matches no layer.
    """
    if not isinstance(given, Mapping):
        return
    for key in given:
        if not isinstance(key, (str, type)):
            raise TypeError(_KEY.format(option=option, got=key))
    _check_used(option, given, layers)


def value_for(option: str, given: Any, layer: Layer, default: Any) -> Any:
    """Value of an option for one layer.

    Args:
        option: Name of the argument.
        given: A value, a mapping of which the first matching key counts, or a function.
        layer: The layer.
        default: Taken where the value is None or a mapping has none; None means there must be one.

    Returns:
        The value.

    Raises:
        ValueError: If there is neither a value nor a default.
    """
    value = given
    if isinstance(given, Mapping):
        value = next((v for key, v in given.items() if layer.matches(key)), None)
    elif callable(given):
        value = given(layer.name, layer.module)
    if value is None:
        value = default
    if value is None:
        raise ValueError(_MISSING.format(option=option, name=layer.name))
    return value


def _rule(key: Key) -> tuple[Key, bool]:
    """A key, and whether it selects or, with ``!`` before it, leaves out."""
    if isinstance(key, str) and key.startswith("!"):
        return key[1:], False
    return key, True


def _check_used(option: str, keys: Iterable[Key], layers: Iterable[Layer]) -> None:
    """Refuse keys that match no layer."""
    layers = list(layers)
    unused = [key for key in keys if not any(layer.matches(key) for layer in layers)]
    if unused:
        got = ", ".join(repr(k) if isinstance(k, str) else k.__name__ for k in unused)
        raise ValueError(_UNUSED.format(option=option, got=got, layers=", ".join(_some(layers))))


def _some(layers: Sequence[Layer]) -> Iterator[str]:
    """Names for a message, not too many."""
    for layer in layers[:_SHOWN]:
        yield layer.name or "the model itself"
    if len(layers) > _SHOWN:
        yield f"… ({len(layers)} in all)"
    if not layers:
        yield "none"
