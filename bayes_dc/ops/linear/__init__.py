"""Per-row DropConnect linear: definition, operators and kernels."""

from bayes_dc.ops.linear.api import dropconnect_linear

__all__ = ["dropconnect_linear"]
