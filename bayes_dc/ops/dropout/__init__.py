"""Dropout with masks made from coordinates: definition, operator and kernels."""

from bayes_dc.ops.dropout.api import keyed_dropout

__all__ = ["keyed_dropout"]
