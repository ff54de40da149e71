"""Which masks an engine draws: key words for a seed, and the dropout that is active."""

from collections.abc import Sequence

from torch import nn

from bayes_dc.mc.plan_types import Site
from bayes_dc.nn.dropout import dropout_layers, function_key
from bayes_dc.rng import check_seed, dropout_key, layer_key


def key_words(seed: object, sites: Sequence[Site]) -> tuple[int, list[tuple[int, int]]]:
    """The key words of every site.

    Args:
        seed: Unsigned 64-bit seed, of any kind of integer.
        sites: Places that draw masks.

    Returns:
        The seed as a Python int, and two words for each site.
    """
    number = check_seed(seed)
    return number, [_words(number, site) for site in sites]


def _words(seed: int, site: Site) -> tuple[int, int]:
    kind, *numbers = site.key
    if kind == "layer":
        return layer_key(seed, int(numbers[0]))
    if kind == "dropout":
        return dropout_key(seed, int(numbers[0]), int(numbers[1]))
    assert kind == "function", site.key
    return function_key(seed, int(numbers[0]))


def active_dropout(model: nn.Module, sites: Sequence[Site]) -> dict[str, float]:
    """Realised drop probability of all dropout that draws.

    Args:
        model: The model.
        sites: Places that draw masks.

    Returns:
        By module name, by number for calls of functions.
    """
    drawn = {s.name: 1 - s.keep / (1 << s.bits) for s in sites if s.kind == "dropout"}
    # Everything dropped is no mask, and no site.
    return {n: 1.0 for n, m in dropout_layers(model).items() if m.p == 1} | drawn


def silent_dropout(model: nn.Module, sites: Sequence[Site]) -> list[str]:
    """Names of dropout modules with p > 0 that the forward does not call.

    Args:
        model: The model.
        sites: Places that draw masks.

    Returns:
        Them; a module with p = 1 is not among them.
    """
    called = {site.name for site in sites}
    layers = dropout_layers(model)
    return [n for n, m in layers.items() if 0 < m.p < 1 and n not in called]
