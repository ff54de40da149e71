"""Multilayer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from bayes_dc.models._parts import check_sizes, dropout_layers


def mlp(
    in_features: int, classes: int, hidden: Sequence[int] = (800, 800), *, dropout: float = 0.0
) -> nn.Sequential:
    """Fully connected ReLU network on flattened inputs.

    Args:
        in_features: Elements of one input.
        classes: Number of classes, the width of the output (logits).
        hidden: Widths of the hidden layers; may be empty.
        dropout: Probability of dropping a hidden unit, in [0, 1): an ``nn.Dropout`` after every
            ReLU. 0 adds no module.

    Returns:
        ``Flatten, Linear, ReLU, …, Linear``: ``[B, …]`` → ``[B, classes]``.

    Raises:
        ValueError: If a size is not positive, or ``dropout`` is out of range.
    """
    check_sizes(in_features=in_features)
    for width in hidden:
        check_sizes(hidden=width)
    check_sizes(classes=classes)
    dropped = len(dropout_layers(dropout))
    sizes = [in_features, *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), *dropout_layers(dropout)]
    return nn.Sequential(*layers[: -1 - dropped])
