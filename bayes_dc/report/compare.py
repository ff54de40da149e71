"""Two reports side by side: differences with their intervals, from the predictions beside them."""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bayes_dc.report.csv_table import COLUMNS, DECISION, UNCERTAINTIES
from bayes_dc.report.differences import DifferenceRow, Scored, difference_rows
from bayes_dc.report.evaluation import ReportError
from bayes_dc.report.layout import Report, read_report
from bayes_dc.report.text import number, share
from bayes_dc.report.writer import CSV

_CSV = (
    "{path} cannot be read: {why}. The intervals are computed from it: keep predictions.csv beside "
    "report.json, as mc_predict.py wrote them."
)
_CLASSES = (
    "the reports are about other classes: {first} has {a}, {second} has {b}. Compare networks of "
    "one task."
)
_NOTHING = (
    "no input has a finite prediction in both reports: there is nothing to compare. Look at the "
    "warnings of each report."
)


@dataclass(frozen=True)
class Side:
    """One of the reports.

    Attributes:
        name: Name for people.
        report: Its report.json.
        ids: Name of every input.
        scored: Predictions of its inputs.
    """

    name: str
    report: Report
    ids: list[str]
    scored: Scored


@dataclass(frozen=True)
class Comparison:
    """What differs between two reports.

    Attributes:
        rows: Second less first, metric by metric.
        paired: Whether both hold the same inputs.
        n: Number of inputs of each.
    """

    rows: list[DifferenceRow]
    paired: bool
    n: tuple[int, int]


def read_side(path: Path, name: str = "") -> Side:
    """Read a report and the predictions beside it.

    Args:
        path: A report.json.
        name: Name for people; empty: that of the network, or of the folder.

    Returns:
        The report with its predictions.

    Raises:
        ReportError: If one of the files cannot be read or they do not belong together.
    """
    report, table = read_report(path), path.with_name(CSV)
    try:
        ids, scored = _read_predictions(table, report)
    except (OSError, ValueError, KeyError, IndexError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise ReportError(_CSV.format(path=table, why=why)) from error
    return Side(name or report.name or path.resolve().parent.name, report, ids, scored)


def compare_sides(first: Side, second: Side) -> Comparison:
    """Compute the differences between two reports.

    Args:
        first: What is subtracted.
        second: The other.

    Returns:
        Differences, paired by input where both hold the same inputs with the same labels in the
        same order, resampled independently elsewhere.

    Raises:
        ReportError: If they are about other classes, or no input can be compared.
    """
    a, b = first.report, second.report
    if a.classes != b.classes:
        names = (", ".join(one.classes) for one in (a, b))
        pair = dict(zip(("a", "b"), names, strict=True))
        raise ReportError(_CLASSES.format(first=first.name, second=second.name, **pair))
    labels = [
        None if s.scored.labels is None else s.scored.labels.tolist() for s in (first, second)
    ]
    digests = (a.data.get("sha256"), b.data.get("sha256"))
    paired = first.ids == second.ids and labels[0] == labels[1] and digests[0] == digests[1]
    rows = difference_rows(first.scored, second.scored, paired=paired)
    if not rows:
        raise ReportError(_NOTHING)
    return Comparison(rows, paired, (a.n, b.n))


def comparison_table(comparison: Comparison, first: str, second: str) -> str:
    """Write the differences as text.

    Args:
        comparison: The differences.
        first: Name of what is subtracted.
        second: Name of the other.

    Returns:
        Lines of equal columns: metric, both values, difference, 95 % interval, what it means.
    """
    lines = [("metric", first, second, "difference", "95 % interval", f"{second} is")]
    for row in comparison.rows:
        show = share if row.unit == "share" else number
        gap = row.difference
        span = "–" if gap is None else f"{show(gap.interval.low)} to {show(gap.interval.high)}"
        change = "–" if gap is None else show(gap.value)
        title = row.title + (", nats" if row.unit == "nats" else "")
        values = (show(row.first), show(row.second), change, span)
        lines.append((title, *values, row.verdict or "–"))
    widths = [max(len(line[k]) for line in lines) for k in range(6)]
    texts = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [line[k].rjust(widths[k]) for k in range(1, 5)] + [line[5]]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _read_predictions(table: Path, report: Report) -> tuple[list[str], Scored]:
    """Names and predictions of all inputs."""
    with table.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    first = header.index(f"prob_{report.classes[0]}")
    if header[:first] not in ([*COLUMNS], [*COLUMNS, DECISION]):
        raise ValueError(f"its columns are {', '.join(header[:first])}")
    if len(rows) != report.n:
        raise ValueError(f"it has {len(rows)} rows, report.json {report.n} inputs")
    numbers = {name: c for c, name in enumerate(report.classes)}
    probs = torch.stack([_column(rows, first + c) for c in range(len(numbers))], dim=1)
    labels = None
    if report.labels_known:
        labels = torch.tensor([numbers[row[1]] for row in rows], dtype=torch.int64)
    values = {name: _column(rows, header.index(name)) for name in UNCERTAINTIES}
    return [row[0] for row in rows], Scored(probs, labels, values)


def _column(rows: list[list[str]], index: int) -> Tensor:
    """A column of numbers."""
    return torch.tensor([float(row[index]) for row in rows], dtype=torch.float64)
