"""What an evaluation may hold besides the predictions of one set: every part is optional.

The parts carry predictions or numbers that somebody else made; the report derives its tables and
pictures from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from bayes_dc.mc.prediction import Prediction
from bayes_dc.report.estimate import Estimate


@dataclass(frozen=True)
class OODSet:
    """Predictions for inputs that the network was not trained for.

    Attributes:
        name: Name of the set, for people.
        prediction: Monte Carlo statistics of its M inputs, on the CPU.
        image: Gives the picture of input i, as the network saw it, uint8 ``[H, W, 1 or 3]``.
        mean_network: Class probabilities of the mean-weight network ``[M, C]``, or None.
        energy: −logsumexp of the mean-weight network's logits ``[M]``, or None.
        data: Where the inputs come from, and how they were converted; goes into the report.
    """

    name: str
    prediction: Prediction
    image: Callable[[int], np.ndarray]
    mean_network: Tensor | None = None
    energy: Tensor | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ShiftPoint:
    """Scores under one shift of one severity.

    Attributes:
        shift: Name of the shift; ``"turned"`` for a half turn in steps.
        severity: 0 (unchanged) … 5, or degrees for ``"turned"``.
        n: Number of inputs.
        scores: By name: accuracy, nll, brier, ece (if labels are known), entropy and
            mutual_information, each the value with its interval.
    """

    shift: str
    severity: float
    n: int
    scores: Mapping[str, Estimate]


@dataclass(frozen=True)
class RotatedInput:
    """One input turned step by step, with the draws of every pass.

    Attributes:
        id: Name of the input.
        label: Its class, or None if unknown.
        degrees: Angle of every step ``[K]``.
        pictures: The input at every step, uint8 ``[H, W, 1 or 3]`` each.
        samples: Class probabilities of every pass at every step, float64 ``[T, K, C]``.
    """

    id: str
    label: int | None
    degrees: Sequence[float]
    pictures: Sequence[np.ndarray]
    samples: Tensor


@dataclass(frozen=True)
class ShiftSweep:
    """How the scores fall when the inputs change.

    Attributes:
        points: One per shift and severity, severity 0 included once per shift.
        rotated: One input turned in steps, or None.
    """

    points: Sequence[ShiftPoint]
    rotated: RotatedInput | None = None


@dataclass(frozen=True)
class Temperature:
    """The recalibration that the predictions went through.

    Attributes:
        value: Temperature τ, above 0; above 1 makes predictions less sure.
        kind: ``"logits"``: mean over passes of softmax(z_t / τ). ``"mean"``: the mean over passes
            to the power 1 / τ, normalised.
        n: Number of validation inputs that it was fitted on, or None if not known.
    """

    value: float
    kind: Literal["logits", "mean"]
    n: int | None = None


@dataclass(frozen=True)
class SeedRun:
    """The same inputs predicted with other masks.

    Attributes:
        seed: Seed of the masks.
        prediction: Monte Carlo statistics of the N inputs, on the CPU.
    """

    seed: int
    prediction: Prediction
