"""Shifts of light: contrast and brightness."""

import numpy as np


def contrast(images: np.ndarray, factor: float) -> np.ndarray:
    """Pull every channel towards its mean over the image."""
    means = images.mean(axis=(1, 2), keepdims=True)
    return (images - means) * factor + means


def brightness(images: np.ndarray, amount: float) -> np.ndarray:
    """Add to the value of HSV, hue and saturation unchanged; black becomes grey."""
    value = images.max(axis=3, keepdims=True).astype(np.float64)
    brighter = np.minimum(value + 255 * amount, 255.0)
    # Hue and saturation are ratios of channels to the largest one; black has none.
    ratios = np.divide(images, value, out=np.ones(images.shape), where=value > 0)
    return ratios * brighter
