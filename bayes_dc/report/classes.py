"""How the network does on each class."""

from dataclasses import dataclass

import torch

from bayes_dc import metrics as m
from bayes_dc.report.evaluation import Evaluation


@dataclass(frozen=True)
class ClassRow:
    """One class.

    Attributes:
        name: Its name.
        n: Inputs that belong to it.
        predicted: Inputs that were predicted to.
        recall: Share of its inputs that are predicted right; NaN without inputs.
        precision: Share of the predictions of it that are right; NaN without predictions.
        confidence: Mean confidence on its inputs.
        entropy: Mean predictive entropy on its inputs, nats.
        mutual_information: Mean mutual information on its inputs, nats.
        mistaken_for: Class that its inputs are most often mistaken for, or None.
        mistaken: How often.
        recall_interval: Exact binomial 95 % interval; None without inputs.
        precision_interval: The same; None without predictions.
    """

    name: str
    n: int
    predicted: int
    recall: float
    precision: float
    confidence: float
    entropy: float
    mutual_information: float
    mistaken_for: str | None
    mistaken: int
    recall_interval: tuple[float, float] | None
    precision_interval: tuple[float, float] | None


def class_rows(evaluation: Evaluation) -> list[ClassRow]:
    """Count right and wrong predictions class by class.

    Args:
        evaluation: What was predicted; inputs without a finite prediction are left out.

    Returns:
        One row per class, in the order of the classes; empty without labels.
    """
    use = evaluation.usable
    if evaluation.labels is None or not use.any():
        return []
    prediction, names = evaluation.prediction, evaluation.class_names
    labels, predicted = evaluation.labels[use].long(), prediction.predicted[use]
    C = len(names)
    confusion = torch.bincount(labels * C + predicted, minlength=C * C).reshape(C, C)
    rows = []
    for c, name in enumerate(names):
        own, right = labels == c, int(confusion[c, c])
        n, claimed = int(own.sum()), int(confusion[:, c].sum())
        wrong = confusion[c].clone()
        wrong[c] = 0
        most = int(wrong.argmax())
        rows.append(
            ClassRow(
                name=name,
                n=n,
                predicted=claimed,
                recall=right / n if n else float("nan"),
                precision=right / claimed if claimed else float("nan"),
                confidence=prediction.confidence[use][own].mean().item(),  # NaN of nothing
                entropy=prediction.entropy[use][own].mean().item(),
                mutual_information=prediction.mutual_information[use][own].mean().item(),
                mistaken_for=names[most] if wrong[most] else None,
                mistaken=int(wrong[most]),
                recall_interval=m.binomial_interval(right, n) if n else None,
                precision_interval=m.binomial_interval(right, claimed) if claimed else None,
            )
        )
    return rows
