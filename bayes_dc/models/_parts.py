"""What several networks share: checks of sizes, initial weights, dropout."""

from torch import nn

SIZES = "{name} must be positive; got {got}."
_SHAPE = "input_shape must be (channels, height, width); got {got}."
_IMAGE = (
    "{model} takes images of {takes} pixels; input_shape is {got}. Resize them, or use {other}."
)
_DROPOUT = "dropout must be in [0, 1); got {got}."


def check_sizes(**sizes: int) -> None:
    """Refuse sizes below 1.

    Args:
        **sizes: By the name that the message shows.

    Raises:
        ValueError: If one is not positive.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(SIZES.format(name=name, got=size))


def check_image(
    input_shape: tuple[int, int, int], fits: bool, *, model: str, takes: str, other: str
) -> None:
    """Refuse images that a network has no layers for.

    Args:
        input_shape: ``(C, H, W)``.
        fits: Whether height and width fit.
        model: Name of the network.
        takes: The sizes it takes.
        other: A network that takes others.

    Raises:
        ValueError: If they do not fit.
    """
    if not fits:
        raise ValueError(_IMAGE.format(model=model, takes=takes, got=input_shape, other=other))


def image_shape(input_shape: tuple[int, int, int], classes: int) -> tuple[int, int, int]:
    """Check the sizes of an image classifier.

    Args:
        input_shape: ``(C, H, W)``.
        classes: Number of classes.

    Returns:
        ``(C, H, W)``.

    Raises:
        ValueError: If there are not three sizes, or one is not positive.
    """
    if len(input_shape) != 3:
        raise ValueError(_SHAPE.format(got=tuple(input_shape)))
    channels, height, width = input_shape
    check_sizes(channels=channels, height=height, width=width, classes=classes)
    return channels, height, width


def dropout_layers(p: float) -> list[nn.Module]:
    """Dropout in front of a layer, or nothing.

    Args:
        p: Probability of dropping an element, in [0, 1); 0 adds no module, so that names and state
            dicts are those of the network without.

    Returns:
        No module, or one.

    Raises:
        ValueError: If ``p`` is out of range.
    """
    if not 0 <= p < 1:
        raise ValueError(_DROPOUT.format(got=p))
    return [nn.Dropout(p)] if p else []


def init_he(model: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / fan_out), He et al. 2015; others keep torch's.

    Args:
        model: Network whose weights are drawn in place.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
