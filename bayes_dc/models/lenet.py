"""Two convolutions, then fully connected layers: LeNet-5 and the MNIST network of the papers."""

from collections import OrderedDict

from torch import nn

from bayes_dc.models._parts import check_image, dropout_layers, image_shape


def lenet5(
    input_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 6c5-p2-16c5-p2-120-84-classes.

    Images of 28² pixels are padded by 2 on every side, as LeCun's were.

    Args:
        input_shape: ``(C, 28, 28)`` or ``(C, 32, 32)``.
        classes: Number of classes, the width of the output (logits).
        dropout: Probability of an ``nn.Dropout`` in front of every layer with weights but the
            first, in [0, 1). 0 adds no module.

    Returns:
        ``[B, C, H, W]`` → ``[B, classes]``; 61 706 parameters for one channel and 10 classes.

    Raises:
        ValueError: If the images have another size, or ``dropout`` is out of range.
    """
    channels, height, width = image_shape(input_shape, classes)
    fits = height == width and height in (28, 32)
    check_image(input_shape, fits, model="lenet5", takes="28 × 28 or 32 × 32", other="cnn")
    return _sequence(
        [
            ("conv1", nn.Conv2d(channels, 6, 5, padding=2 if height == 28 else 0)),
            ("conv2", nn.Conv2d(6, 16, 5)),
        ],
        [
            ("fc1", nn.Linear(400, 120)),
            ("fc2", nn.Linear(120, 84)),
            ("fc3", nn.Linear(84, classes)),
        ],
        dropout,
    )


def cnn(input_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0) -> nn.Sequential:
    """The network 32c5-p2-64c5-p2-500-classes with ReLU, unpadded.

    Args:
        input_shape: ``(C, H, W)`` with at least 16 pixels a side.
        classes: Number of classes, the width of the output (logits).
        dropout: Probability of an ``nn.Dropout`` in front of every layer with weights but the
            first, in [0, 1). 0 adds no module.

    Returns:
        ``[B, C, H, W]`` → ``[B, classes]``; 569 606 parameters for MNIST.

    Raises:
        ValueError: If the images are smaller, or ``dropout`` is out of range.
    """
    channels, height, width = image_shape(input_shape, classes)
    fits = min(height, width) >= 16
    check_image(input_shape, fits, model="cnn", takes="at least 16 × 16", other="mlp")
    down, across = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    return _sequence(
        [("conv1", nn.Conv2d(channels, 32, 5)), ("conv2", nn.Conv2d(32, 64, 5))],
        [("fc1", nn.Linear(64 * down * across, 500)), ("fc2", nn.Linear(500, classes))],
        dropout,
    )


def _sequence(
    convs: list[tuple[str, nn.Module]], linears: list[tuple[str, nn.Module]], dropout: float
) -> nn.Sequential:
    """Put ReLU, pooling and dropout between layers."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    first = True
    for number, (name, layer) in enumerate(convs + linears, 1):
        if number == len(convs) + 1:
            layers["flatten"] = nn.Flatten(1)
        if not first:
            layers |= {f"dropout{number}": module for module in dropout_layers(dropout)}
        first = False
        layers[name] = layer
        if number < len(convs) + len(linears):
            layers[f"relu{number}"] = nn.ReLU()
        if number <= len(convs):
            layers[f"pool{number}"] = nn.MaxPool2d(2)
    return nn.Sequential(layers)
