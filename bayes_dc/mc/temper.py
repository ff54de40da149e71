"""Temperature of a Monte Carlo prediction: how sure it may be, without training again.

With z_t the logits of pass t, p̄ the mean of the passes and τ the temperature::

    "logits"   p̄_τ = 1/T Σ_t softmax(z_t / τ)       every pass is tempered, then averaged
    "mean"     p̄_τ ∝ p̄^(1/τ)                        the average is tempered

τ above 1 makes predictions less sure. Softmax forgets a common offset of the logits, and so do
probabilities: ``softmax(log p_t / τ)`` is ``softmax(z_t / τ)``, so logits need not be kept.
``metrics.fit_temperature`` finds τ.
Source: Guo et al. 2017, "On calibration of modern neural networks", ICML, section 4.2.
"""

import math
from dataclasses import replace
from numbers import Real
from typing import Literal, get_args

from torch import Tensor

from bayes_dc.mc.jackknife import standard_errors, without_groups
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.statistics import PassStatistics, entropy

TemperatureKind = Literal["logits", "mean"]
"""What the temperature divides: the logits of every pass, or the log of their mean."""

_KIND = "kind must be one of {allowed}; got {got!r}."
_TEMPERATURE = "temperature must be a number above 0, 1 to change nothing; got {got!r}."
_SAMPLES = (
    "the prediction holds no samples, and a temperature needs the probabilities of every pass. "
    "Predict with return_samples=True."
)


def temper(prediction: Prediction, temperature: float, kind: TemperatureKind) -> Prediction:
    """Apply a temperature to a prediction.

    Args:
        prediction: With ``samples``; not needed at T = 1, where the mean is the one pass.
        temperature: τ, above 0.
        kind: ``"logits"`` or ``"mean"``, see the module.

    Returns:
        ``"logits"``: every field, ``samples`` too, is that of a network whose logits are z / τ, to
        rounding. ``"mean"``: ``mean``, ``entropy`` and their standard errors are tempered; the
        other fields describe the passes as they are, so ``entropy`` is not the sum of its parts.

    Raises:
        ValueError: If an argument is out of range or there are no samples.
    """
    if kind not in get_args(TemperatureKind):
        raise ValueError(_KIND.format(allowed=get_args(TemperatureKind), got=kind))
    number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not number or not 0 < temperature < math.inf:
        raise ValueError(_TEMPERATURE.format(got=temperature))
    samples, T = prediction.samples, prediction.T
    if samples is None and T == 1:
        samples = prediction.mean[None]
    if samples is None:
        raise ValueError(_SAMPLES)
    if kind == "logits":
        passes = _tempered(samples, temperature)
        B, C = prediction.mean.shape
        statistics = PassStatistics(T, B, C, passes.device)
        statistics.update(passes)
        return replace(prediction, **statistics.summary()._asdict(), samples=passes)
    mean = _tempered(prediction.mean, temperature)
    total = entropy(mean)
    tempered = replace(prediction, mean=mean, entropy=total)
    if T == 1:
        return tempered
    left = _tempered(without_groups(samples)[0], temperature)
    return replace(
        tempered,
        mean_se=standard_errors(mean, left, T),
        entropy_se=standard_errors(total, entropy(left), T),
    )


def _tempered(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/τ) over its sum, along the last dimension."""
    return (probs.log() / temperature).softmax(dim=-1)
