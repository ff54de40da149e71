"""Test images as another camera, hand or network would deliver them: eleven shifts, six severities.

Everything is computed here from the clean images: nothing is downloaded. Severity 0 is the image
itself, 1 … 5 are the constants of ``SHIFTS``. What an image becomes is a function of its pixels and
(seed, name, severity, id) only, whatever the batch it comes in: every image draws from Philox with
key (seed, name and severity) and counter id. Equal versions of NumPy (and, for ``jpeg`` and
``pixelate``, of Pillow) give equal bits.

Results are rounded to the nearest of 0 … 255; the published code cuts the fraction off, so that
its images may be darker by one level.

Source: Hendrycks & Dietterich 2019, ICLR, arXiv 1903.12261, constants of CIFAR-10-C
(make_cifar_c.py of hendrycks/robustness, at commit ca360085) for noise, blur, contrast, brightness,
pixelate and jpeg; Ovadia et al. 2019, NeurIPS, arXiv 1906.02530, for rotation (the first five of
its steps of 15°) and cyclic translation (of its steps of 2 pixels).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from bayes_dc.datasets import _shift_detail as detail
from bayes_dc.datasets import _shift_light as light
from bayes_dc.datasets import _shift_noise as noise
from bayes_dc.datasets._shift_geometry import translation, turn

ANGLES = tuple(range(15, 181, 15))
"""Twelve steps of a half turn, degrees, as Ovadia et al. 2019 take them."""

SEVERITIES = (0, 1, 2, 3, 4, 5)
"""0 is the clean image."""

CHUNK_ELEMENTS = 1 << 22
"""Pixels times channels of the images that are computed at once; 32 MiB of float64."""

_IMAGES = (
    "images must be uint8 [N, H, W, C] with C = 1 or 3, pixels 0 … 255; got {got}. For one image "
    "pass image[None], for a tensor [N, C, H, W] x.permute(0, 2, 3, 1).numpy()."
)
_NAME = "name must be one of {known}; got {got!r}."
_SEVERITY = "severity must be an integer in 0 … 5, 0 for the clean image; got {got!r}."
_SEED = "seed must be an integer in 0 … 2**64 − 1; got {got!r}."
_IDS = (
    "ids must hold {n} integers in 0 … 2**63 − 1, one for each image; got {got}. For rows "
    "0 … {last} of a data set leave it out."
)
_DEGREES = "degrees must be a finite number, counter-clockwise; got {got!r}."


@dataclass(frozen=True)
class Shift:
    """One kind of shift.

    Attributes:
        label: Name in tables and plots.
        quantity: What the constants say, with their unit.
        constants: Of severities 1 … 5.
        change: ``(images, constant) -> images``; where ``draws``, ``(image, constant, generator)``
            for one image at a time.
        draws: Whether it is random.
    """

    label: str
    quantity: str
    constants: tuple[Any, Any, Any, Any, Any]
    change: Callable[..., np.ndarray]
    draws: bool = False


SHIFTS: dict[str, Shift] = {
    "rotation": Shift("rotation", "degrees, counter-clockwise", (15, 30, 45, 60, 75), turn),
    "translation": Shift(
        "cyclic translation", "pixels to the right", (2, 4, 6, 8, 10), translation
    ),
    "gaussian_noise": Shift(
        "Gaussian noise",
        "deviation, share of full brightness",
        (0.04, 0.06, 0.08, 0.09, 0.10),
        noise.gaussian_noise,
        draws=True,
    ),
    "shot_noise": Shift(
        "shot noise",
        "photons at full brightness",
        (500, 250, 100, 75, 50),
        noise.shot_noise,
        draws=True,
    ),
    "impulse_noise": Shift(
        "impulse noise",
        "share of elements hit",
        (0.01, 0.02, 0.03, 0.05, 0.07),
        noise.impulse_noise,
        draws=True,
    ),
    "gaussian_blur": Shift(
        "Gaussian blur", "deviation in pixels", (0.4, 0.6, 0.7, 0.8, 1.0), detail.gaussian_blur
    ),
    "defocus_blur": Shift(
        "defocus blur",
        "radius and deviation of the edge in pixels",
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
        detail.defocus_blur,
    ),
    "contrast": Shift("contrast", "contrast left", (0.75, 0.5, 0.4, 0.3, 0.15), light.contrast),
    "brightness": Shift(
        "brightness",
        "added to the value, share of full brightness",
        (0.05, 0.10, 0.15, 0.20, 0.30),
        light.brightness,
    ),
    "pixelate": Shift(
        "pixelate", "share of the side left", (0.95, 0.90, 0.85, 0.75, 0.65), detail.pixelate
    ),
    "jpeg": Shift("JPEG", "quality", (80, 65, 58, 50, 40), detail.jpeg),
}
"""Every shift by name."""


def apply_shift(
    images: np.ndarray,
    name: str,
    severity: int,
    seed: int = 0,
    ids: np.ndarray | Sequence[int] | None = None,
) -> np.ndarray:
    """Shift images.

    Args:
        images: uint8 ``[N, H, W, C]``, C = 1 or 3; not changed.
        name: Key of ``SHIFTS``.
        severity: 0 … 5; 0 gives the images themselves.
        seed: Unsigned 64-bit seed of what is drawn.
        ids: Integers ``[N]``, identity of every image, e.g. its index in a data set; default
            0 … N − 1. What is drawn for an image is keyed by it.

    Returns:
        uint8 ``[N, H, W, C]``, a new array.

    Raises:
        ValueError: If an argument is out of range.

    Determinism:
        A function of pixels, name, severity, seed and id: batches change nothing.

    Example:
        >>> grey = np.full((2, 28, 28, 1), 128, np.uint8)
        >>> apply_shift(grey, "brightness", 5)[0, 0, 0]
        array([204], dtype=uint8)
    """
    images = _check_images(images)
    if name not in SHIFTS:
        raise ValueError(_NAME.format(known=", ".join(SHIFTS), got=name))
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise ValueError(_SEVERITY.format(got=severity))
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**64:
        raise ValueError(_SEED.format(got=seed))
    numbers = _check_ids(ids, len(images))
    if severity == 0 or len(images) == 0:
        return images.copy()
    shift = SHIFTS[name]
    constant = shift.constants[severity - 1]
    if not shift.draws:
        return _in_chunks(lambda part: shift.change(part, constant), images)
    changed = np.empty_like(images)
    for row, (image, number) in enumerate(zip(images, numbers, strict=True)):
        changed[row] = _to_pixels(
            shift.change(image, constant, _rng(int(seed), name, severity, number))
        )
    return changed


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Turn images counter-clockwise about their centre.

    Bilinear, at the same size, black where no pixel lands. Half turns, and quarter turns of square
    images, move pixels exactly.

    Args:
        images: uint8 ``[N, H, W, C]``, C = 1 or 3; not changed.
        degrees: Any finite number; ``ANGLES`` holds twelve steps of a half turn.

    Returns:
        uint8 ``[N, H, W, C]``, a new array.

    Raises:
        ValueError: If an argument is out of range.
    """
    images = _check_images(images)
    number = isinstance(degrees, int | float | np.number) and not isinstance(degrees, bool)
    if not number or not np.isfinite(degrees):
        raise ValueError(_DEGREES.format(got=degrees))
    return _in_chunks(lambda part: turn(part, float(degrees)), images)


def _rng(seed: int, name: str, severity: int, number: int) -> np.random.Generator:
    """The generator of one image."""
    key = np.array([seed, crc32(name.encode()) << 8 | severity], dtype=np.uint64)
    # A counter of 2**192 blocks apart for every id: no two images share a number.
    counter = np.array([0, 0, 0, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _in_chunks(change: Callable[[np.ndarray], np.ndarray], images: np.ndarray) -> np.ndarray:
    """Change a few images at a time: their floats take eight times the memory."""
    changed = np.empty_like(images)
    step = max(1, CHUNK_ELEMENTS // max(1, images[:1].size))
    for start in range(0, len(images), step):
        changed[start : start + step] = _to_pixels(change(images[start : start + step]))
    return changed


def _to_pixels(values: np.ndarray) -> np.ndarray:
    """Nearest of 0 … 255, halves to even."""
    if values.dtype == np.uint8:
        return values
    return np.rint(values.clip(0, 255)).astype(np.uint8)


def _check_images(images: object) -> np.ndarray:
    """Return ``images`` if they are pictures, or raise."""
    if not isinstance(images, np.ndarray):
        raise ValueError(_IMAGES.format(got=type(images).__name__))
    fits = images.ndim == 4 and images.shape[3] in (1, 3) and 0 not in images.shape[1:3]
    if images.dtype != np.uint8 or not fits:
        raise ValueError(_IMAGES.format(got=f"{images.dtype} {list(images.shape)}"))
    return images


def _check_ids(ids: object, n: int) -> list[int]:
    """Return one id for each image, or raise."""
    if ids is None:
        return list(range(n))
    array = np.asarray(ids)
    whole = array.dtype.kind in "iu" or array.size == 0
    if array.shape != (n,) or not whole or (n and int(array.min()) < 0):
        got = f"{array.dtype} {list(array.shape)}"
        got += f" with minimum {array.min()}" if array.shape == (n,) and whole else ""
        raise ValueError(_IDS.format(n=n, last=n - 1, got=got))
    if n and int(array.max()) >= 2**63:
        raise ValueError(_IDS.format(n=n, last=n - 1, got=f"maximum {array.max()}"))
    return [int(number) for number in array]
