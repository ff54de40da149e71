"""Writes the folder of a report."""

import json
from datetime import UTC, datetime
from pathlib import Path

from bayes_dc.report import plots, ranking
from bayes_dc.report.csv_table import write_predictions
from bayes_dc.report.document import build_document
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.files import check_target, staged_folder
from bayes_dc.report.html import render_html
from bayes_dc.report.tables import reliability
from bayes_dc.report.text import number, short

HTML = "report.html"
JSON = "report.json"
CSV = "predictions.csv"
RELIABILITY = "reliability.png"
MUTUAL_INFORMATION = "mutual_information.png"
MOST_CERTAIN = "most_certain.png"
LEAST_CERTAIN = "least_certain.png"
FILES = (HTML, JSON, CSV, RELIABILITY, MUTUAL_INFORMATION, MOST_CERTAIN, LEAST_CERTAIN)
"""Every file that a report may consist of."""


def check_output(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder early, before the work is done.

    A file, a folder that is not empty (unless ``overwrite``), and a folder that holds anything that
    is no part of a report are refused with a ReportError.

    Args:
        out: Folder of the report.
        overwrite: Whether a report that is there may be replaced.
    """
    check_target(out, FILES, overwrite=overwrite)


def write_report(
    evaluation: Evaluation,
    out: Path,
    *,
    overwrite: bool = False,
    created: datetime | None = None,
) -> Path:
    """Write report.html, report.json, predictions.csv and the plots.

    The folder appears complete or not at all; a report that is there survives any failure: a folder
    that must not be replaced raises ReportError, a full disk OSError.

    Args:
        evaluation: What was predicted.
        out: Folder of the report; made if it is missing.
        overwrite: Whether a report that is there may be replaced.
        created: Time to be stated; now if None.

    Returns:
        The path of report.html.
    """
    document = build_document(evaluation, created or datetime.now(UTC))
    charts, pictures = _draw(evaluation)
    page = render_html(document, charts, evaluation.image)
    with staged_folder(out, FILES, overwrite=overwrite) as folder:
        write_predictions(folder / CSV, evaluation)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (folder / JSON).write_text(text, encoding="utf-8")
        (folder / HTML).write_text(page, encoding="utf-8")
        for name, png in pictures.items():
            (folder / name).write_bytes(png)
    return out / HTML


def _draw(evaluation: Evaluation) -> tuple[dict[str, tuple[bytes, bytes]], dict[str, bytes]]:
    """Draw the charts for the page, light and dark, and all plot files."""
    charts: dict[str, tuple[bytes, bytes]] = {}
    pictures: dict[str, bytes] = {}
    use = evaluation.usable
    if not use.any():
        return charts, pictures
    themes = (plots.LIGHT, plots.DARK)
    curve = reliability(evaluation)
    if curve is not None:
        light, dark = (plots.reliability_diagram(curve, theme) for theme in themes)
        charts["reliability"] = (light, dark)
        pictures[RELIABILITY] = light
    values, wrong = evaluation.prediction.mutual_information[use], None
    if evaluation.labels is not None:
        wrong = (evaluation.prediction.predicted != evaluation.labels)[use]
    light, dark = (plots.mutual_information_histogram(values, wrong, theme) for theme in themes)
    charts["mutual_information"] = (light, dark)
    pictures[MUTUAL_INFORMATION] = light
    for name, title, indices in (
        (MOST_CERTAIN, "Most certain: lowest entropy", ranking.most_certain(evaluation)),
        (LEAST_CERTAIN, "Least certain: highest entropy", ranking.least_certain(evaluation)),
    ):
        pictures[name] = plots.image_grid(
            indices, evaluation.image, lambda i: _caption(evaluation, i), title
        )
    return charts, pictures


def _caption(evaluation: Evaluation, index: int) -> tuple[str, bool]:
    """Text under a picture, and whether the prediction is wrong."""
    prediction, names = evaluation.prediction, evaluation.class_names
    predicted = int(prediction.predicted[index])
    text, wrong = f"predicted {short(names[predicted], 14)}", False
    if evaluation.labels is not None:
        label = int(evaluation.labels[index])
        wrong = label != predicted
        text += f"\nlabel {short(names[label], 16)}{' – wrong' if wrong else ''}"
    confidence = number(prediction.confidence[index].item(), 3)
    mi = number(prediction.mutual_information[index].item(), 3)
    return f"{short(evaluation.ids[index])}\n{text}\nconfidence {confidence}\nMI {mi} nats", wrong
