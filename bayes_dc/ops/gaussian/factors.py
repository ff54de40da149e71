"""From a keep probability to the factors of mean and variance; imports nothing."""


def moment_factors(keep: int, bits: int, scale: float) -> tuple[float, float]:
    """Factors of Σ_k x w in the mean, and of Σ_k x² w² in the variance.

    With q = keep / 2**bits: (scale · q, scale² · q · (1 − q)); the first is 1 for scale = 1 / q.

    Args:
        keep: Numerator of the keep probability.
        bits: Number of its binary digits, at least 1.
        scale: Factor of the masked product.

    Returns:
        Both factors.
    """
    q = keep / (1 << bits)
    return scale * q, scale * q * scale * (1.0 - q)
