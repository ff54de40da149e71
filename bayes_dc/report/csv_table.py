"""predictions.csv: one row per input, readable by any table program.

Columns ``id, label, predicted, confidence, entropy, expected_entropy, mutual_information``, with a
policy of abstention ``decision``, and one ``prob_<class>`` per class. Numbers are the shortest text
that reads back as the same float64; ``label`` is empty if unknown, ``predicted`` where the
prediction is not finite (its numbers are then ``nan``); ``decision`` is ``accept`` or ``abstain``.
Text stands as it is, quoted where needed; UTF-8, lines end with a line feed.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.selective import accepted_inputs

UNCERTAINTIES = ("entropy", "expected_entropy", "mutual_information")
NUMBERS = ("confidence", *UNCERTAINTIES)
COLUMNS = ("id", "label", "predicted", *NUMBERS)
DECISION = "decision"


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """Write the table of all inputs.

    Args:
        path: File to be made.
        evaluation: What was predicted.
    """
    decision = [] if evaluation.policy is None else [DECISION]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        probs = [f"prob_{name}" for name in evaluation.class_names]
        writer.writerow([*COLUMNS, *decision, *probs])
        writer.writerows(_rows(evaluation))


def _rows(evaluation: Evaluation) -> Iterator[list[object]]:
    """One list of cells per input."""
    prediction, names, labels = evaluation.prediction, evaluation.class_names, evaluation.labels
    finite = prediction.mean.isfinite().all(dim=1).tolist()
    predicted = prediction.predicted.tolist()
    columns = [getattr(prediction, name) for name in NUMBERS]
    accepted = accepted_inputs(evaluation)
    for i, name in enumerate(evaluation.ids):
        label = "" if labels is None else names[int(labels[i])]
        best = names[predicted[i]] if finite[i] else ""
        numbers = [column[i].item() for column in columns]
        decision = [] if accepted is None else ["accept" if accepted[i] else "abstain"]
        yield [name, label, best, *numbers, *decision, *prediction.mean[i].tolist()]
