"""Factors of the moments, and the weights as tensor cores want them."""

import torch
from torch import Tensor


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


def rounded(w: Tensor) -> Tensor:
    """Bring float32 weights to the nearest TensorFloat-32; tensor cores would cut their bits off.

    Args:
        w: ``[N, K]``.

    Returns:
        The same for other types, else a new tensor; inf and NaN stay what they are.
    """
    if w.dtype != torch.float32:
        return w
    nearest = (w.view(torch.int32) + (1 << 12)).bitwise_and_(-1 << 13).view(torch.float32)
    return nearest.masked_fill_(w != w, float("nan"))  # whose bits may carry into the sign


def squares(w: Tensor) -> Tensor:
    """Square weights into bfloat16, which has the range of float32.

    Args:
        w: ``[N, K]``.

    Returns:
        ``[N, K]``, rows of whole 16 bytes.
    """
    out = w.new_empty((len(w), -(-w.shape[1] // 8) * 8), dtype=torch.bfloat16)[:, : w.shape[1]]
    wide = w.float() if w.dtype == torch.float16 else w
    return torch.mul(wide, wide, out=out)
