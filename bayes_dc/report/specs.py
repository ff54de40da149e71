"""The metrics of a report: name, definition, range, direction, unit, and how each is computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from bayes_dc import metrics as m

N_BINS = 15

Section = Literal["quality", "calibration", "selective", "uncertainty"]
"""Part of the report that a metric belongs to."""

PerSample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Spec:
    """A metric of class probabilities ``[n, C]`` and labels ``[n]``.

    Attributes:
        key: Name in report.json.
        title: Name for people.
        definition: What is computed, in a sentence.
        range: Lowest and highest possible value.
        direction: ``"higher"``, ``"lower"`` or ``"zero"`` is better; ``"none"`` if neither is.
        unit: ``"share"``, ``"nats"`` or ``""``.
        section: Part of the report.
        per_sample: Its value of every sample, if it is a mean.
        metric: The metric itself, if it is none.
        arguments: Turns probabilities and labels into the arguments of ``metric``.
        options: Options of ``metric``.
    """

    key: str
    title: str
    definition: str
    range: str
    direction: str
    unit: str
    section: Section
    per_sample: PerSample | None = None
    metric: Callable[..., Tensor] | None = None
    arguments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda probs, labels: (
        probs,
        labels,
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def value(self, probs: Tensor, labels: Tensor) -> float:
        """Compute the metric.

        Args:
            probs: Class probabilities ``[n, C]``.
            labels: Class numbers ``[n]``.

        Returns:
            Its value.
        """
        if self.per_sample is not None:
            return self.per_sample(probs, labels).double().mean().item()
        assert self.metric is not None
        return self.metric(*self.arguments(probs, labels), **self.options).item()


def _overconfidence(probs: Tensor, labels: Tensor) -> Tensor:
    """Confidence less hit, per sample."""
    return probs.double().amax(dim=1) - m.correct(probs, labels).double()


def entropy_and_error(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what selective prediction is measured with.

    Args:
        probs: Class probabilities ``[n, C]``.
        labels: Class numbers ``[n]``.

    Returns:
        Entropy ``[n]`` and whether the prediction is wrong ``[n]``.
    """
    return m.entropy(probs), ~m.correct(probs, labels)


_BINS: Mapping[str, Any] = {"n_bins": N_BINS}

LABELLED = (
    Spec(
        "accuracy",
        "Accuracy",
        "Share of inputs whose most probable class is the label.",
        "0 … 1",
        "higher",
        "share",
        "quality",
        per_sample=m.correct,
    ),
    Spec(
        "nll",
        "Negative log-likelihood",
        "Mean of −log of the probability given to the label. Nothing is clipped: "
        "a label given probability 0 makes it infinite.",
        "0 … ∞",
        "lower",
        "nats",
        "quality",
        per_sample=m.nll_per_sample,
    ),
    Spec(
        "brier",
        "Brier score",
        "Mean squared distance between the class probabilities and the one-hot label, "
        "summed over classes.",
        "0 … 2",
        "lower",
        "",
        "quality",
        per_sample=m.brier_per_sample,
    ),
    Spec(
        "ece",
        "Expected calibration error",
        f"Mean gap between accuracy and mean confidence over {N_BINS} equal-width bins of the "
        "confidence in the predicted class, weighted by how many inputs a bin holds. Even a "
        "perfect network scores above 0 on few inputs, and the interval leans upwards.",
        "0 … 1",
        "lower",
        "share",
        "calibration",
        metric=m.ece,
        options=_BINS,
    ),
    Spec(
        "overconfidence",
        "Overconfidence",
        "Mean confidence in the predicted class less accuracy. Above 0 the network claims more "
        "than it delivers, below 0 less.",
        "−1 … 1",
        "zero",
        "share",
        "calibration",
        per_sample=_overconfidence,
    ),
    Spec(
        "adaptive_ece",
        "Adaptive calibration error",
        f"The expected calibration error over {N_BINS} bins that hold equally many inputs.",
        "0 … 1",
        "lower",
        "share",
        "calibration",
        metric=m.adaptive_ece,
        options=_BINS,
    ),
    Spec(
        "classwise_ece",
        "Class-wise calibration error",
        "The calibration error of the probability of each class, not only of the predicted one, "
        f"averaged over classes; {N_BINS} equal-width bins. Small where there are many classes.",
        "0 … 1",
        "lower",
        "share",
        "calibration",
        metric=m.classwise_ece,
        options=_BINS,
    ),
    Spec(
        "brier_reliability",
        "Brier reliability",
        "Part of the Brier score that is miscalibration: squared gap between the probability of a "
        f"class and its frequency, over {N_BINS} bins per class.",
        "0 … 2",
        "lower",
        "",
        "calibration",
        metric=m.brier_reliability,
        options=_BINS,
    ),
    Spec(
        "brier_resolution",
        "Brier resolution",
        "Part of the Brier score that telling inputs apart earns: squared gap between the "
        "frequency of a class in a bin and overall.",
        "0 … 1",
        "higher",
        "",
        "calibration",
        metric=m.brier_resolution,
        options=_BINS,
    ),
    Spec(
        "aurc",
        "Area under the risk–coverage curve",
        "Mean error over all coverages when the inputs of lowest entropy are answered first. "
        "Falls with accuracy and with a better ranking.",
        "0 … 1",
        "lower",
        "share",
        "selective",
        metric=m.aurc,
        arguments=entropy_and_error,
    ),
    Spec(
        "excess_aurc",
        "Excess area",
        "The same less that of the best possible ranking of the same mistakes: what a better "
        "ranking would bring. The interval leans upwards.",
        "0 … 1",
        "lower",
        "share",
        "selective",
        metric=m.excess_aurc,
        arguments=entropy_and_error,
    ),
    Spec(
        "risk_at_90",
        "Error at 90 % coverage",
        "Share of mistakes among the 90 % of inputs with the lowest entropy.",
        "0 … 1",
        "lower",
        "share",
        "selective",
        metric=m.risk_at_coverage,
        arguments=entropy_and_error,
        options={"coverage": 0.9},
    ),
    Spec(
        "coverage_at_1",
        "Coverage at 1 % error",
        "Largest share of inputs, lowest entropy first, among which at most 1 % are mistakes. "
        "Read off these inputs, so it promises nothing for others.",
        "0 … 1",
        "higher",
        "share",
        "selective",
        metric=m.coverage_at_risk,
        arguments=entropy_and_error,
        options={"risk": 0.01},
    ),
)
"""Metrics that need labels."""

UNLABELLED = (
    (
        "entropy",
        "Mean predictive entropy",
        "Total uncertainty: Shannon entropy of the class probabilities averaged over passes.",
    ),
    (
        "expected_entropy",
        "Mean expected entropy",
        "Uncertainty that lies in the data: entropy of each pass, averaged over passes. "
        "More training data of this kind does not remove it.",
    ),
    (
        "mutual_information",
        "Mean mutual information",
        "Uncertainty of the network: predictive less expected entropy. High where the passes "
        "disagree, as on inputs unlike the training data; reads low by about 1/T of its value.",
    ),
)
"""Uncertainties whose mean is a metric: name in ``Prediction``, title, definition; in nats."""
