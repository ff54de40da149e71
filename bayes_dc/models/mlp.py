"""Multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

_SIZES = "{name} must be positive; got {got}."


def mlp(in_features: int, classes: int, hidden: Sequence[int] = (800, 800)) -> nn.Sequential:
    """Fully connected ReLU network on flattened inputs.

    Args:
        in_features: Elements of one input.
        classes: Number of classes, the width of the output (logits).
        hidden: Widths of the hidden layers; may be empty.

    Returns:
        ``Flatten, Linear, ReLU, …, Linear``: ``[B, …]`` → ``[B, classes]``.

    Raises:
        ValueError: If a size is not positive.
    """
    sizes = [in_features, *hidden, classes]
    names = ["in_features", *["hidden"] * len(hidden), "classes"]
    for name, size in zip(names, sizes, strict=True):
        if size < 1:
            raise ValueError(_SIZES.format(name=name, got=size))
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
