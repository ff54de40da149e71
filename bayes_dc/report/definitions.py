"""Every number of a report in words: what it is, its range, which way is better, and over what."""

from dataclasses import dataclass

from bayes_dc.report.derived import Derived
from bayes_dc.report.estimate import FEWEST
from bayes_dc.report.evaluation import Evaluation

_INTERVAL = (
    "95 % percentile bootstrap interval over inputs, 1000 resamples: how far the number would move "
    "on other inputs of the same kind. For recall, precision, shares of accepted inputs and of "
    "their mistakes it is the exact binomial interval."
)
_DIFFERENCE = (
    "One network's number less another's on the same inputs; the interval resamples inputs, the "
    "same for both. Only an interval that leaves 0 out, of at least "
    f"{FEWEST} inputs, is called better or worse."
)
_CERTAINTY = (
    (
        "R_cc",
        "Share of the certain predictions that are right, mean over 101 limits from which on an "
        "input counts as uncertain; 1 where none is certain.",
    ),
    (
        "R_iu",
        "Share of the wrong predictions that are uncertain, mean over the same limits; 1 where "
        "none is wrong.",
    ),
    (
        "UA",
        "Share of inputs that are right and certain, or wrong and uncertain, mean over the same "
        "limits.",
    ),
)
_OOD = (
    (
        "AUROC",
        "Probability that an input of the other set has a higher uncertainty than one of the task, "
        "ties counted half. Out of distribution is the positive class. 0.5 by chance.",
        "higher",
    ),
    (
        "AUPR-out",
        "Average precision of finding inputs of the other set by high uncertainty; by chance their "
        "share among all.",
        "higher",
    ),
    (
        "AUPR-in",
        "Average precision of finding inputs of the task by low uncertainty; by chance their share "
        "among all.",
        "higher",
    ),
    (
        "FPR at 95 % TPR",
        "Share of the inputs of the task that are stopped by the highest limit that stops at least "
        "95 % of the other set.",
        "lower",
    ),
)
_ENERGY = (
    "−log of the sum of exponentials of the logits of the mean-weight network in one pass; higher "
    "where all logits are low."
)
_CONVERGENCE = (
    "Standard error over Monte Carlo passes of a mean over inputs (jackknife): how far it would "
    "move if the passes were drawn again. Not how wrong the network may be."
)
_REVIEW = (
    (
        "Mistakes found",
        "Wrong predictions among the inputs of highest entropy that a person would check.",
        "0 … all mistakes",
    ),
    ("Accuracy of the rest", "Share of right predictions among the inputs not checked.", "0 … 1"),
)
_CLASSES = (
    ("Recall", "Share of the inputs of a class that are predicted right."),
    ("Precision", "Share of the predictions of a class that are right."),
)
_INPUT = (
    (
        "Confidence",
        "Mean over passes of the probability of the predicted class.",
        "1/C … 1",
        "none",
    ),
    (
        "Entropy of an input",
        "Shannon entropy of its class probabilities averaged over passes, in nats.",
        "0 … log C",
        "none",
    ),
    (
        "Mutual information of an input (MI)",
        "That entropy less the mean over passes of the entropy of a pass, in nats: how much the "
        "passes disagree. Corrected: without the part of order 1 / T by which it is too low "
        "(jackknife).",
        "0 … log C; corrected may be below 0",
        "none",
    ),
)
_COST = (
    (
        "Time",
        "Wall time of all passes over all inputs, in ms for each input; without reading inputs and "
        "writing the report.",
        "0 … ∞",
        "lower",
    ),
    (
        "Speed",
        "Inputs times passes in a second of that time.",
        "0 … ∞",
        "higher",
    ),
    (
        "Peak memory",
        "Most memory held until these predictions were done, in MiB; what was counted stands "
        "beside it.",
        "0 … ∞",
        "lower",
    ),
)
_TEMPERATURE = (
    "What logits are divided by, or the average over passes has its power 1 / T of: above 1 makes "
    "predictions less sure. Least NLL of its inputs."
)
_SEEDS = "Mean and standard deviation over seeds of the masks: how much the draw of masks matters."


@dataclass(frozen=True)
class Definition:
    """One number in words.

    Attributes:
        term: Its name in the report.
        definition: What is computed.
        range: Lowest and highest possible value.
        better: ``"higher"``, ``"lower"``, ``"zero"`` or ``"none"``.
        n: Over what it is computed.
    """

    term: str
    definition: str
    range: str
    better: str
    n: str


def definitions(evaluation: Evaluation, derived: Derived) -> list[Definition]:
    """Define every number that this report holds.

    Args:
        evaluation: What was predicted.
        derived: Its tables.

    Returns:
        Definitions in the order of the report.
    """
    n = f"{int(evaluation.usable.sum())} inputs"
    found = [
        Definition(row.title, row.definition, row.range, row.direction, f"{row.n} inputs")
        for row in derived.rows
    ]
    found += [
        Definition(term, text, size, better, "one input") for term, text, size, better in _INPUT
    ]
    if evaluation.temperature is not None:
        size = f"{evaluation.temperature.n or ''} validation inputs".strip()
        found.append(Definition("Temperature", _TEMPERATURE, "0 … ∞", "none", size))
    if derived.review:
        found += [Definition(term, text, size, "higher", n) for term, text, size in _REVIEW]
    if derived.certainty:
        found += [Definition(term, text, "0 … 1", "higher", n) for term, text in _CERTAINTY]
    found += _of_policy(derived)
    for other, rows in derived.ood:
        if rows:
            sizes = f"{rows[0].n_in} inputs of the task, {rows[0].n_out} of {other.name}"
            found += [
                Definition(f"{term} ({other.name})", text, "0 … 1", better, sizes)
                for term, text, better in _OOD
            ]
    if any(row.score == "energy" for _, rows in derived.ood for row in rows):
        found.append(Definition("Energy", _ENERGY, "−∞ … ∞", "none", "one input"))
    if derived.classes:
        size = "inputs of one class, or predictions of it"
        found += [Definition(term, text, "0 … 1", "higher", size) for term, text in _CLASSES]
    if evaluation.convergence:
        size = f"{evaluation.convergence[-1].n} inputs"
        text = "Monte Carlo standard error"
        found.append(Definition(text, _CONVERGENCE, "0 … ∞", "lower", size))
    if derived.seeds:
        seeds = f"{len(evaluation.seeds)} seeds, {n}"
        found.append(Definition("Over seeds", _SEEDS, "that of the metric", "none", seeds))
    cost = f"{len(evaluation)} inputs, {evaluation.prediction.T} passes"
    found += [Definition(term, text, size, better, cost) for term, text, size, better in _COST]
    found.append(Definition("Interval", _INTERVAL, "that of the metric", "none", n))
    if evaluation.mean_network is not None or derived.compared:
        found.append(Definition("Difference", _DIFFERENCE, "that of the metric", "none", n))
    return found


def _of_policy(derived: Derived) -> list[Definition]:
    """The numbers of a policy of abstention."""
    result = derived.abstention
    if result is None:
        return []
    promise = (
        "Bound on the risk (or the coverage) of new inputs of the same kind, fixed on the "
        "validation split before these inputs were seen; it fails with at most the probability "
        "that the confidence leaves."
    )
    risk = "Share of mistakes among the accepted inputs."
    coverage = "Share of inputs that are accepted."
    n = f"{result.n} inputs"
    validation = f"{result.policy.n} validation inputs"
    return [
        Definition("Promise", promise, "0 … 1", "none", validation),
        Definition("Coverage", coverage, "0 … 1", "higher", n),
        Definition("Risk", risk, "0 … 1", "lower", f"{result.accepted} accepted inputs"),
    ]
