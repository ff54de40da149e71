"""What a saved network is to predict: a split of a data set, or image files, on its own scale."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bayes_dc.datasets import (
    DataConfig,
    DatasetError,
    DatasetName,
    Settings,
    Split,
    load_dataset,
    load_test_split,
)
from bayes_dc.datasets.split import to_float
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.meta import CheckpointMeta

S = TypeVar("S", bound=Settings)

_SECTION = (
    "section {section} of the configuration in the checkpoint cannot be read ({error}). "
    "Use bayes_dc {version}, which wrote it, or train again."
)
_NO_FILES = (
    "digits: the set is inside scikit-learn and has no files, so {root!r} would not be read. Leave "
    "the folder out, or name the data set that lies there."
)
_NO_VALIDATION = (
    "--split validation: {name} has no validation split (validation_fraction is 0 in the "
    "configuration of the checkpoint, or --data names another set). Use --split test."
)
_CLASSES = (
    "{name} has {got} classes; checkpoint {folder} was trained for {want}. Use the data set it was "
    "trained on ({trained_on}), or pass the files with --images."
)
_SHAPE = (
    "{name} has inputs of shape {got}; checkpoint {folder} was trained on {want}. Use the data set "
    "it was trained on ({trained_on}), or pass the files with --images."
)
_OTHER_CLASSES = (
    "The classes of {name} ({got}) are not those of the network ({want}): labels are not used."
)


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted, on the scale that the network was trained on.

    Attributes:
        ids: Name of every input.
        labels: Class of every input ``[N]``, or None.
        batch: Gives the inputs of int64 positions ``[b]`` as floats ``[b, C, H, W]``.
        image: Gives one picture as uint8 ``[H, W, C]``.
        describe: What a report says about the data.
        notes: What a reader must know about them.
        from_pixels: Turns uint8 ``[b, H, W, C]`` into floats ``[b, C, H, W]`` on a device.
    """

    ids: tuple[str, ...]
    labels: Tensor | None
    batch: Callable[[Tensor, torch.device], Tensor]
    image: Callable[[int], np.ndarray]
    describe: dict[str, object]
    from_pixels: Callable[[np.ndarray, torch.device], Tensor] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def with_pixels(self, pixels: np.ndarray) -> "Inputs":
        """Return the same inputs with other pictures.

        Args:
            pixels: uint8 ``[n, H, W, C]``, for the first n inputs.

        Returns:
            Inputs with the names and labels of the first n.
        """

        def batch(positions: Tensor, device: torch.device) -> Tensor:
            return self.from_pixels(pixels[positions.numpy()], device)

        count = len(pixels)
        labels = None if self.labels is None else self.labels[:count]
        ids, image = self.ids[:count], pixels.__getitem__
        return replace(self, ids=ids, labels=labels, batch=batch, image=image)


def settings_of(kind: type[S], section: str, meta: CheckpointMeta) -> S:
    """Read a section of the configuration that a checkpoint was made with.

    Args:
        kind: Class of the settings.
        section: Name of the section.
        meta: What the checkpoint says about itself.

    Returns:
        The settings.

    Raises:
        CheckpointError: If they cannot be read.
    """
    try:
        return kind.model_validate(meta.config.get(section, {}))
    except ValueError as error:
        text = _SECTION.format(section=section, error=error, version=meta.package_version)
        raise CheckpointError(text) from error


def load_inputs(
    folder: Path,
    meta: CheckpointMeta,
    *,
    split: str = "test",
    data: DatasetName | None = None,
    root: str | None = None,
    limit: int | None = None,
) -> Inputs:
    """Open a split of a data set for a saved network.

    Args:
        folder: Where the checkpoint is, for messages.
        meta: What the checkpoint says about itself.
        split: ``"test"``, ``"validation"`` or ``"train"``.
        data: Data set; None: the one it was trained on.
        root: Folder of the data files; None: that of training.
        limit: Only the first inputs of the split; None: all.

    Returns:
        The inputs. Labels are None where the set has other classes than the network.

    Raises:
        DatasetError: If the data cannot be used or do not fit the network.
    """
    trained_on = settings_of(DataConfig, "data", meta)
    name = data or trained_on.name
    found = open_split(trained_on, name, root, split, meta)
    if len(found.class_names) != len(meta.class_names):
        raise DatasetError(
            _CLASSES.format(
                name=name,
                got=len(found.class_names),
                folder=folder,
                want=len(meta.class_names),
                trained_on=trained_on.name,
            )
        )
    shape = tuple(found.batch(torch.arange(1), torch.device("cpu")).shape[1:])
    if shape != meta.input_shape:
        text = _SHAPE.format(
            name=name,
            got=list(shape),
            folder=folder,
            want=list(meta.input_shape),
            trained_on=trained_on.name,
        )
        raise DatasetError(text)
    count = min(len(found), limit or len(found))
    same = found.class_names == meta.class_names
    got, want = ", ".join(found.class_names), ", ".join(meta.class_names)
    return Inputs(
        ids=names_of(found, count),
        labels=found.labels[:count] if same else None,
        batch=found.batch,
        image=found.image,
        describe={
            "name": name,
            "split": split,
            "inputs in the split": len(found),
            "sha256": digest_of(found, count),
        },
        notes=() if same else (_OTHER_CLASSES.format(name=name, got=got, want=want),),
        from_pixels=scale_of(meta),
    )


def readable(file: Path) -> str:
    """Return a path as text.

    Args:
        file: Any path.

    Returns:
        The path; bytes that are not UTF-8 are shown with escapes.
    """
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def open_split(
    trained_on: DataConfig,
    name: DatasetName,
    root: str | None,
    split: str,
    meta: CheckpointMeta,
    *,
    scale: bool = True,
) -> Split:
    """Open a split of any data set.

    Args:
        trained_on: Settings of the data that the network was trained on.
        name: Data set.
        root: Folder of its files; None: that of training.
        split: ``"test"``, ``"validation"`` or ``"train"``.
        meta: What the checkpoint says about itself.
        scale: Whether batches have the constants of the network, or those of the set.

    Returns:
        The split.

    Raises:
        DatasetError: If there is no such split, or a folder is named for a set without files.
    """
    settings = trained_on
    if name != trained_on.name:
        size = meta.input_shape[1] if name == "imagefolder" else None
        settings = DataConfig(name=name, root=trained_on.root, image_size=size)
    if root is not None and name == "digits":
        raise DatasetError(_NO_FILES.format(root=root))
    if root is not None:
        settings = settings.model_copy(update={"root": root})
    normalisation = meta.normalisation if scale else None
    if split == "test":  # the files of the others need not be there
        return load_test_split(settings, normalisation)
    bundle = load_dataset(settings, normalisation)
    found = bundle.train if split == "train" else bundle.validation
    if found is None:
        raise DatasetError(_NO_VALIDATION.format(name=name))
    return found


def scale_of(meta: CheckpointMeta) -> Callable[[np.ndarray, torch.device], Tensor]:
    """Return what turns pixels into inputs, as in training.

    Args:
        meta: What the checkpoint says about itself.

    Returns:
        Takes uint8 ``[b, H, W, C]`` and a device, gives float32 ``[b, C, H, W]`` there.
    """

    def scale(pixels: np.ndarray, device: torch.device) -> Tensor:
        channels_first = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
        return to_float(channels_first.to(device), meta.normalisation)

    return scale


def names_of(split: Split, count: int) -> tuple[str, ...]:
    """Return positions in the split, or the paths of its files.

    Args:
        split: Split.
        count: Only the first.

    Returns:
        One name for each input.
    """
    files: Sequence[Path] | None = getattr(split, "files", None)  # a folder's split
    if files is not None:
        return tuple(readable(file) for file in files[:count])
    return tuple(map(str, range(count)))


def digest_of(split: Split, count: int) -> str:
    """Return the SHA-256 of the labels and pictures that are evaluated.

    Args:
        split: Split.
        count: Only the first.

    Returns:
        The checksum in hexadecimal.
    """
    digest = hashlib.sha256(split.labels[:count].numpy().astype("<i8").tobytes())
    for i in range(count):
        digest.update(np.ascontiguousarray(split.image(i)).tobytes())
    return digest.hexdigest()
