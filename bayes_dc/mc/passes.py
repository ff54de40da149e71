"""What all passes of a prediction gave, by whichever path they ran."""

from typing import Literal, NamedTuple

from torch import Tensor

from bayes_dc.mc.statistics import Summary

EngineChoice = Literal["auto", "engine", "folded"]
"""Which path a prediction takes; see ``predict_with_uncertainty``."""


class Passes(NamedTuple):
    """Statistics of all passes, and what drew.

    Attributes:
        summary: Statistics.
        samples: Probabilities ``[T, B, C]``, or None.
        limits: As ``PassStatistics.limits``, for ``link="identity"``.
        T: Number of passes.
        dropout: Realised drop probability of active dropout.
        silent: Dropout modules that were not called.
        said: Warnings about what torch drew.
        engine: Which path ran, and why.
    """

    summary: Summary
    samples: Tensor | None
    limits: Tensor | None
    T: int
    dropout: dict[str, float]
    silent: list[str]
    said: list[str]
    engine: str
