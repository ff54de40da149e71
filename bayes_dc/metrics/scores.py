"""Accuracy and the proper scores, per sample and as means over all samples.

With p the row of ``probs`` and y the label::

    accuracy = mean 1[argmax p = y]
    nll      = mean −log p_y
    brier    = mean Σ_k (p_k − 1[k = y])²

Sums run in float64 whatever the dtype of the input. Give all samples in one call: the mean of batch
means over-weights a smaller last batch.
"""

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_labels, check_probs, check_tensor

_LOGITS = "logits must be a floating point tensor of shape [B, C] without NaN; got {got}."


def correct(probs: Tensor, labels: Tensor) -> Tensor:
    """Say for every row whether the most probable class is the label.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Bool ``[B]`` on the device of ``probs``.
    """
    probs = check_probs(probs)
    return probs.argmax(dim=1) == check_labels(labels, probs)


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Share of rows whose most probable class is the label.

    ::

        mean 1[argmax_k p_k = y]

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype. Of equal maxima the first counts.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 scalar, 0 … 1, higher is better.

    Source:
        1 less the 0/1 loss; Bishop 2006, "Pattern recognition and machine learning", section 1.5.
    """
    return correct(probs, labels).double().mean()


def nll_per_sample(probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-probability of every label.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … ∞; exactly +inf where the label was given probability 0.
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    picked = probs.gather(1, labels[:, None]).squeeze(1)
    return -picked.clamp(max=1.0).log() + 0.0  # −log 1 is −0.0


def nll(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-probability of the labels.

    ::

        mean −log p_y

    Nothing is clipped: one label of probability 0 makes the result +inf. It is never NaN.
    ``nll_per_sample`` tells which rows are to blame; ``nll_from_logits`` cannot underflow.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 scalar, nats, 0 … ∞, lower is better.

    Source:
        Good 1952, "Rational decisions", Journal of the Royal Statistical Society B 14 (the
        logarithmic score).
    """
    return nll_per_sample(probs, labels).mean()


def nll_from_logits_per_sample(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-probability of every label under ``softmax(logits)``.

    Args:
        logits: Network output before softmax ``[B, C]``, any floating dtype; −inf excludes a class.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … ∞.

    Raises:
        ValueError: If ``logits`` has another shape or dtype, holds NaN or +inf, or a row is all
            −inf.
    """
    check_tensor(logits, "logits")
    if logits.ndim != 2 or logits.numel() == 0 or not logits.is_floating_point():
        raise ValueError(_LOGITS.format(got=f"shape {list(logits.shape)}, dtype {logits.dtype}"))
    logs = logits.double().log_softmax(dim=1)
    if logs.isnan().any():
        rows = logs.isnan().any(dim=1).nonzero().flatten().tolist()
        raise ValueError(_LOGITS.format(got=f"a row without a finite softmax, row {rows[0]}"))
    labels = check_labels(labels, logs)
    return -logs.gather(1, labels[:, None])[:, 0]


def nll_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-probability of the labels under ``softmax(logits)``.

    ::

        mean (log Σ_k exp z_k − z_y)

    Args:
        logits: Network output before softmax ``[B, C]``, any floating dtype; −inf excludes a class.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 scalar, nats, 0 … ∞, lower is better.

    Source:
        Good 1952, "Rational decisions", Journal of the Royal Statistical Society B 14 (the
        logarithmic score).
    """
    return nll_from_logits_per_sample(logits, labels).mean()


def brier_per_sample(probs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of every row from the one-hot label, summed over classes.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 ``[B]``, 0 … 2.
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])
    return (probs - one_hot).square().sum(dim=1)


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean Brier score, in the form that sums over classes.

    ::

        mean Σ_k (p_k − 1[k = y])²

    Other texts divide by C, or by 2 for two classes. Here a sure and right row scores 0, a sure and
    wrong one 2, and the uniform row 1 − 1/C.

    Args:
        probs: Class probabilities ``[B, C]``, any floating dtype.
        labels: Class numbers ``[B]``, 0 … C − 1, any integer dtype.

    Returns:
        Float64 scalar, 0 … 2, lower is better.

    Source:
        Brier 1950, "Verification of forecasts expressed in terms of probability", Monthly Weather
        Review 78.
    """
    return brier_per_sample(probs, labels).mean()
