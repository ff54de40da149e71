"""Folders of images, ``<root>/{train,test}/<class>/<file>``, decoded by a pool of threads."""

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from bayes_dc.datasets.split import DatasetError, Normalisation, check_labels, to_float

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Files of a class folder that count as images."""

STANDARD = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""ImageNet's constants: a folder is not read twice only to learn its own."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, whatever the suffix says. Pillow knows others, and runs Ghostscript for EPS."""

MAX_PIXELS = 2**26
"""Largest picture, 8192² pixels; decoding takes up to 12 bytes for each."""

CACHE_BYTES = 2**30
"""A split that is smaller than this once decoded is kept decoded, so every file is read once."""


def read_image(path: str | Path, channels: int, height: int, width: int) -> np.ndarray:
    """Decode one image to a fixed shape.

    The picture is turned upright (EXIF), converted to grey (1 channel) or RGB (3; transparency is
    dropped), and resized to ``height × width`` with antialiased bilinear interpolation, without
    keeping the aspect ratio. Of an animation the first picture is taken.

    Args:
        path: File in one of ``FORMATS``, with any suffix.
        channels: 1 or 3.
        height: Rows of the result.
        width: Columns of the result.

    Returns:
        uint8 ``[height, width, channels]``.

    Raises:
        DatasetError: If the file is not a whole, readable 8-bit image of at most ``MAX_PIXELS``.
    """
    try:
        _check_file(Path(path))
        with Image.open(path, formats=FORMATS) as image:
            _check_size(image)
            _check_depth(image)
            upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
            if upright.size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(upright).reshape(height, width, channels)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise DatasetError(
            f"cannot read image {path}: {error.strerror}. Name a readable image file."
        ) from error
    except Exception as error:  # Pillow's decoders raise whatever their format meets
        why: object = error
        if isinstance(error, UnidentifiedImageError):
            why = f"its content is none of {', '.join(FORMATS)}"
        raise DatasetError(
            f"cannot read image {path}: {why}. "
            "Replace it by a whole 8-bit image (PNG, JPEG, …) or remove it."
        ) from error


def _check_file(path: Path) -> None:
    """Refuse what may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError("it is a device, a pipe or a socket")


def _check_size(image: Image.Image) -> None:
    """Refuse a picture that takes more memory than any photograph; nothing is decoded yet."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} × {height} pixels are more than {MAX_PIXELS}")


def _check_depth(image: Image.Image) -> None:
    """Refuse pixels that a conversion to 8 bit would clip."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"mode {image.mode} has more than 8 bits per channel")


class FolderSplit:
    """A split whose images stay on disk until a batch needs them.

    Attributes:
        files: Path of every image.
        size: Side of the square to which images are resized.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        class_names: tuple[str, ...],
        normalisation: Normalisation,
        size: int,
        where: str,
    ) -> None:
        check_labels(labels, class_names, where)
        self.files = tuple(files)
        self.size = size
        self._labels = labels
        self._class_names = class_names
        self._normalisation = normalisation
        self._where = where
        self._pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
        small = len(self.files) * size * size * 3 <= CACHE_BYTES
        self._decoded: dict[int, np.ndarray] | None = {} if small else None

    @property
    def labels(self) -> Tensor:
        """Class of every sample, int64 ``[n]``."""
        return self._labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the class folders, sorted."""
        return self._class_names

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, device: torch.device) -> Tensor:
        """Decode samples and return them as normalised floats.

        Args:
            indices: int64 ``[b]``; on the CPU, or the call waits for the device.
            device: Where the batch is wanted.

        Returns:
            float32 ``[b, 3, size, size]`` on ``device``.
        """
        pixels = torch.from_numpy(np.stack(list(self._pool.map(self.image, indices.tolist()))))
        return to_float(pixels.to(device).permute(0, 3, 1, 2).contiguous(), self._normalisation)

    def image(self, index: int) -> np.ndarray:
        """Return the picture of one sample.

        Args:
            index: Position in the split.

        Returns:
            uint8 ``[size, size, 3]``.
        """
        if self._decoded is None:
            return read_image(self.files[index], 3, self.size, self.size)
        if index not in self._decoded:
            self._decoded[index] = read_image(self.files[index], 3, self.size, self.size)
        return self._decoded[index]

    def subset(self, indices: Tensor) -> "FolderSplit":
        """Return a split of its own with the samples ``indices``.

        Args:
            indices: int64 ``[m]``.

        Returns:
            The samples in the order of ``indices``.
        """
        files = [self.files[i] for i in indices.tolist()]
        return FolderSplit(
            files,
            self._labels[indices],
            self._class_names,
            self._normalisation,
            self.size,
            self._where,
        )


def load(root: str, size: int, normalisation: Normalisation) -> tuple[FolderSplit, FolderSplit]:
    """Find the images of ``<root>/train`` and ``<root>/test``.

    Args:
        root: Folder with one folder per split, and in it one folder per class.
        size: Side of the square to which images are resized.
        normalisation: Constants of the float batches.

    Returns:
        The training and the test split; classes are the folder names in sorted order.

    Raises:
        DatasetError: If a folder is missing or empty, or the two splits name different classes.
    """
    base = Path(os.path.expanduser(root))  # an unknown ~name stays as it is
    names = {part: _class_folders(base / part) for part in ("train", "test")}
    if names["train"] != names["test"]:
        only = {
            part: sorted(set(names[part]) - set(names[other]))
            for part, other in (("train", "test"), ("test", "train"))
        }
        raise DatasetError(
            f"imagefolder: {base}/train and {base}/test must hold the same class folders; only in "
            f"train: {only['train']}, only in test: {only['test']}."
        )
    make = partial(_split, base, names["train"], normalisation, size)
    return make("train"), make("test")


def _class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    if not folder.is_dir():
        raise DatasetError(
            f"imagefolder: missing folder {folder}. Images must lie at "
            "<data.root>/train/<class>/<file> and <data.root>/test/<class>/<file>; set data.root."
        )
    names = tuple(
        sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    )
    for name in names:
        if any("\ud800" <= c <= "\udfff" for c in name):  # how Python shows other bytes
            raise DatasetError(
                f"imagefolder: {folder}: the name of class folder {name!r} is not UTF-8. Rename it."
            )
    if not names:
        raise DatasetError(
            f"imagefolder: {folder} holds no class folders: put images at {folder}/<class>/<file>."
        )
    return names


def _split(
    base: Path, class_names: tuple[str, ...], normalisation: Normalisation, size: int, part: str
) -> FolderSplit:
    """List the images of one split, class by class, sorted by name."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        folder = base / part / name
        found = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file())
        if not found:
            raise DatasetError(
                f"imagefolder: {folder} holds no images ({', '.join(SUFFIXES)}): add some or "
                "remove the folder."
            )
        files += found
        labels += [label] * len(found)
    where = f"imagefolder ({part}) in {base / part}"
    return FolderSplit(files, torch.tensor(labels), class_names, normalisation, size, where)
