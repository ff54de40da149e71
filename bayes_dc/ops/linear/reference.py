"""DropConnect linear with explicit masks, in plain torch: the definition the kernels are held to.

Shapes: x [P, S, R, K] (passes, samples, rows sharing a mask, inputs), w [N, K], bias [N],
mask [P, S, N, K] of booleans. Give float64 tensors for an oracle. Differentiable.
"""

import torch
from torch import Tensor

from bayes_dc.rng import KeepDigits, masks


def explicit_masks(
    key: tuple[int, int],
    sample_ids: Tensor,
    pass_ids: Tensor,
    N: int,
    K: int,
    digits: KeepDigits,
) -> Tensor:
    """Masks of rng/SPEC.md for every (pass, sample).

    Args:
        key: Layer key, two 32-bit words.
        sample_ids: int64 ``[S]``.
        pass_ids: int64 ``[P]``.
        N: Number of outputs.
        K: Number of inputs.
        digits: Binary digits of the keep probability.

    Returns:
        Boolean ``[P, S, N, K]`` on the CPU; True keeps the weight.
    """
    P, S = pass_ids.numel(), sample_ids.numel()
    samples = sample_ids.cpu().repeat(P).numpy()
    passes = pass_ids.cpu().repeat_interleave(S).numpy()
    return torch.from_numpy(masks(key, samples, passes, N, K, digits)).view(P, S, N, K)


def forward(x: Tensor, w: Tensor, bias: Tensor | None, mask: Tensor, scale: float) -> Tensor:
    """y[p, s, r, n] = scale · Σ_k mask[p, s, n, k] w[n, k] x[p, s, r, k] + bias[n].

    Args:
        x: ``[P, S, R, K]``.
        w: ``[N, K]``.
        bias: ``[N]`` or None.
        mask: Boolean ``[P, S, N, K]``. A dropped weight is selected away, not multiplied by 0.
        scale: Factor on the masked product.

    Returns:
        ``[P, S, R, N]``.
    """
    masked = torch.where(mask, w, torch.zeros((), dtype=w.dtype, device=w.device))
    y = scale * (x @ masked.transpose(-1, -2))
    return y if bias is None else y + bias


def grad_input(gy: Tensor, w: Tensor, mask: Tensor, scale: float) -> Tensor:
    """dx[p, s, r, k] = scale · Σ_n mask[p, s, n, k] w[n, k] gy[p, s, r, n].

    Args:
        gy: ``[P, S, R, N]``.
        w: ``[N, K]``.
        mask: Boolean ``[P, S, N, K]``.
        scale: Factor on the masked product.

    Returns:
        ``[P, S, R, K]``.
    """
    masked = torch.where(mask, w, torch.zeros((), dtype=w.dtype, device=w.device))
    return scale * (gy @ masked)


def grad_weight(gy: Tensor, x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """dw[n, k] = scale · Σ_{p, s, r} mask[p, s, n, k] gy[p, s, r, n] x[p, s, r, k].

    Args:
        gy: ``[P, S, R, N]``.
        x: ``[P, S, R, K]``.
        mask: Boolean ``[P, S, N, K]``.
        scale: Factor on the masked product.

    Returns:
        ``[N, K]``.
    """
    products = gy.transpose(-1, -2) @ x
    zero = torch.zeros((), dtype=products.dtype, device=products.device)
    return scale * torch.where(mask, products, zero).sum(dim=(0, 1))
