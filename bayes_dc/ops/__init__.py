"""Operators with masks made inside the kernel."""

from bayes_dc.ops.linear import dropconnect_linear

__all__ = ["dropconnect_linear"]
