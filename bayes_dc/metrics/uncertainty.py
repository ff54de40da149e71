"""Entropy and its split into what is noise in the data and what the network does not know.

With p_t the class probabilities of pass t, p̄ their mean and H(p) = −Σ_k p_k log p_k::

    predictive entropy = H(p̄)     expected entropy = mean_t H(p_t)
    mutual information = H(p̄) − mean_t H(p_t)  ≥ 0

All in nats and float64. 0 · log 0 is 0, in the value and in the gradient.
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_distribution

_LOGITS = "logits must be a floating point tensor [..., C] without NaN; got {got}."


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy over the last dimension.

    Args:
        probs: Class probabilities ``[..., C]``, any floating dtype.

    Returns:
        Float64 ``[...]``, nats, 0 … log C. The gradient is 0 (not ∞) at probability 0.
    """
    return _entropy(check_distribution(probs, "probs", "[..., C]"))


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Shannon entropy of ``softmax(logits)`` over the last dimension.

    Args:
        logits: Network output ``[..., C]``, any floating dtype; −inf excludes a class.

    Returns:
        Float64 ``[...]``, nats, 0 … log C; finite in value and gradient.

    Raises:
        ValueError: If ``logits`` is not floating point, holds NaN or +inf, or a row is all −inf.
    """
    if not logits.is_floating_point() or logits.ndim < 1:
        raise ValueError(_LOGITS.format(got=f"shape {list(logits.shape)}, dtype {logits.dtype}"))
    probs = logits.double().softmax(dim=-1)
    if probs.isnan().any():
        raise ValueError(_LOGITS.format(got="a row without a finite softmax"))
    return _entropy(probs)


def predictive_entropy(samples: Tensor) -> Tensor:
    """Entropy of the mean over passes: total uncertainty.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C.
    """
    return _entropy(check_distribution(samples, "samples", "[T, B, C]", ndim=3).mean(dim=0))


def expected_entropy(samples: Tensor) -> Tensor:
    """Mean over passes of the entropy: uncertainty that stays however much is learnt.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C.
    """
    return _entropy(check_distribution(samples, "samples", "[T, B, C]", ndim=3)).mean(dim=0)


def mutual_information(samples: Tensor) -> Tensor:
    """Information between the prediction and the weights: disagreement of the passes.

    The plug-in estimate; low by about 1/T of its value. Rounding below 0 is cut off.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C; exactly 0 at ``T = 1``.
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    return (_entropy(samples.mean(dim=0)) - _entropy(samples).mean(dim=0)).clamp(min=0.0)


def _entropy(probs: Tensor) -> Tensor:
    """H over the last dimension of valid float64 rows."""
    positive = probs > 0
    # entr has slope +∞ at 0; times a softmax slope of 0 that is NaN, so zeros are taken out first
    terms = torch.special.entr(torch.where(positive, probs, 1.0))
    return terms.sum(dim=-1).clamp(min=0.0)
