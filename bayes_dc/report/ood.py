"""How well uncertainty tells inputs of another kind from those of the task."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayes_dc import metrics as m
from bayes_dc.report.estimate import Estimate
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.scores import SCORES, score_of
from bayes_dc.report.sections import OODSet

SUREST = 8

MONTE_CARLO = "Monte Carlo"
MEAN_NETWORK = "mean-weight network"

MEASURES: dict[str, Callable[..., Tensor]] = {
    "auroc": m.auroc,
    "aupr_out": m.aupr_out,
    "aupr_in": m.aupr_in,
    "fpr_at_95_tpr": m.fpr_at_tpr,
}
"""Measures by their name in report.json."""


@dataclass(frozen=True)
class OODRow:
    """One uncertainty of one network on one set.

    Attributes:
        network: Mean over passes, or the mean-weight network in one pass.
        score: Uncertainty, for people; higher is more out of distribution.
        n_in: Inputs of the task.
        n_out: Inputs of the other set.
        measures: By name in ``MEASURES``.
    """

    network: str
    score: str
    n_in: int
    n_out: int
    measures: dict[str, Estimate]


def ood_rows(evaluation: Evaluation, other: OODSet) -> list[OODRow]:
    """Compute every measure for every uncertainty.

    Args:
        evaluation: Inputs of the task.
        other: Inputs that are none. Those without a finite prediction are left out, here and there.

    Returns:
        Rows of the Monte Carlo prediction, then of the mean-weight network; empty if one side has
        no finite prediction.
    """
    rows = []
    for network, score, inside, outside in _scores(evaluation, other):
        inside, outside = inside[inside.isfinite()], outside[outside.isfinite()]
        if len(inside) == 0 or len(outside) == 0:
            continue
        measures = {
            name: Estimate(metric(inside, outside).item(), _interval(metric, inside, outside))
            for name, metric in MEASURES.items()
        }
        rows.append(OODRow(network, score, len(inside), len(outside), measures))
    return rows


def surest(other: OODSet, count: int = SUREST) -> list[int]:
    """Return the foreign inputs that the network takes for its own with the least entropy.

    Args:
        other: Inputs that are none of the task.
        count: How many at most.

    Returns:
        Positions, lowest entropy first.
    """
    entropy = other.prediction.entropy
    positions = entropy.isfinite().nonzero().flatten()
    return positions[entropy[positions].argsort(stable=True)][:count].tolist()


def _scores(evaluation: Evaluation, other: OODSet) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Network, score, its values on the task and on the other set."""
    use = evaluation.usable
    for key, name in SCORES.items():
        inside = score_of(evaluation.prediction, key)[use]
        yield MONTE_CARLO, name, inside, score_of(other.prediction, key)
    ours, theirs = evaluation.mean_network, other.mean_network
    if ours is not None and theirs is not None:
        finite = theirs.isfinite().all(dim=1)
        yield MEAN_NETWORK, SCORES["entropy"], m.entropy(ours[use]), m.entropy(theirs[finite])
        inside, outside = (m.max_probability_score(p) for p in (ours[use], theirs[finite]))
        yield MEAN_NETWORK, SCORES["max_probability"], inside, outside
    if evaluation.energy is not None and other.energy is not None:
        yield MEAN_NETWORK, "energy", evaluation.energy[use], other.energy


def _interval(metric: Callable[..., Tensor], inside: Tensor, outside: Tensor) -> m.Interval:
    """Interval of a measure over inputs of both kinds."""
    options: dict[str, Any] = {"tpr": 0.95} if metric is m.fpr_at_tpr else {}
    return m.bootstrap_metric(metric, inside, outside, **options)
