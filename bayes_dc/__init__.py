"""Per-sample DropConnect uncertainty for PyTorch.

Example::

    model = ...                               # any classifier with linear or convolutional layers
    bayes_dc.convert(model, p=0.5)            # then train or fine-tune it
    prediction = bayes_dc.predict_with_uncertainty(model, x, T=100)
    prediction.mean, prediction.entropy, prediction.mutual_information
"""

from bayes_dc import datasets, metrics, models
from bayes_dc.mc import MonteCarloEngine, Prediction, predict_with_uncertainty
from bayes_dc.nn import DropConnectConv2d, DropConnectLinear, convert, restore
from bayes_dc.ops import dropconnect_conv2d, dropconnect_linear
from bayes_dc.types import MaskKey
from bayes_dc.types import __version__ as __version__

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
