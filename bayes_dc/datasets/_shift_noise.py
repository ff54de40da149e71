"""Shifts that draw noise, one image at a time, each from a generator of its own."""

import numpy as np


def gaussian_noise(image: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Add normal noise to every element."""
    return image + 255 * rng.normal(scale=deviation, size=image.shape)


def shot_noise(image: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    """Count photons: Poisson, with this many at full brightness."""
    return rng.poisson(image / 255 * photons) / photons * 255


def impulse_noise(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Set a share of the elements to 0 or 255, either with probability ½."""
    hit, salt = rng.random(image.shape) < share, rng.random(image.shape) < 0.5
    return np.where(hit, np.where(salt, 255.0, 0.0), image)
