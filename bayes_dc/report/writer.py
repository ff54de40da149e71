"""Writes the folder of a report."""

import json
from datetime import UTC, datetime
from pathlib import Path

from bayes_dc.report.canvas import check_plots
from bayes_dc.report.charts import CHARTS, GRIDS, draw_charts, draw_grids
from bayes_dc.report.csv_table import write_predictions
from bayes_dc.report.derived import Derived
from bayes_dc.report.document import build_document
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.files import check_target, staged_folder
from bayes_dc.report.html import render_html

HTML = "report.html"
JSON = "report.json"
CSV = "predictions.csv"
FILES = (HTML, JSON, CSV, *(f"{name}.png" for name in (*CHARTS, *GRIDS)))
"""Every file that a report may consist of."""


def check_output(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder early, before the work is done.

    A file, a folder that is not empty (unless ``overwrite``), and a folder that holds anything that
    is no part of a report are refused with a ReportError; so is a report without matplotlib.

    Args:
        out: Folder of the report.
        overwrite: Whether a report that is there may be replaced.
    """
    check_target(out, FILES, overwrite=overwrite)
    check_plots()


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
    derived = Derived(evaluation)
    document = build_document(evaluation, derived, created or datetime.now(UTC))
    charts = draw_charts(evaluation, derived)
    pictures = {name: light for name, (light, _) in charts.items()} | draw_grids(evaluation)
    others = [other.image for other in evaluation.ood]
    page = render_html(document, charts, evaluation.image, others)
    with staged_folder(out, FILES, overwrite=overwrite) as folder:
        write_predictions(folder / CSV, evaluation)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (folder / JSON).write_text(text, encoding="utf-8")
        (folder / HTML).write_text(page, encoding="utf-8")
        for name, png in pictures.items():
            (folder / f"{name}.png").write_bytes(png)
    return out / HTML
