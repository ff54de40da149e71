"""Sentences about inputs of other kinds, changed inputs, and the policy of abstention."""

from bayes_dc.report.ood import MONTE_CARLO, OODRow
from bayes_dc.report.sections import OODSet, ShiftPoint, ShiftSweep
from bayes_dc.report.selective import AbstentionResult
from bayes_dc.report.shifted import TURNED, by_shift
from bayes_dc.report.text import number, share

_TELLS_APART = 0.9
_OFF = 0.1


def ood_finding(other: OODSet, rows: list[OODRow]) -> str:
    """Say how well a set is told from the inputs of the task.

    Args:
        other: The set.
        rows: Its measures, at least one.

    Returns:
        A sentence about the best uncertainty of the Monte Carlo prediction.
    """
    best = _best(rows)
    auroc, fpr = best.measures["auroc"], best.measures["fpr_at_95_tpr"]
    return (
        f"Inputs of {other.name}: {best.score} ranks one above an input of the task with "
        f"probability {number(auroc.value, 3)} (95 % interval {number(auroc.interval.low, 3)} to "
        f"{number(auroc.interval.high, 3)}); a limit that catches 95 % of them also stops "
        f"{share(fpr.value, 1)} of the inputs of the task."
    )


def ood_action(other: OODSet, rows: list[OODRow]) -> list[str]:
    """Say what to do about inputs of another kind.

    Args:
        other: The set.
        rows: Its measures, at least one.

    Returns:
        One sentence: where to put the limit, or not to rely on one.
    """
    best = _best(rows)
    if best.measures["auroc"].interval.low < _TELLS_APART:
        return [
            f"Do not rely on uncertainty to keep out inputs like {other.name}: check where inputs "
            "come from, or train on examples of them."
        ]
    return [
        f"To keep out inputs like {other.name}, stop those with the highest {best.score} and show "
        "them to a person."
    ]


def shift_finding(shift: ShiftSweep) -> list[str]:
    """Say which change harms most, and whether the uncertainty warns of it.

    Args:
        shift: Scores of changed inputs.

    Returns:
        At most one sentence; none without labels.
    """
    ends = {
        name: (points[0], min(reversed(points), key=_accuracy))  # of equals the strongest
        for name, points in by_shift(shift).items()
        if len(points) > 1 and "accuracy" in points[0].scores
    }
    if not ends:
        return []
    name = min(ends, key=lambda n: _accuracy(ends[n][1]))
    first, last = ends[name]
    before, after = _accuracy(first), _accuracy(last)
    if after >= before:
        return [f"None of the changes lowers the accuracy, {share(before)} of {first.n} inputs."]
    calm, alarmed = (point.scores["entropy"].value for point in (first, last))
    how_far = f"{last.severity:g} degrees" if name == TURNED else f"severity {last.severity:g}"
    warns = "the entropy does not warn of it"
    if last.scores["entropy"].interval.low > first.scores["entropy"].interval.high:
        off = last.scores["ece"].value
        warns = "the network's doubt grows with it"
        if off > _OFF:
            warns += f", but too little: confidence and accuracy are then {share(off)} apart (ECE)"
    return [
        f"The most harmful change is {name.replace('_', ' ')}: at {how_far} accuracy "
        f"falls from {share(before)} to {share(after)}, mean entropy goes from {number(calm, 3)} "
        f"to {number(alarmed, 3)} nats: {warns}."
    ]


def _accuracy(point: ShiftPoint) -> float:
    """Share of right predictions under a change."""
    return point.scores["accuracy"].value


def policy_action(result: AbstentionResult) -> str:
    """Say what the policy does, and whether it keeps its promise here.

    Args:
        result: Promised and measured values.

    Returns:
        Sentences.
    """
    policy = result.policy
    promise = "at most" if policy.target_kind == "risk" else "at least"
    what = "error of the accepted" if policy.target_kind == "risk" else "share accepted"
    text = (
        f"Accept the {result.accepted} of {result.n} inputs that the policy accepts and show the "
        f"others to a person. It promised {promise} {share(policy.bound)} ({what}, with "
        f"{share(policy.confidence, 0)} confidence)"
    )
    measured = result.risk if policy.target_kind == "risk" else result.coverage
    if measured is None:
        return f"{text}; without labels that cannot be checked here."
    if result.kept:
        return f"{text}; here it is {share(measured)}."
    return (
        f"{text}; here it is {share(measured)}, so these inputs are not like those of the "
        "validation split, or this is the rare exception: calibrate again on inputs of this kind."
    )


def _best(rows: list[OODRow]) -> OODRow:
    """The Monte Carlo uncertainty that tells the sets apart best."""
    ours = [row for row in rows if row.network == MONTE_CARLO] or rows
    return max(ours, key=lambda row: row.measures["auroc"].value)
