"""Keyed dropout with explicit masks, in plain torch: the definition the kernels are held to.

Shapes: x [P, S, U, V] (passes, samples, and a sample's elements as U × V), mask [P, S, units] of
booleans, units = U (one for the V elements of each of U channels) or U · V. Differentiable.
"""

import torch
from torch import Tensor

from bayes_dc.rng import KeepDigits, dropout_masks


def explicit_masks(
    key: tuple[int, int],
    sample_ids: Tensor,
    pass_ids: Tensor,
    units: int,
    digits: KeepDigits,
) -> Tensor:
    """Masks of rng/SPEC.md (Dropout) for every (pass, sample).

    Args:
        key: Key of the call, two 32-bit words.
        sample_ids: int64 ``[S]``.
        pass_ids: int64 ``[P]``.
        units: Elements, or channels, of a sample.
        digits: Binary digits of the keep probability.

    Returns:
        Boolean ``[P, S, units]`` on the CPU; True keeps the unit.
    """
    P, S = pass_ids.numel(), sample_ids.numel()
    samples = sample_ids.cpu().repeat(P).numpy()
    passes = pass_ids.cpu().repeat_interleave(S).numpy()
    return torch.from_numpy(dropout_masks(key, samples, passes, units, digits)).view(P, S, units)


def forward(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Y = scale · x where the mask keeps an element, 0 elsewhere, whatever stands there.

    Args:
        x: ``[P, S, U, V]``.
        mask: Boolean ``[P, S, U]`` or ``[P, S, U · V]``.
        scale: Factor on what is kept.

    Returns:
        ``[P, S, U, V]``.
    """
    P, S, U, V = x.shape
    kept = mask.view(P, S, U, mask.shape[2] // max(U, 1)).expand(P, S, U, V)
    return torch.where(kept, scale * x, torch.zeros((), dtype=x.dtype, device=x.device))
