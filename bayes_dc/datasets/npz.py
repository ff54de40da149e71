"""One NumPy file with both splits, under Keras' names: x_train, y_train, x_test, y_test."""

import os
import zipfile
from pathlib import Path

import numpy as np
import torch

from bayes_dc.datasets.settings import Scaling
from bayes_dc.datasets.split import ArraySplit, DatasetError, Normalisation

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""What the file must hold; ``class_names``, an array of texts, may be there too."""

MAX_GROWTH = 200
"""Times its size on the disk that a file may hold unpacked: pictures stay below 20, bombs go on."""

SMALL_BYTES = 2**26
"""Files that hold less are read however well they are packed."""

MAX_CLASSES = 100_000
"""Labels must be below: a larger one is no number of a class, and memory would be taken for it."""


def load(
    root: str, scaling: Scaling, normalisation: Normalisation | None
) -> tuple[ArraySplit, ArraySplit, Normalisation]:
    """Read both splits of a file.

    Args:
        root: The ``.npz`` file.
        scaling: ``"standard"`` takes mean and deviation of ``x_train``, per channel.
        normalisation: Constants to use instead, or None.

    Returns:
        The training and the test split, and the constants of their float batches.

    Raises:
        DatasetError: If the file is missing, damaged, holds Python objects, lacks an array, or its
            arrays do not belong together.
    """
    path = Path(os.path.expanduser(root))
    arrays = _read(path)
    images = {part: _images(path, f"x_{part}", arrays[f"x_{part}"]) for part in ("train", "test")}
    labels = {
        part: _labels(path, f"y_{part}", arrays[f"y_{part}"], len(images[part]))
        for part in ("train", "test")
    }
    shapes = [part.shape[1:] for part in images.values()]
    if shapes[0] != shapes[1]:
        raise DatasetError(
            f"npz: {path}: images of x_train are {list(shapes[0])}, those of x_test "
            f"{list(shapes[1])} (height, width, channels): save both splits in one shape."
        )
    names = _class_names(path, arrays.get("class_names"), list(labels.values()))
    channels = images["train"].shape[3]
    used = normalisation or (
        _constants(path, images["train"])
        if scaling == "standard"
        else Normalisation((0.0,) * channels, (1.0,) * channels)
    )
    train, test = (
        ArraySplit(
            torch.from_numpy(np.ascontiguousarray(images[part].transpose(0, 3, 1, 2))),
            torch.from_numpy(labels[part].astype(np.int64)),
            names,
            used,
            f"npz ({part}) in {path}",
        )
        for part in ("train", "test")
    )
    return train, test, used


def _read(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays; nothing is unpickled."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is missing"
        raise DatasetError(
            f"npz: {path} {what}. Set data.root to the .npz file itself; how it looks is written "
            "in data/README.md."
        )
    try:
        if not zipfile.is_zipfile(path):
            raise DatasetError(
                f"npz: {path} is no .npz file, or was cut short: it is not a ZIP archive. Copy it "
                "again, or save it by numpy.savez."
            )
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            absent = [name for name in ARRAYS if name not in file.files]
            if absent:
                raise DatasetError(
                    f"npz: {path} lacks {', '.join(absent)}; it holds "
                    f"{', '.join(sorted(file.files)) or 'nothing'}. Save it by "
                    f"numpy.savez(path, {', '.join(f'{name}=…' for name in ARRAYS)})."
                )
            wanted = [*ARRAYS, *(["class_names"] if "class_names" in file.files else [])]
            _check_growth(path, file.zip.infolist(), wanted)
            arrays = {name: file[name] for name in wanted}
    except DatasetError:
        raise
    except MemoryError as error:
        raise DatasetError(
            f"npz: {path} does not fit in memory: {error}. Save fewer or smaller images; if they "
            "are not that many, the file is damaged: copy it again."
        ) from error
    except Exception as error:  # zipfile and its codecs raise whatever damaged bytes lead them to
        why = " ".join(str(error).split()) or type(error).__name__
        raise DatasetError(
            f"npz: {path} cannot be read: {why}. Copy it again, or save plain arrays by "
            "numpy.savez; Python objects are never read."
        ) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy.load gives the bytes of a foreign file
            raise DatasetError(
                f"npz: {path}: {name} is no NumPy array. Save arrays by numpy.savez; other files "
                "in the archive are not read."
            )
    return arrays


def _check_growth(path: Path, entries: list[zipfile.ZipInfo], wanted: list[str]) -> None:
    """Refuse a small file that fills the memory."""
    names = {f"{name}.npy" for name in wanted} | set(wanted)
    unpacked = sum(entry.file_size for entry in entries if entry.filename in names)
    if unpacked > max(MAX_GROWTH * path.stat().st_size, SMALL_BYTES):
        raise DatasetError(
            f"npz: {path} has {path.stat().st_size} bytes and would take {unpacked} unpacked, more "
            f"than {MAX_GROWTH} times as many: it is no set of pictures. If it is, save it by "
            "numpy.savez instead of savez_compressed."
        )


def _images(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Check images and return them as ``[n, H, W, C]``."""
    if array.dtype != np.uint8:
        raise DatasetError(
            f"npz: {path}: {name} must be uint8, 0 … 255; got {array.dtype}. Save the pixels, not "
            "scaled values."
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape[1:]:
        raise DatasetError(
            f"npz: {path}: {name} must be [n, height, width] or [n, height, width, channels] with "
            f"1 or 3 channels; got {list(array.shape)}."
        )
    if len(array) == 0:
        raise DatasetError(f"npz: {path}: {name} holds no images: both splits are needed.")
    return array


def _labels(path: Path, name: str, array: np.ndarray, images: int) -> np.ndarray:
    """Check labels and return them as ``[n]``."""
    if array.ndim == 2 and array.shape[1] == 1:  # Keras gives CIFAR's so
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DatasetError(
            f"npz: {path}: {name} must be whole numbers [n], 0 … classes − 1; got {array.dtype} "
            f"{list(array.shape)}."
        )
    if len(array) != images:
        raise DatasetError(
            f"npz: {path}: {name} holds {len(array)} labels for {images} images: save one for each."
        )
    if array.min() < 0:
        raise DatasetError(f"npz: {path}: {name} holds the label {array.min()}: count from 0.")
    if array.max() >= MAX_CLASSES:
        raise DatasetError(
            f"npz: {path}: {name} holds the label {array.max()}; the largest that is read is "
            f"{MAX_CLASSES - 1}. Number the classes 0, 1, 2, …."
        )
    return array


def _class_names(path: Path, array: np.ndarray | None, labels: list[np.ndarray]) -> tuple[str, ...]:
    """Return the names in the file, or 0, 1, 2, …."""
    classes = 1 + max(int(part.max()) for part in labels)
    if array is None:
        return tuple(map(str, range(classes)))
    if array.ndim != 1 or array.dtype.kind != "U" or len(array) < classes:
        raise DatasetError(
            f"npz: {path}: class_names must be texts, one for each of {classes} classes; got "
            f"{array.dtype} {list(array.shape)}. Leave them out, or give all."
        )
    try:
        names = tuple(map(str, array))
        "".join(names).encode()
    except ValueError as error:
        raise DatasetError(
            f"npz: {path}: class_names cannot be written as UTF-8: {error}. Rename the class."
        ) from error
    return names


def _constants(path: Path, images: np.ndarray) -> Normalisation:
    """Return mean and deviation per channel, from exact counts of the 256 levels."""
    means, deviations = [], []
    levels = np.arange(256) / 255
    for channel in range(images.shape[3]):
        counts = np.bincount(images[..., channel].ravel(), minlength=256)
        mean = float(counts @ levels / counts.sum())
        means.append(mean)
        deviations.append(float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum())))
        if np.count_nonzero(counts) == 1:
            raise DatasetError(
                f"npz: {path}: channel {channel} of x_train has one value everywhere, so there is "
                "no deviation to divide by: set data.scaling to unit."
            )
    return Normalisation(tuple(means), tuple(deviations))
