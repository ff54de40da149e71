"""DropConnect layers, their mask keys, and the conversion of existing models."""

from bayes_dc.nn.conv2d import DropConnectConv2d
from bayes_dc.nn.conversion_report import ConversionReport
from bayes_dc.nn.convert import convert, restore
from bayes_dc.nn.dropout import dropout_layers
from bayes_dc.nn.keys import LayerMasks, MaskKeys, dropconnect_layers, number_layers
from bayes_dc.nn.linear import DropConnectLinear
from bayes_dc.nn.module import DropConnectModule
from bayes_dc.rng import SPEC_VERSION as MASK_SPEC_VERSION

__all__ = [
    "MASK_SPEC_VERSION",
    "ConversionReport",
    "DropConnectConv2d",
    "DropConnectLinear",
    "DropConnectModule",
    "LayerMasks",
    "MaskKeys",
    "convert",
    "dropconnect_layers",
    "dropout_layers",
    "number_layers",
    "restore",
]
