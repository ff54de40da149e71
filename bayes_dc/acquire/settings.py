"""Settings of active learning: section ``acquire`` of a configuration."""

from typing import Literal

from pydantic import Field, model_validator

from bayes_dc.datasets import Settings

Method = Literal["batchbald", "bald", "entropy", "variation_ratio", "random"]
"""How inputs are chosen; see ``choose``."""


class AcquireConfig(Settings):
    """Which inputs get a label next.

    Attributes:
        method: How inputs are chosen.
        initial: Labels at the start, the same number of every class as far as it divides.
        count: Inputs chosen at a time.
        budget: Labels at which a run ends, the initial ones included.
        candidates: Inputs of the pool that are scored, drawn anew every time; null for all.
        passes: Monte Carlo passes T that score them.
        test_passes: Monte Carlo passes of the test.
        target: Test accuracy at which a run ends, 0 … 1.
        configurations: Label configurations that ``batchbald`` holds; see there.
    """

    method: Method = "batchbald"
    initial: int = Field(default=20, ge=1)
    count: int = Field(default=10, ge=1)
    budget: int = Field(default=300, ge=1)
    candidates: int | None = Field(default=None, ge=1)
    passes: int = Field(default=100, ge=2)
    test_passes: int = Field(default=20, ge=1)
    target: float = Field(default=0.95, gt=0, le=1)
    configurations: int = Field(default=10_000, ge=100)

    @model_validator(mode="after")
    def _budget_allows_a_step(self) -> "AcquireConfig":
        if self.budget < self.initial + self.count:
            raise ValueError(
                f"budget counts the initial labels too, so it must be at least initial + count = "
                f"{self.initial + self.count}; got {self.budget}"
            )
        if self.candidates is not None and self.candidates < self.count:
            raise ValueError(
                f"candidates must be at least count = {self.count}; got {self.candidates}"
            )
        return self
