"""VGG-16 with batch normalisation for images of 32² pixels."""

from collections import OrderedDict

from torch import nn

from bayes_dc.models._parts import check_image, dropout_layers, image_shape, init_he

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16_bn(
    input_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """VGG-16 (Simonyan & Zisserman 2015) with batch normalisation and one linear layer.

    Thirteen 3×3 convolutions in five stages, each ended by a 2×2 max pooling; the mean over the
    positions that are left (one, at 32²) goes to the linear layer.

    Args:
        input_shape: ``(C, H, W)`` with at least 32 pixels a side.
        classes: Number of classes, the width of the output (logits).
        dropout: Probability of an ``nn.Dropout`` after every pooling, in [0, 1). 0 adds no module.

    Returns:
        ``[B, C, H, W]`` → ``[B, classes]``; 14 728 266 parameters for CIFAR-10. Convolutions are
        named ``stage1.conv1`` … ``stage5.conv3``, the linear layer ``fc``.

    Raises:
        ValueError: If the images are smaller, or ``dropout`` is out of range.
    """
    channels, height, width = image_shape(input_shape, classes)
    fits = min(height, width) >= 32
    check_image(input_shape, fits, model="vgg16_bn", takes="at least 32 × 32", other="cnn")
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    for number, widths in enumerate(_WIDTHS, 1):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for place, out in enumerate(widths, 1):
            layers[f"conv{place}"] = nn.Conv2d(channels, out, 3, padding=1)
            layers[f"bn{place}"] = nn.BatchNorm2d(out)
            layers[f"relu{place}"] = nn.ReLU(inplace=True)
            channels = out
        layers["pool"] = nn.MaxPool2d(2)
        if dropped := dropout_layers(dropout):
            layers["dropout"] = dropped[0]
        stages[f"stage{number}"] = nn.Sequential(layers)
    stages |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(1)}
    stages["fc"] = nn.Linear(channels, classes)
    model = nn.Sequential(stages)
    init_he(model)
    return model
