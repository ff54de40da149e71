"""Moment-matched DropConnect linear: draws of the layer's output instead of masks."""

from bayes_dc.ops.gaussian.op import gaussian_linear

__all__ = ["gaussian_linear"]
