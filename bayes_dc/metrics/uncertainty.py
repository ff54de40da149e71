"""Entropy and its split into what is noise in the data and what the network does not know.

With p_t the class probabilities of pass t, p̄ their mean and H(p) = −Σ_k p_k log p_k::

    predictive entropy = H(p̄)     expected entropy = mean_t H(p_t)
    mutual information = H(p̄) − mean_t H(p_t)  ≥ 0
    variation ratio    = 1 − votes of the most voted class / T
    max-probability    = 1 − max_k p_k
    energy             = −τ log Σ_k exp(z_k / τ)

Entropies in nats, all in float64. 0 · log 0 is 0, in the value and in the gradient. Every measure
is higher for a less sure network and depends on its own input only: batches change nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_distribution, check_tensor, is_number

_TEMPERATURE = "temperature must be a number above 0, such as 1.0; got {got!r}."
_LOGITS = "logits must be a floating point tensor [..., C] without NaN; got {got}."


@dataclass(frozen=True)
class UncertaintySplit:
    """Total uncertainty and its two parts, float64 ``[B]``, nats.

    Attributes:
        total: Predictive entropy.
        aleatoric: Expected entropy: noise that more data of this kind does not remove.
        epistemic: Mutual information: what the network does not know; ``total − aleatoric``.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy over the last dimension.

    ::

        H(p) = −Σ_k p_k log p_k    0 · log 0 = 0

    Args:
        probs: Class probabilities ``[..., C]``, any floating dtype.

    Returns:
        Float64 ``[...]``, nats, 0 … log C. The gradient is 0 (not ∞) at probability 0.

    Source:
        Shannon 1948, "A mathematical theory of communication", Bell System Technical Journal 27.
    """
    return _entropy(check_distribution(probs, "probs", "[..., C]"))


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Shannon entropy of ``softmax(logits)`` over the last dimension.

    ::

        H(softmax(z))

    Args:
        logits: Network output ``[..., C]``, any floating dtype; −inf excludes a class.

    Returns:
        Float64 ``[...]``, nats, 0 … log C; finite in value and gradient.

    Raises:
        ValueError: If ``logits`` is not floating point, holds NaN or +inf, or a row is all −inf.

    Source:
        Shannon 1948, "A mathematical theory of communication", Bell System Technical Journal 27.
    """
    check_tensor(logits, "logits")
    if not logits.is_floating_point() or logits.ndim < 1:
        raise ValueError(_LOGITS.format(got=f"shape {list(logits.shape)}, dtype {logits.dtype}"))
    probs = logits.double().softmax(dim=-1)
    if probs.isnan().any():
        raise ValueError(_LOGITS.format(got="a row without a finite softmax"))
    return _entropy(probs)


def predictive_entropy(samples: Tensor) -> Tensor:
    """Entropy of the mean over passes: total uncertainty.

    ::

        H(mean_t p_t)

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C.

    Source:
        Houlsby et al. 2011, "Bayesian active learning for classification and preference learning",
        arXiv 1112.5745.
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    return _entropy(mean_over_passes(samples))


def expected_entropy(samples: Tensor) -> Tensor:
    """Mean over passes of the entropy: uncertainty that stays however much is learnt.

    ::

        mean_t H(p_t)

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C.

    Source:
        Houlsby et al. 2011, "Bayesian active learning for classification and preference learning",
        arXiv 1112.5745.
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    return mean_over_passes(_entropy(samples))


def mutual_information(samples: Tensor) -> Tensor:
    """Information between the prediction and the weights: disagreement of the passes.

    ::

        H(mean_t p_t) − mean_t H(p_t)

    The plug-in estimate; low by about 1/T of its value. Rounding below 0 is cut off.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, 0 … log C; exactly 0 at ``T = 1``.

    Source:
        Houlsby et al. 2011, "Bayesian active learning for classification and preference learning",
        arXiv 1112.5745.
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    total, expected = _entropy(mean_over_passes(samples)), mean_over_passes(_entropy(samples))
    return (total - expected).clamp(min=0.0)


def mutual_information_jackknife(samples: Tensor) -> Tensor:
    """Mutual information without the plug-in estimate's bias of order 1/T.

    ::

        T · MI − (T − 1) · mean_t MI without pass t

    Only the predictive entropy is biased, so only it changes. At ``T = 20`` about 0.98 … 1.00 of
    the true value where the plug-in gives 0.88 … 0.94; the spread over draws is a little larger.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.

    Returns:
        Float64 ``[B]``, nats, just below 0 … log C, so clip it only to show it; exactly 0 at
        ``T = 1``, where nothing can be estimated.

    Source:
        Quenouille 1956, "Notes on bias in estimation", Biometrika 43.
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    T = len(samples)
    if T == 1:
        return torch.zeros_like(samples[0, :, 0])
    mean = mean_over_passes(samples)
    # the difference may cancel to just below 0
    without = ((T * mean - samples) / (T - 1)).clamp(min=0.0)
    total = T * _entropy(mean) - (T - 1) * mean_over_passes(_entropy(without))
    return total - mean_over_passes(_entropy(samples))


def uncertainty_split(samples: Tensor, *, corrected: bool = False) -> UncertaintySplit:
    """Split the predictive entropy into its aleatoric and its epistemic part.

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype.
        corrected: Take the jackknife's mutual information, and a total to match; without it, the
            plug-in estimates.

    Returns:
        The parts; ``aleatoric + epistemic`` is ``total`` up to rounding.
    """
    aleatoric = expected_entropy(samples)
    if corrected:
        epistemic = mutual_information_jackknife(samples)
        return UncertaintySplit(aleatoric + epistemic, aleatoric, epistemic)
    return UncertaintySplit(predictive_entropy(samples), aleatoric, mutual_information(samples))


def variation_ratio(samples: Tensor) -> Tensor:
    """Share of passes that vote for another class than the most voted one.

    ::

        1 − votes of the most voted class / T

    Args:
        samples: Class probabilities of every pass ``[T, B, C]``, any floating dtype. A pass votes
            for its most probable class, the first of equals.

    Returns:
        Float64 ``[B]``, 0 … 1 − 1/C, higher is less sure; 0 at ``T = 1``.

    Source:
        Freeman 1965, "Elementary applied statistics"; Gal 2016, "Uncertainty in deep learning".
    """
    samples = check_distribution(samples, "samples", "[T, B, C]", ndim=3)
    votes = torch.nn.functional.one_hot(samples.argmax(dim=-1), samples.shape[-1]).sum(dim=0)
    return 1.0 - votes.amax(dim=-1).double() / len(samples)


def max_probability_score(probs: Tensor) -> Tensor:
    """One less the largest class probability.

    ::

        1 − max_k p_k

    Args:
        probs: Class probabilities ``[..., C]``, any floating dtype; of a Monte Carlo prediction the
            mean over passes.

    Returns:
        Float64 ``[...]``, 0 … 1 − 1/C, higher is less sure.

    Source:
        Hendrycks & Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
        examples", ICLR.
    """
    return 1.0 - check_distribution(probs, "probs", "[..., C]").amax(dim=-1).clamp(max=1.0)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Free energy of the logits; unlike the others it sees their common offset.

    ::

        −τ log Σ_k exp(z_k / τ)

    Args:
        logits: Network output ``[..., C]``, any floating dtype; −inf excludes a class. Of several
            passes ``[T, B, C]`` average the result over passes.
        temperature: τ, above 0.

    Returns:
        Float64 ``[...]``, −∞ … ∞, higher is less sure (Liu et al. show the negative).

    Raises:
        ValueError: If ``logits`` is not floating point, holds NaN or +inf, or a row is all −inf, or
            ``temperature`` is not above 0.

    Source:
        Liu et al. 2020, "Energy-based out-of-distribution detection", NeurIPS.
    """
    check_tensor(logits, "logits")
    if not logits.is_floating_point() or logits.ndim < 1:
        raise ValueError(_LOGITS.format(got=f"shape {list(logits.shape)}, dtype {logits.dtype}"))
    if not is_number(temperature) or not 0 < temperature < float("inf"):
        raise ValueError(_TEMPERATURE.format(got=temperature))
    value = -temperature * (logits.double() / temperature).logsumexp(dim=-1)
    if not value.isfinite().all():
        raise ValueError(_LOGITS.format(got="a row without a finite softmax"))
    return value


def mean_over_passes(values: Tensor) -> Tensor:
    """Mean over the first dimension, added up in order.

    Args:
        values: Float64 ``[T, ...]``.

    Returns:
        Float64 ``[...]``. torch's own mean adds in another order for other numbers of inputs.
    """
    total = torch.zeros_like(values[0])
    for one in values:
        total = total + one
    return total / len(values)


def _entropy(probs: Tensor) -> Tensor:
    """H over the last dimension of valid float64 rows."""
    positive = probs > 0
    # entr has slope +∞ at 0; times a softmax slope of 0 that is NaN, so zeros are taken out first
    terms = torch.special.entr(torch.where(positive, probs, 1.0))
    return terms.sum(dim=-1).clamp(min=0.0)
