"""Per-sample DropConnect convolution: definition, operators and kernels."""

from bayes_dc.ops.conv2d.api import dropconnect_conv2d

__all__ = ["dropconnect_conv2d"]
