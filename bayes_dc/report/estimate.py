"""A value with its interval."""

from dataclasses import dataclass

from bayes_dc.metrics import Interval

FEWEST = 20
"""Of fewer inputs nothing is claimed: the interval of a bootstrap is too narrow there, and has no
width at all where all inputs score the same, as a single one does.
"""


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap interval.

    Attributes:
        value: The metric on the evaluated inputs.
        interval: Percentile bootstrap over inputs.
    """

    value: float
    interval: Interval
