"""Residual networks for images of 32² pixels: a 3×3 stem and no pooling before the first stage.

Names are torchvision's (``conv1``, ``layer3.0.conv2``, ``layer2.0.downsample.0``, ``fc``).
"""

from torch import Tensor, nn
from torch.nn import functional as F

from bayes_dc.models._parts import check_image, dropout_layers, image_shape, init_he


class Shortcut(nn.Module):
    """Every second pixel, with zeros for the channels that are not there: no weights.

    Args:
        missing: Channels to add.
    """

    def __init__(self, missing: int) -> None:
        super().__init__()
        self.missing = missing

    def forward(self, x: Tensor) -> Tensor:
        """Subsample.

        Args:
            x: ``[B, C, H, W]``.

        Returns:
            ``[B, C + missing, ⌈H/2⌉, ⌈W/2⌉]``; half of the zero channels on either side.
        """
        before = self.missing // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.missing - before))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and what goes past them.

    Args:
        channels: Channels of the input.
        out: Channels of the output.
        stride: Of the first convolution.
        project: Whether a shortcut that changes shape is a 1×1 convolution with batch
            normalisation; if not, it has no weights.
        dropout: Probability of an ``nn.Dropout`` in front of the second convolution.
    """

    def __init__(
        self, channels: int, out: int, stride: int, *, project: bool, dropout: float
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module = nn.Identity()
        if (channels, 1) != (out, stride):
            self.downsample = (
                nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
                if project
                else Shortcut(out - channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block.

        Args:
            x: ``[B, channels, H, W]``.

        Returns:
            ``[B, out, ⌈H/stride⌉, ⌈W/stride⌉]``.
        """
        y = self.dropout(self.relu(self.bn1(self.conv1(x))))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """Stem, stages of basic blocks, mean over the positions, linear layer.

    Args:
        channels: Channels of the images.
        classes: Number of classes.
        widths: Channels of every stage; each but the first halves height and width.
        blocks: Blocks of a stage.
        project: See ``BasicBlock``.
        dropout: Probability of an ``nn.Dropout`` inside every block and in front of ``fc``.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        widths: tuple[int, ...],
        blocks: int,
        project: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.stages: list[str] = []
        wide = widths[0]
        for number, out in enumerate(widths, 1):
            stage = [
                BasicBlock(
                    out if place else wide,
                    out,
                    2 if number > 1 and place == 0 else 1,
                    project=project,
                    dropout=dropout,
                )
                for place in range(blocks)
            ]
            self.stages.append(f"layer{number}")
            self.add_module(self.stages[-1], nn.Sequential(*stage))
            wide = out
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Sequential(*dropout_layers(dropout))
        self.fc = nn.Linear(wide, classes)
        init_he(self)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: ``[B, C, H, W]``.

        Returns:
            Logits ``[B, classes]``.
        """
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.fc(self.dropout(self.avgpool(x).flatten(1)))


def resnet18(input_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0) -> ResNet:
    """ResNet-18 (He et al. 2016) with a 3×3 stem: four stages of two blocks, 64 … 512 channels.

    Args:
        input_shape: ``(C, H, W)`` with at least 8 pixels a side.
        classes: Number of classes, the width of the output (logits).
        dropout: Probability of an ``nn.Dropout`` between the two convolutions of every block and in
            front of ``fc``, in [0, 1). 0 adds none.

    Returns:
        ``[B, C, H, W]`` → ``[B, classes]``; 11 173 962 parameters for CIFAR-10.

    Raises:
        ValueError: If the images are smaller, or ``dropout`` is out of range.
    """
    channels = _channels("resnet18", input_shape, classes)
    widths = (64, 128, 256, 512)
    return ResNet(channels, classes, widths=widths, blocks=2, project=True, dropout=dropout)


def resnet20(input_shape: tuple[int, int, int], classes: int, *, dropout: float = 0.0) -> ResNet:
    """ResNet-20 for CIFAR (He et al. 2016): three stages of three blocks, weightless shortcuts.

    Args:
        input_shape: ``(C, H, W)`` with at least 8 pixels a side.
        classes: Number of classes, the width of the output (logits).
        dropout: Probability of an ``nn.Dropout`` between the two convolutions of every block and in
            front of ``fc``, in [0, 1). 0 adds none.

    Returns:
        ``[B, C, H, W]`` → ``[B, classes]``; 269 722 parameters for CIFAR-10.

    Raises:
        ValueError: If the images are smaller, or ``dropout`` is out of range.
    """
    channels = _channels("resnet20", input_shape, classes)
    widths = (16, 32, 64)
    return ResNet(channels, classes, widths=widths, blocks=3, project=False, dropout=dropout)


def _channels(model: str, input_shape: tuple[int, int, int], classes: int) -> int:
    """Check the sizes and return the channels of the images."""
    channels, height, width = image_shape(input_shape, classes)
    fits = min(height, width) >= 8
    check_image(input_shape, fits, model=model, takes="at least 8 × 8", other="mlp")
    return channels
