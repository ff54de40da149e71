"""Pictures that the network was not trained on, in its shape: other data sets, files, changes."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from bayes_dc.datasets import (
    ANGLES,
    DataConfig,
    DatasetError,
    DatasetName,
    apply_shift,
    read_image,
    rotate,
)
from bayes_dc.train.inputs import (
    Inputs,
    digest_of,
    names_of,
    open_split,
    readable,
    scale_of,
    settings_of,
)
from bayes_dc.train.meta import CheckpointMeta

SEVERITIES = (1, 2, 3, 4, 5)
"""Severities of a change, without 0, which is none."""

_CHANNELS = "--images: the network takes {channels} channels; images have 1 (grey) or 3 (RGB)."


def load_other(
    meta: CheckpointMeta, data: DatasetName, *, root: str | None = None, limit: int | None = None
) -> Inputs:
    """Open the test split of a set that the network was not trained for, in the network's shape.

    Pictures of another size or number of channels are resized (antialiased bilinear, without
    keeping the aspect ratio) and turned into grey or RGB, which ``describe`` says.

    Args:
        meta: What the checkpoint says about itself.
        data: Data set.
        root: Folder of its files; None: that of training.
        limit: Only the first inputs; None: all.

    Returns:
        The inputs, without labels.
    """
    trained_on = settings_of(DataConfig, "data", meta)
    found = open_split(trained_on, data, root, "test", meta, scale=False)
    channels, height, width = meta.input_shape
    count = min(len(found), limit or len(found))
    first = found.image(0).shape
    kind = "grey" if channels == 1 else "RGB"
    pixels = np.stack([_fitted(found.image(i), channels, height, width) for i in range(count)])
    conversion: dict[str, object] = {}
    if first != pixels.shape[1:]:
        conversion["conversion"] = f"{kind}, resized to {width} × {height} pixels"
    scale = scale_of(meta)
    return Inputs(
        ids=names_of(found, count),
        labels=None,
        batch=lambda positions, device: scale(pixels[positions.numpy()], device),
        image=pixels.__getitem__,
        describe={
            "name": data,
            "split": "test",
            "inputs in the split": len(found),
            **conversion,
            "sha256": digest_of(found, count),
        },
        from_pixels=scale,
    )


def load_images(meta: CheckpointMeta, files: Sequence[Path]) -> Inputs:
    """Read image files in the shape that the network was trained on.

    Args:
        meta: What the checkpoint says about itself.
        files: Image files.

    Returns:
        The inputs, without labels, named by their files.

    Raises:
        DatasetError: If a file cannot be read or the network takes no images.
    """
    channels, height, width = meta.input_shape
    if channels not in (1, 3):
        raise DatasetError(_CHANNELS.format(channels=channels))
    digest = hashlib.sha256()
    pictures = []
    for file in files:
        pictures.append(read_image(file, channels, height, width))
        digest.update(file.read_bytes())
    pixels = np.stack(pictures)
    kind, scale = "grey" if channels == 1 else "RGB", scale_of(meta)
    return Inputs(
        ids=tuple(map(readable, files)),
        labels=None,
        batch=lambda positions, device: scale(pixels[positions.numpy()], device),
        image=pixels.__getitem__,
        describe={
            "name": f"{len(files)} image files",
            "conversion": f"turned upright, {kind}, resized to {width} × {height} pixels",
            "sha256": digest.hexdigest(),
        },
        from_pixels=scale,
    )


def changed_inputs(
    inputs: Inputs, names: Sequence[str], *, count: int, seed: int
) -> Iterator[tuple[str, int, Inputs]]:
    """Change pictures, one change and severity after the other.

    Args:
        inputs: Unchanged inputs.
        names: Keys of ``SHIFTS``.
        count: Only the first inputs.
        seed: Seed of what is drawn; an input's draws are keyed by its position.

    Yields:
        Name, severity and the changed inputs.
    """
    pixels = np.stack([inputs.image(i) for i in range(count)])
    for name in names:
        for severity in SEVERITIES:
            changed = apply_shift(pixels, name, severity, seed, range(count))
            yield name, severity, inputs.with_pixels(changed)


def turned_inputs(inputs: Inputs, *, count: int) -> Iterator[tuple[int, Inputs]]:
    """Turn pictures by half a turn, in steps.

    Args:
        inputs: Unchanged inputs.
        count: Only the first inputs.

    Yields:
        Every angle of ``ANGLES``, degrees counter-clockwise, and the turned inputs.
    """
    pixels = np.stack([inputs.image(i) for i in range(count)])
    for angle in ANGLES:
        yield angle, inputs.with_pixels(rotate(pixels, angle))


def turned_input(inputs: Inputs, index: int) -> tuple[tuple[int, ...], Inputs]:
    """Turn one picture by half a turn, in steps.

    Args:
        inputs: Unchanged inputs.
        index: Position of the picture.

    Returns:
        Angles, 0 first, and inputs that hold the picture at each.
    """
    degrees = (0, *ANGLES)
    picture = inputs.image(index)[None]
    pixels = np.concatenate([rotate(picture, angle) for angle in degrees])
    names = tuple(f"{inputs.ids[index]} at {angle}°" for angle in degrees)
    return degrees, replace(inputs, ids=names, labels=None).with_pixels(pixels)


def _fitted(pixels: np.ndarray, channels: int, height: int, width: int) -> np.ndarray:
    """A picture in another shape."""
    if pixels.shape == (height, width, channels):
        return pixels
    picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(height, width, channels)
