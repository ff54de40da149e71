"""Shifts that move pixels: rotation about the centre, translation around the edge."""

from math import cos, radians, sin

import numpy as np


def turn(images: np.ndarray, degrees: float) -> np.ndarray:
    """Counter-clockwise about the centre, bilinear, black outside; [N, H, W, C] to float64."""
    height, width = images.shape[1:3]
    # Quarter turns are exact: their cosine and sine are rounded to 0 and ±1.
    c, s = round(cos(radians(degrees)), 15), round(sin(radians(degrees)), 15)
    y, x = np.meshgrid(
        np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij"
    )
    # The pixel that lands at (y, x), y downwards, comes from the point turned back.
    rows = s * x + c * y + (height - 1) / 2
    columns = c * x - s * y + (width - 1) / 2
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, across = rows - top, columns - left
    total = np.zeros(images.shape)
    for i, row_share in ((top, 1 - down), (top + 1, down)):
        for j, column_share in ((left, 1 - across), (left + 1, across)):
            inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
            share = np.where(inside, row_share * column_share, 0.0)
            picked = images[:, i.clip(0, height - 1), j.clip(0, width - 1)]
            total += share[:, :, None] * picked
    return total


def translation(images: np.ndarray, pixels: int) -> np.ndarray:
    """Move to the right; what leaves comes back on the left."""
    return np.roll(images, pixels, axis=2)
