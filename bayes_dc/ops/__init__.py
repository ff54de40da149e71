"""Operators with masks made inside the kernel."""

from bayes_dc.ops.conv2d import dropconnect_conv2d
from bayes_dc.ops.linear import dropconnect_linear

__all__ = ["dropconnect_conv2d", "dropconnect_linear"]
