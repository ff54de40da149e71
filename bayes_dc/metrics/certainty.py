"""Whether certain predictions are right and wrong ones uncertain, over a sweep of thresholds.

An input is *uncertain* if its uncertainty u is at least the limit u_T, *certain* if it is below
(ties count as uncertain). With N_cc correct and certain, N_ic incorrect and certain, N_cu correct
and uncertain, N_iu incorrect and uncertain inputs::

    R_cc = N_cc / (N_cc + N_ic)      how often a certain prediction is right
    R_iu = N_iu / (N_iu + N_ic)      how often a wrong prediction is uncertain
    UA   = (N_cc + N_iu) / n         how often one of the two wanted cases holds

R_cc is 1 where no input is certain and R_iu is 1 where none is wrong: nothing contradicts them.
A threshold T in 0 … 1 stands for the limit T · log C, a property of the number of classes alone.
``normalisation="test_set"`` puts it at u_min + T · (u_max − u_min) of the evaluated inputs: for
comparison with published curves only, as every value then hangs on the most uncertain input.
"""

import itertools
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayes_dc.metrics._checks import check_scores
from bayes_dc.metrics._kind import Kind, running_sum

Normalisation = Literal["log_classes", "test_set"]
"""Where thresholds 0 and 1 lie: at 0 and log C, or at the evaluated inputs' least and largest."""

CertaintyShare = Literal["r_cc", "r_iu", "ua"]
"""One of the three curves."""

_CORRECT = (
    "correct must be a bool tensor of shape [{n}] like uncertainty, True where the prediction is "
    "right; got {got}. Pass metrics.correct(probs, labels)."
)
_CLASSES = "classes must be an integer of at least 2, the number of classes C; got {got!r}."
_NORMALISATION = "normalisation must be one of {allowed}; got {got!r}."
_THRESHOLDS = (
    "thresholds must be two or more numbers in 0 … 1, ascending; got {got}. They are shares of "
    "log C, not nats: pass [k / 100 for k in range(101)], or leave them out."
)
_NEGATIVE = (
    "{count} of {n} uncertainties are below 0 (the least is {got}), so they count as certain at "
    "every threshold. Only mutual_information_jackknife may be so, by chance; for a score such as "
    "log p of the predicted class change the sign and pass normalisation='test_set'."
)
_OF = "of must be one of {allowed}, the curve whose area is wanted; got {got!r}."
_FINITE = "uncertainty must be finite where normalisation is 'test_set'; got {got}."


@dataclass(frozen=True)
class CertaintyCurves:
    """R_cc, R_iu and UA over K thresholds; see the module.

    Attributes:
        threshold: T, share of the range of ``normalisation``, float64 ``[K]``.
        limit: Uncertainty from which on an input is uncertain, float64 ``[K]``, in its unit.
        r_cc: Share of the certain predictions that are right, float64 ``[K]``, 0 … 1.
        r_iu: Share of the wrong predictions that are uncertain, float64 ``[K]``, 0 … 1.
        ua: Share of inputs that are right and certain, or wrong and uncertain, ``[K]``, 0 … 1.
        counts: N_cc, N_ic, N_cu, N_iu, int64 ``[K, 4]``.
        normalisation: Where the limits come from.
    """

    threshold: Tensor
    limit: Tensor
    r_cc: Tensor
    r_iu: Tensor
    ua: Tensor
    counts: Tensor
    normalisation: Normalisation

    def areas(self) -> dict[str, float]:
        """Areas under the three curves over T, by trapezoids, divided by the width of the sweep.

        Returns:
            ``r_cc``, ``r_iu`` and ``ua``, each 0 … 1; higher is better.
        """
        width = self.threshold[-1] - self.threshold[0]
        return {
            name: (torch.trapezoid(getattr(self, name), self.threshold) / width).item()
            for name in ("r_cc", "r_iu", "ua")
        }


def certainty_curves(
    uncertainty: Tensor,
    correct: Tensor,
    *,
    classes: int,
    normalisation: Normalisation = "log_classes",
    thresholds: Sequence[float] | None = None,
) -> CertaintyCurves:
    """R_cc, R_iu and UA over a sweep of thresholds; see the module for definitions and ties.

    ::

        R_cc = N_cc / (N_cc + N_ic)    R_iu = N_iu / (N_iu + N_ic)    UA = (N_cc + N_iu) / n

    Args:
        uncertainty: Entropy or mutual information of every input, nats ``[n]``; below 0 is warned
            of where limits are shares of log C.
        correct: Whether each prediction is right, bool ``[n]``.
        classes: Number of classes C.
        normalisation: ``"log_classes"``: limits T · log C. ``"test_set"``: limits between the least
            and the largest of these n uncertainties, for comparison with published curves only.
        thresholds: Values of T, ascending in 0 … 1; default 0, 0.01, …, 1.

    Returns:
        The curves, on the device of ``uncertainty``; ``areas()`` has the areas under them.

    Raises:
        TypeError: If ``uncertainty`` is no tensor.
        ValueError: If an argument is out of range or ``n`` is 0.

    Source:
        Mobiny et al. 2021, Sci. Rep. 11:5458 (there with ``"test_set"`` and mutual information).

    Example:
        >>> right = correct(prediction.mean, labels)
        >>> curves = certainty_curves(prediction.mutual_information, right, classes=10)
        >>> curves.areas()["ua"]
    """
    options = {"classes": classes, "normalisation": normalisation, "thresholds": thresholds}
    check_options(options)
    return CERTAINTY_CURVES(uncertainty, correct, **options)


def certainty_area(
    uncertainty: Tensor,
    correct: Tensor,
    *,
    classes: int,
    of: CertaintyShare = "ua",
    normalisation: Normalisation = "log_classes",
    thresholds: Sequence[float] | None = None,
) -> Tensor:
    """Area under R_cc, R_iu or UA: the mean over the sweep of thresholds, by trapezoids.

    ::

        ∫ R(T) dT / (largest T − least T)

    Args:
        uncertainty: Entropy or mutual information of every input, in nats, ``[n]``.
        correct: Whether each prediction is right, bool ``[n]``.
        classes: Number of classes C.
        of: Which curve.
        normalisation: As for ``certainty_curves``.
        thresholds: As for ``certainty_curves``.

    Returns:
        Float64 scalar, 0 … 1, higher is better: ``certainty_curves(...).areas()[of]``.

    Source:
        Mobiny et al. 2021, Sci. Rep. 11:5458.
    """
    options = {"classes": classes, "normalisation": normalisation, "thresholds": thresholds}
    check_options(options | {"of": of})
    return CERTAINTY_AREA(uncertainty, correct, **options, of=of)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of the curves and areas that are out of range, by name."""
    _check_classes(options.get("classes", 2))
    if (steps := options.get("thresholds")) is not None:
        _check_steps(steps)
    for name, literal, text in (
        ("normalisation", Normalisation, _NORMALISATION),
        ("of", CertaintyShare, _OF),
    ):
        allowed = get_args(literal)
        if options.get(name, allowed[0]) not in allowed:
            raise ValueError(text.format(allowed=allowed, got=options[name]))


def _rows(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Uncertainty in float64 and whether each prediction is right, on one device."""
    uncertainty = check_scores(uncertainty, "uncertainty", empty=False)
    known = isinstance(correct, Tensor) and correct.dtype == torch.bool
    if not known or correct.shape != uncertainty.shape:
        got = type(correct).__name__
        if isinstance(correct, Tensor):
            got = f"shape {list(correct.shape)}, dtype {correct.dtype}"
        raise ValueError(_CORRECT.format(n=len(uncertainty), got=got))
    return uncertainty, correct.to(uncertainty.device)


def _check_steps(thresholds: Sequence[float]) -> list[float]:
    """Return the thresholds as a list, or raise."""
    try:
        steps = [float(t) for t in thresholds]
    except (TypeError, ValueError) as error:
        raise ValueError(_THRESHOLDS.format(got=repr(thresholds))) from error
    pairs = itertools.pairwise(steps)
    if len(steps) < 2 or not all(0 <= a < b <= 1 for a, b in pairs):
        raise ValueError(_THRESHOLDS.format(got=steps))
    return steps


def _check_classes(classes: object) -> int:
    """Return the number of classes as an int, or raise."""
    try:
        count = 0 if isinstance(classes, bool) else operator.index(classes)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 2:
        raise ValueError(_CLASSES.format(got=classes))
    return count


def _warn_negative(uncertainty: Tensor) -> None:
    """Say that an entropy or mutual information below 0 is none."""
    # Differences of entropies in float32 come this close to 0 from below.
    wrong = uncertainty < -torch.finfo(torch.float32).eps
    if wrong.any():
        got = f"{uncertainty.min().item():.6g}"
        text = _NEGATIVE.format(count=int(wrong.sum()), n=len(wrong), got=got)
        warnings.warn(text, UserWarning, stacklevel=3)


def _counts(
    uncertainty: Tensor,
    correct: Tensor,
    classes: int,
    normalisation: Normalisation,
    thresholds: Sequence[float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Thresholds [K], limits [R, K] and the four cases [R, K, 4] of ranked data sets [R, n]."""
    R, n = uncertainty.shape
    steps = [k / 100 for k in range(101)] if thresholds is None else _check_steps(thresholds)
    threshold = torch.tensor(steps, dtype=torch.float64, device=uncertainty.device)
    if normalisation == "log_classes":
        if R == 1:  # not for every resample
            _warn_negative(uncertainty[0])
        limit = (threshold * math.log(_check_classes(classes))).expand(R, -1)
    else:
        low, high = uncertainty[:, :1], uncertainty[:, -1:]
        if not (low.isfinite().all() and high.isfinite().all()):
            raise ValueError(_FINITE.format(got=f"{low.min().item()} … {high.max().item()}"))
        limit = torch.lerp(low, high, threshold)
    certain = torch.searchsorted(uncertainty.contiguous(), limit.contiguous())  # u < limit
    right = running_sum(correct).long()
    n_cc, all_right = right.gather(1, certain), right[:, -1:]
    n_ic = certain - n_cc
    cases = [n_cc, n_ic, all_right - n_cc, n - all_right - n_ic]
    return threshold, limit, torch.stack(cases, dim=-1)


def _shares(counts: Tensor) -> dict[CertaintyShare, Tensor]:
    """R_cc, R_iu and UA [...] from the four cases [..., 4]."""
    n_cc, n_ic, n_cu, n_iu = counts.unbind(dim=-1)
    certain, wrong = n_cc + n_ic, n_ic + n_iu
    return {
        "r_cc": torch.where(certain > 0, n_cc.double() / certain.clamp(min=1), 1.0),
        "r_iu": torch.where(wrong > 0, n_iu.double() / wrong.clamp(min=1), 1.0),
        "ua": (n_cc + n_iu).double() / (certain + n_cu + n_iu),
    }


def _curves(
    uncertainty: Tensor,
    correct: Tensor,
    *,
    classes: int,
    normalisation: Normalisation = "log_classes",
    thresholds: Sequence[float] | None = None,
) -> CertaintyCurves:
    """Curves of one ranked data set [1, n]."""
    threshold, limit, counts = _counts(uncertainty, correct, classes, normalisation, thresholds)
    return CertaintyCurves(
        threshold=threshold,
        limit=limit[0],
        **_shares(counts[0]),
        counts=counts[0],
        normalisation=normalisation,
    )


def _area(
    uncertainty: Tensor,
    correct: Tensor,
    *,
    classes: int,
    of: CertaintyShare = "ua",
    normalisation: Normalisation = "log_classes",
    thresholds: Sequence[float] | None = None,
) -> Tensor:
    """Area under one curve [R] of ranked data sets [R, n]."""
    threshold, _, counts = _counts(uncertainty, correct, classes, normalisation, thresholds)
    return torch.trapezoid(_shares(counts)[of], threshold) / (threshold[-1] - threshold[0])


CERTAINTY_CURVES = Kind(_rows, _curves, ranked=True, curve=True)
CERTAINTY_AREA = Kind(_rows, _area, ranked=True)
