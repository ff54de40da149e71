"""Which inputs to show: the most and least certain, and those to look at first."""

from dataclasses import dataclass

from torch import Tensor

from bayes_dc.report.evaluation import Evaluation

GRID = 16
LIST = 12

NO_NUMBER = "No finite prediction"
CONFIDENT_MISTAKES = "Mistakes, most confident first"
DISAGREEMENT = "The passes disagree most"


@dataclass(frozen=True)
class LookFirst:
    """Inputs that deserve a person's time, with the reason.

    Attributes:
        title: What they have in common.
        advice: What to check, and what to do then.
        total: How many there are; ``indices`` holds the first of them.
        indices: Positions of the inputs, most urgent first.
    """

    title: str
    advice: str
    total: int
    indices: list[int]


def most_certain(evaluation: Evaluation, count: int = GRID) -> list[int]:
    """Return the inputs of lowest predictive entropy, lowest first.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.
        count: How many at most.

    Returns:
        Positions; of equals the earlier first.
    """
    return _ranked(evaluation.prediction.entropy, evaluation.usable, descending=False)[:count]


def least_certain(evaluation: Evaluation, count: int = GRID) -> list[int]:
    """Return the inputs of highest predictive entropy, highest first.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.
        count: How many at most.

    Returns:
        Positions; of equals the earlier first.
    """
    return _ranked(evaluation.prediction.entropy, evaluation.usable, descending=True)[:count]


def look_first(evaluation: Evaluation, count: int = LIST) -> list[LookFirst]:
    """Choose the inputs that tell most about the network or the data.

    Args:
        evaluation: What was predicted.
        count: How many inputs of each kind at most.

    Returns:
        Groups that hold at least one input: those without a finite prediction, confident mistakes
        (if labels are known), and those on which the passes disagree most.
    """
    usable, prediction = evaluation.usable, evaluation.prediction
    groups = []
    broken = (~usable).nonzero().flatten().tolist()
    if broken:
        advice = (
            "NaN or infinite values came out of the network. Check the input files for NaN, "
            "infinities and extreme values. These inputs are in no metric of this report."
        )
        groups.append(LookFirst(NO_NUMBER, advice, len(broken), broken[:count]))
    if evaluation.labels is not None:
        wrong = usable & (prediction.predicted != evaluation.labels)
        ranked = _ranked(prediction.confidence, wrong, descending=True)
        if ranked:
            advice = (
                "Is the label right? If it is, the network has learnt something false: look for "
                "what these inputs share and add training data of that kind."
            )
            groups.append(LookFirst(CONFIDENT_MISTAKES, advice, len(ranked), ranked[:count]))
    unsure = usable & (prediction.mutual_information > 0)
    ranked = _ranked(prediction.mutual_information, unsure, descending=True)
    if ranked:
        advice = (
            "Highest mutual information: the network does not know inputs like these. Do they "
            "belong to the task at all? If so, label more of their kind and train on them."
        )
        groups.append(LookFirst(DISAGREEMENT, advice, len(ranked[:count]), ranked[:count]))
    return groups


def _ranked(values: Tensor, chosen: Tensor, *, descending: bool) -> list[int]:
    """Positions of the chosen inputs, ordered by value; equals keep their order."""
    positions = chosen.nonzero().flatten()
    order = values[positions].argsort(descending=descending, stable=True)
    return positions[order].tolist()
