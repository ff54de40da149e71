"""Per-sample DropConnect uncertainty for PyTorch.

Example::

    model = ...                               # any classifier with linear or convolutional layers
    bayes_dc.convert(model, p=0.5)            # then train or fine-tune it
    prediction = bayes_dc.predict_with_uncertainty(model, x, T=100)
    prediction.mean, prediction.entropy, prediction.mutual_information

Names and sub-packages are loaded when they are first used: ``import bayes_dc`` alone loads nothing,
not even torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bayes_dc.types import __version__ as __version__

if TYPE_CHECKING:
    from bayes_dc import datasets, metrics, models
    from bayes_dc.mc import MonteCarloEngine, Prediction, predict_with_uncertainty
    from bayes_dc.nn import DropConnectConv2d, DropConnectLinear, convert, restore
    from bayes_dc.ops import dropconnect_conv2d, dropconnect_linear
    from bayes_dc.types import MaskKey

__all__ = [
    "DropConnectConv2d",
    "DropConnectLinear",
    "MaskKey",
    "MonteCarloEngine",
    "Prediction",
    "convert",
    "datasets",
    "dropconnect_conv2d",
    "dropconnect_linear",
    "metrics",
    "models",
    "predict_with_uncertainty",
    "restore",
]

_PARTS = {
    *("acquire", "config", "datasets", "mc", "metrics", "models", "nn", "ops", "report", "rng"),
    *("train", "types"),
}
_HOMES = {
    "DropConnectConv2d": "nn",
    "DropConnectLinear": "nn",
    "MaskKey": "types",
    "MonteCarloEngine": "mc",
    "Prediction": "mc",
    "convert": "nn",
    "dropconnect_conv2d": "ops",
    "dropconnect_linear": "ops",
    "predict_with_uncertainty": "mc",
    "restore": "nn",
}
_UNKNOWN = (
    "module 'bayes_dc' has no attribute {name!r}. Its names are {names}; its sub-packages: {parts}."
)

# A type checker that saw this function would believe in any name.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a public name or a sub-package at its first use."""
        if name in _PARTS:
            return import_module(f"bayes_dc.{name}")
        if name not in _HOMES:
            parts = ", ".join(sorted(_PARTS - {*__all__}))
            text = _UNKNOWN.format(name=name, names=", ".join(__all__), parts=parts)
            raise AttributeError(text, name=name)
        value = getattr(import_module(f"bayes_dc.{_HOMES[name]}"), name)
        globals()[name] = value  # the next use finds it without this function
        return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
