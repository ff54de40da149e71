"""predictions.csv: one row per input, readable by any table program.

Columns ``id, label, predicted, confidence, entropy, expected_entropy, mutual_information`` and one
``prob_<class>`` per class. Numbers are the shortest text that reads back as the same float64;
``label`` is empty if unknown, ``predicted`` where the prediction is not finite (its numbers are
then ``nan``). Text stands as it is, quoted where needed; UTF-8, lines end with a line feed.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from bayes_dc.report.evaluation import Evaluation

NUMBERS = ("confidence", "entropy", "expected_entropy", "mutual_information")
COLUMNS = ("id", "label", "predicted", *NUMBERS)


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """Write the table of all inputs.

    Args:
        path: File to be made.
        evaluation: What was predicted.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *(f"prob_{name}" for name in evaluation.class_names)])
        writer.writerows(_rows(evaluation))


def _rows(evaluation: Evaluation) -> Iterator[list[object]]:
    """One list of cells per input."""
    prediction, names, labels = evaluation.prediction, evaluation.class_names, evaluation.labels
    finite = prediction.mean.isfinite().all(dim=1).tolist()
    predicted = prediction.predicted.tolist()
    columns = [getattr(prediction, name) for name in NUMBERS]
    for i, name in enumerate(evaluation.ids):
        label = "" if labels is None else names[int(labels[i])]
        best = names[predicted[i]] if finite[i] else ""
        numbers = [column[i].item() for column in columns]
        yield [name, label, best, *numbers, *prediction.mean[i].tolist()]
