"""When enough passes have run: ``T="auto"`` of ``predict_with_uncertainty``."""

import math
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import torch

from bayes_dc.mc.arguments import check_count
from bayes_dc.mc.statistics import MAX_GROUPS, PassStatistics, Summary

StandardErrorOf = Literal["mean", "entropy", "mutual_information"]
"""Whose Monte Carlo standard error decides: of an input's class probabilities (the largest of
them), of its entropy or of its mutual information.
"""

FIRST_LOOK = MAX_GROUPS
"""Passes before the first look: as many as the jackknife has groups."""

_TARGET = (
    "T='auto' needs standard_error, the Monte Carlo standard error to reach, a number above 0 such "
    "as 0.005; got {got!r}. Or pass a number of passes as T."
)
_UNREAD = "{name}={got!r} is read with T='auto' only; T is {T}. Leave one of them out."
_DEFAULTS = {
    "standard_error": None,
    "standard_error_of": "mean",
    "standard_error_share": 1.0,
    "T_max": 1000,
}
"""Arguments that only ``T="auto"`` reads."""
_OF = "standard_error_of must be one of {allowed}; got {got!r}."
_SHARE = (
    "standard_error_share must be a number above 0 and at most 1, the share of inputs that must "
    "reach standard_error; got {got!r}."
)
_FEW = (
    "T_max must be at least {least}, the groups of passes that standard errors are estimated from; "
    "got {got}. Pass a number of passes as T to run fewer."
)
_MISSED = (
    "T_max = {T} passes did not bring the standard error ({of}) to {target:g} in {share:.4g} % of "
    "the inputs: {missed} of {n} are above it, the largest is {largest:.3g}. It would take about "
    "{need} passes: raise T_max or standard_error, or lower standard_error_share."
)


@dataclass(frozen=True)
class Until:
    """Stops when enough inputs have a small enough standard error.

    Inputs with a NaN are not asked. The standard errors are those of ``Prediction``, so what they
    cannot see is not seen here either: an outcome of one pass in a thousand after 20 passes.

    Attributes:
        standard_error: What to reach, above 0; probability, or nats.
        of: Whose standard error.
        share: Share of the inputs that must reach it.
        T_max: Most passes.
    """

    standard_error: float
    of: StandardErrorOf
    share: float
    T_max: int

    @classmethod
    def of_arguments(
        cls,
        T: object,
        standard_error: object,
        of: StandardErrorOf,
        share: object,
        T_max: object,
    ) -> "Until | None":
        """Check the arguments of a prediction.

        Args:
            T: ``"auto"``, or anything else for a fixed number of passes.
            standard_error: What to reach.
            of: Whose standard error.
            share: Share of the inputs.
            T_max: Most passes.

        Returns:
            None for a fixed number of passes.

        Raises:
            ValueError: If one is out of range, or is given with a fixed T.
        """
        if not (isinstance(T, str) and T == "auto"):
            given = (standard_error, of, share, T_max)
            for (name, default), got in zip(_DEFAULTS.items(), given, strict=True):
                if got is not default and got != default:
                    raise ValueError(_UNREAD.format(name=name, got=got, T=T))
            return None
        if not _is_number(standard_error) or not 0 < standard_error < math.inf:  # type: ignore[operator]
            raise ValueError(_TARGET.format(got=standard_error))
        if of not in get_args(StandardErrorOf):
            raise ValueError(_OF.format(allowed=get_args(StandardErrorOf), got=of))
        if not _is_number(share) or not 0 < share <= 1:  # type: ignore[operator]
            raise ValueError(_SHARE.format(got=share))
        limit = check_count("T_max", T_max)
        if limit < FIRST_LOOK:
            raise ValueError(_FEW.format(least=FIRST_LOOK, got=limit))
        return cls(float(standard_error), of, float(share), limit)  # type: ignore[arg-type]

    def next_look(self, statistics: PassStatistics) -> int:
        """Look at the passes so far; on a GPU this waits for them.

        Args:
            statistics: Of the passes so far.

        Returns:
            Passes before the next look; those so far if they are enough or T_max is reached.
        """
        T = statistics.passes
        errors = self._errors(statistics.summary())
        if errors.numel() == 0 or self.T_max == T:
            return T
        ratio = self._decisive(errors) / self.standard_error
        if ratio <= 1:
            return T
        # A standard error falls as 1/√T. Few looks, none far behind the goal, so that it is rarely
        # overshot by more than a quarter; the first estimates are rough.
        wanted = min(math.ceil(T * ratio**2), 2 * T)
        return min(self.T_max, max(wanted, math.ceil(1.25 * T)))

    def warn_if_missed(self, summary: Summary, T: int) -> None:
        """Say so if T_max came before the standard error.

        Args:
            summary: Of all passes.
            T: Passes that ran.
        """
        errors = self._errors(summary)
        if errors.numel() == 0 or self.T_max != T:
            return
        decisive = self._decisive(errors)
        if decisive <= self.standard_error:
            return
        message = _MISSED.format(
            T=T,
            of=self.of,
            target=self.standard_error,
            share=100 * self.share,
            missed=int((errors > self.standard_error).sum()),
            n=errors.numel(),
            largest=errors[-1].item(),
            need=math.ceil(T * (decisive / self.standard_error) ** 2),
        )
        warnings.warn(message, UserWarning, stacklevel=3)

    def _errors(self, summary: Summary) -> torch.Tensor:
        """Standard error of every input without NaN, ascending."""
        if self.of == "mean":
            errors = summary.mean_se.amax(dim=-1)
        else:
            errors = summary.entropy_se if self.of == "entropy" else summary.mutual_information_se
        return errors[~errors.isnan()].sort().values

    def _decisive(self, errors: torch.Tensor) -> float:
        """The standard error that must fall under the goal: of the last input that is asked."""
        asked = max(1, math.ceil(self.share * len(errors) - 1e-9))  # 0.07 · 100 is 7
        return errors[asked - 1].item()


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
