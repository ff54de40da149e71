"""The Gaussian sampler in plain torch: the definition the kernels are held to.

Shapes: x [P', S, R, K] with P' = 1 (shared by all passes) or P, w [N, K], bias [N], z [P, S, R, N].
Give float64 tensors for an oracle. Differentiable.
"""

import torch
from torch import Tensor

from bayes_dc.rng import normals


def explicit_normals(
    key: tuple[int, int], sample_ids: Tensor, pass_ids: Tensor, R: int, N: int
) -> Tensor:
    """Normals of rng/SPEC.md for every (pass, sample, row).

    Args:
        key: Layer key, two 32-bit words.
        sample_ids: int64 ``[S]``.
        pass_ids: int64 ``[P]``.
        R: Rows of a group.
        N: Number of outputs.

    Returns:
        Float64 ``[P, S, R, N]`` on the CPU.
    """
    P, S = pass_ids.numel(), sample_ids.numel()
    samples = sample_ids.cpu().repeat(P).numpy()
    passes = pass_ids.cpu().repeat_interleave(S).numpy()
    return torch.from_numpy(normals(key, samples, passes, R, N)).view(P, S, R, N)


def moments(
    x: Tensor, w: Tensor, bias: Tensor | None, keep: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Mean s q Σ_k w x + b and variance s² q (1 − q) Σ_k w² x² of the masked product.

    Args:
        x: ``[P', S, R, K]``.
        w: ``[N, K]``.
        bias: ``[N]`` or None.
        keep: Keep probability q.
        scale: Factor s on the masked product.

    Returns:
        Mean and variance, each ``[P', S, R, N]``.
    """
    mean = scale * keep * (x @ w.T)
    var = scale * scale * keep * (1 - keep) * (x.square() @ w.square().T)
    return (mean if bias is None else mean + bias), var


def draw(mean: Tensor, var: Tensor, z: Tensor) -> Tensor:
    """Draws mean + √var z; the gradient of the root at 0 is taken as 0.

    Args:
        mean: ``[P', S, R, N]``.
        var: ``[P', S, R, N]``; a negative one counts as 0.
        z: Normals ``[P, S, R, N]``.

    Returns:
        ``[P, S, R, N]``.
    """
    positive = ~(var <= 0)
    root = torch.where(positive, torch.where(positive, var, torch.ones_like(var)).sqrt(), 0.0)
    return mean + root * z.to(mean)
