"""Shifts that lose detail: blur, pixelation, compression."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image


def gaussian_blur(images: np.ndarray, sigma: float) -> np.ndarray:
    """Convolve with a normal density of this deviation in pixels; borders are repeated."""
    from scipy import ndimage  # 0.2 s that the import of the package need not take

    deviations = (0, sigma, sigma, 0)
    return ndimage.gaussian_filter(images.astype(np.float64), deviations, mode="nearest")


def defocus_blur(images: np.ndarray, disk: tuple[float, float]) -> np.ndarray:
    """Convolve with a disk (radius, deviation of its soft edge, in pixels); borders mirror."""
    from scipy import ndimage

    kernel = disk_kernel(*disk)
    return ndimage.convolve(images.astype(np.float64), kernel[None, :, :, None], mode="mirror")


def disk_kernel(radius: float, edge: float) -> np.ndarray:
    """A disk on the pixel grid, softened by a 3 × 3 normal density; float64, sum 1."""
    from scipy import ndimage

    reach = int(np.ceil(radius)) + 1
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    hard = (x**2 + y**2 <= radius**2).astype(np.float64)
    line = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * edge**2))
    line /= line.sum()
    soft = ndimage.convolve(hard / hard.sum(), np.outer(line, line), mode="constant")
    return soft / soft.sum()


def pixelate(images: np.ndarray, share: float) -> np.ndarray:
    """Shrink by averaging boxes to this share of the side, and enlarge again."""
    height, width = images.shape[1:3]
    small = (max(1, int(width * share)), max(1, int(height * share)))

    def one(picture: Image.Image) -> Image.Image:
        box = Image.Resampling.BOX
        return picture.resize(small, box).resize((width, height), box)

    return _each(images, one)


def jpeg(images: np.ndarray, quality: int) -> np.ndarray:
    """Write as JPEG of this quality (chroma subsampled) and read again."""

    def one(picture: Image.Image) -> Image.Image:
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        with Image.open(file) as read:
            read.load()
            return read

    return _each(images, one)


def _each(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """Change every image as a Pillow picture: grey of one channel, RGB of three."""
    changed = np.empty_like(images)
    for number, image in enumerate(images):
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        changed[number] = np.asarray(change(picture)).reshape(image.shape)
    return changed
