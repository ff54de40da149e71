"""A value with its interval."""

from dataclasses import dataclass

from bayes_dc.metrics import Interval


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap interval.

    Attributes:
        value: The metric on the evaluated inputs.
        interval: Percentile bootstrap over inputs.
    """

    value: float
    interval: Interval
