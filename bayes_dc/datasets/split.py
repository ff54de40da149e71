"""What a data set is to the rest of the package: splits of images that hand out float batches.

x = (pixel / 255 − mean) / std        float32 [b, C, H, W], per channel
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class DatasetError(ValueError):
    """The data cannot be used; the message names the file and says what to do."""


@dataclass(frozen=True)
class Normalisation:
    """Constants of ``x = (pixel / 255 − mean) / std``, one per channel.

    Attributes:
        mean: Subtracted, on the scale 0 … 1.
        std: Divided by, on the scale 0 … 1, positive.

    Raises:
        ValueError: If the numbers of constants differ, or one cannot be used.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        usable = all(isfinite(m) for m in self.mean) and all(0 < s < inf for s in self.std)
        if not usable or len(self.mean) != len(self.std):
            raise ValueError(
                "mean and std must be one finite number per channel each, std above 0; got "
                f"{list(self.mean)} and {list(self.std)}"
            )


class Split(Protocol):
    """One split of a data set: training, validation or test."""

    @property
    def labels(self) -> Tensor:
        """Class of every sample, int64 ``[n]`` on the CPU."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of every class; label i is ``class_names[i]``."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batch(self, indices: Tensor, device: torch.device) -> Tensor:
        """Return the samples ``indices`` (int64 ``[b]``) as normalised float32 ``[b, C, H, W]``."""

    def image(self, index: int) -> np.ndarray:
        """Return the picture of one sample as uint8 ``[H, W, C]``, C = 1 or 3."""

    def subset(self, indices: Tensor) -> "Split":
        """Return the split that holds the samples ``indices``, in that order."""


@dataclass(frozen=True)
class DatasetBundle:
    """A data set ready for training and evaluation.

    Attributes:
        name: Name in the configuration.
        train: Training split, without the validation samples.
        validation: Samples set aside from the training set, or None.
        test: Test split.
        class_names: Name of every class.
        input_shape: ``(C, H, W)`` of one input.
        normalisation: Constants used by every split.
    """

    name: str
    train: Split
    validation: Split | None
    test: Split
    class_names: tuple[str, ...]
    input_shape: tuple[int, int, int]
    normalisation: Normalisation


def check_labels(labels: Tensor, class_names: tuple[str, ...], where: str) -> None:
    """Refuse an empty split, labels without a class name, and names that repeat.

    Args:
        labels: int64 ``[n]``.
        class_names: Names of the classes.
        where: Data set and split, for the message.

    Raises:
        DatasetError: If there is no sample, a label is outside 0 … C − 1, or two classes have one
            name.
    """
    if labels.numel() == 0:
        raise DatasetError(f"{where} holds no samples: nothing to train on or to evaluate.")
    if len(set(class_names)) < len(class_names):  # reports and init_from know classes by name
        twice = next(name for i, name in enumerate(class_names) if name in class_names[:i])
        raise DatasetError(
            f"{where}: class names must differ from each other; got {twice!r} twice. Rename one of "
            "the classes."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        raise DatasetError(
            f"{where}: labels must be 0 … {len(class_names) - 1} for {len(class_names)} classes; "
            f"got {low} … {high}. The files belong to another data set or are damaged."
        )


def to_float(pixels: Tensor, normalisation: Normalisation) -> Tensor:
    """Return ``(pixels / 255 − mean) / std``.

    Args:
        pixels: uint8 ``[b, C, H, W]`` on any device.
        normalisation: Constants per channel.

    Returns:
        float32 ``[b, C, H, W]`` on the same device.
    """
    scale, shift = _channel_constants(normalisation, pixels.device)
    return pixels.to(torch.float32).mul_(scale).sub_(shift)


@lru_cache(maxsize=32)
def _channel_constants(normalisation: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift, float32 ``[C, 1, 1]``; cached: a batch copies nothing."""
    pair = (normalisation.mean, normalisation.std)
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(-1, 1, 1) for v in pair)
    return (1 / (255 * std)).to(device, torch.float32), (mean / std).to(device, torch.float32)


def room_bytes(device: torch.device) -> float:
    """Memory that a split may take on a device: half of what is free there.

    Args:
        device: Where the split is wanted.

    Returns:
        Bytes; infinite where the split is already.
    """
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else inf


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """A split held in memory as uint8; the first batch for a device copies all of it there once.

    Where it takes more than half of the device's free memory, every batch is copied instead.

    Attributes:
        images: uint8 ``[n, C, H, W]`` on the CPU.
        labels: int64 ``[n]`` on the CPU.
        class_names: Name of every class.
        normalisation: Constants of the float batches.
        where: Data set and split, for messages.

    Raises:
        DatasetError: If the split is empty, a label is outside 0 … C − 1, or a class name repeats.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    normalisation: Normalisation
    where: str
    _resident: dict[torch.device, Tensor | None] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        check_labels(self.labels, self.class_names, self.where)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, device: torch.device) -> Tensor:
        """Return samples as normalised floats; indexing happens where the images are.

        Args:
            indices: int64 ``[b]`` on any device.
            device: Where the batch is wanted.

        Returns:
            float32 ``[b, C, H, W]`` on ``device``.
        """
        if device not in self._resident:
            fits = self.images.nbytes <= room_bytes(device)
            self._resident[device] = self.images.to(device) if fits else None
        images = self._resident[device]
        if images is None:
            pixels = self.images.index_select(0, indices.cpu()).to(device)
        else:
            pixels = images.index_select(0, indices.to(device, non_blocking=True))
        return to_float(pixels, self.normalisation)

    def image(self, index: int) -> np.ndarray:
        """Return the picture of one sample.

        Args:
            index: Position in the split.

        Returns:
            uint8 ``[H, W, C]``.
        """
        return self.images[index].permute(1, 2, 0).numpy()

    def subset(self, indices: Tensor) -> "ArraySplit":
        """Return a split of its own with the samples ``indices``.

        Args:
            indices: int64 ``[m]``.

        Returns:
            The samples in the order of ``indices``.
        """
        return ArraySplit(
            self.images[indices],
            self.labels[indices],
            self.class_names,
            self.normalisation,
            self.where,
        )
