"""Plots of what is in benchmarks/results: ``python -m benchmarks.plots``.

Only the commit of the last row counts, and of each line its newest row. Every number comes from the
CSV files.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import predict, row_masks, shared_masks
from benchmarks.cases import ALL, DENSE, OURS
from benchmarks.records import RESULTS, Row, file_of, read

OPS = ("fwd", "dx", "dw", ALL)
COLOURS = {
    DENSE: "#8c8c8c",
    OURS: "#0b6e99",
    row_masks.PUBLISHED: "#d1602b",
    row_masks.BROADCAST: "#c9a227",
    row_masks.BROADCAST_COMPILED: "#8a6d0b",
    shared_masks.MADE_BEFORE: "#b0b0b0",
    shared_masks.BY_KERNEL: "#2a9d8f",
    shared_masks.EXPANDED: "#c9a227",
    shared_masks.EXPANDED_COMPILED: "#8a6d0b",
    shared_masks.LOOP: "#d1602b",
    shared_masks.LOOP_COMPILED: "#8f3d14",
}
LINES = {
    **dict(zip(predict.KINDS, ("#0b6e99", "#2a9d8f", "#7a5195"), strict=True)),
    predict.LOOP: "#d1602b",
    predict.LOOP_COMPILED: "#8f3d14",
    predict.FREE: "#bdbdbd",
    predict.FREE_COMPILED: "#8c8c8c",
}
WHOLE_BATCH = {name for name in LINES if not name.startswith(OURS) or "pass" in name}


def main() -> None:
    """Write the plots of every CSV file that has rows for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    folder = parser.parse_args().results
    for path in sorted(folder.glob("*.csv")):
        for written in write(newest(read(path)), folder):
            print(written)


def newest(rows: list[Row]) -> list[Row]:
    """The last row of each line of the last commit, in the order of their first."""
    commit = rows[-1].commit if rows else ""
    last = {
        (row.shape, row.op, row.implementation, row.p): row for row in rows if row.commit == commit
    }
    return list(last.values())


def write(rows: list[Row], folder: Path) -> list[Path]:
    """The plots for which there are rows, as PNG beside the CSV file."""
    import matplotlib as mpl

    mpl.use("Agg")
    made = []
    for name, draw in (("rows", rates), ("shared", shares), ("predict", times)):
        chosen = [row for row in rows if row.group == name]
        if chosen and (path := draw(chosen, file_of(chosen[0], folder).with_suffix(""))):
            made.append(path)
    return made


def rates(rows: list[Row], stem: Path) -> Path | None:
    """Speed of each operation at p = 0.5 in float32, a panel for each shape, and the limit."""
    rows = [r for r in rows if r.dtype == "float32" and r.p in (0.0, 0.5) and r.op in OPS]
    return _bars(
        rows,
        stem.with_name(f"{stem.name}-rows.png"),
        lambda row: row.giga_madds_per_s,
        "10⁹ multiply-adds per second",
        "A mask for every row, p = 0.5, float32",
        limit=True,
    )


def shares(rows: list[Row], stem: Path) -> Path | None:
    """Share of the product without masks, a panel for each shape and dtype."""
    rows = [row for row in rows if row.op in OPS and row.implementation != DENSE]
    rows = [row for row in rows if not math.isnan(row.percent_of_limit)]  # no product measured
    return _bars(
        rows,
        stem.with_name(f"{stem.name}-shared.png"),
        lambda row: row.percent_of_limit,
        "% of the product without masks",
        "R rows share a mask, p = 0.5",
    )


def times(rows: list[Row], stem: Path) -> Path | None:
    """Time of a prediction against the number of inputs."""
    dtype = rows[-1].dtype
    rows = [row for row in rows if row.dtype == dtype and row.implementation in LINES]
    passes = _passes(rows)
    if passes is None or len({row.M for row in rows}) < 2:
        return None
    figure, axes = _figure(1)
    axis = axes[0]
    for name, colour in LINES.items():
        line = sorted((row.M // passes, row.ms_p50) for row in rows if row.implementation == name)
        if line:
            style = "--" if name.startswith("folded") else "-"
            axis.plot(*zip(*line, strict=True), style, marker="o", color=colour, label=name)
    axis.set(xscale="log", yscale="log", xlabel="inputs B", ylabel="ms, median")
    axis.legend(frameon=False, fontsize=8)
    return _save(figure, rows, f"Prediction, T = {passes}, {dtype}", stem, "predict")


def _passes(rows: list[Row]) -> int | None:
    """T: rows per input where the whole batch shares a mask; None where no such row is there."""
    shared = (row for row in rows if row.implementation in WHOLE_BATCH)
    return next((row.M // row.R for row in shared), None)


def _bars(
    rows: list[Row],
    path: Path,
    value: Callable[[Row], float],
    label: str,
    title: str,
    *,
    limit: bool = False,
) -> Path | None:
    """A panel for each shape, a cluster for each operation, a bar for each implementation."""
    rows = [row for row in rows if row.implementation in COLOURS]
    shapes = list(dict.fromkeys(row.shape for row in rows))
    if not shapes:
        return None
    figure, axes = _figure(len(shapes))
    for axis, shape in zip(axes, shapes, strict=False):
        here = [row for row in rows if row.shape == shape]
        names = [name for name in COLOURS if any(r.implementation == name for r in here)]
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            found = {row.op: value(row) for row in here if row.implementation == name}
            at = [OPS.index(op) + (i - (len(names) - 1) / 2) * width for op in found]
            bars = axis.bar(at, list(found.values()), width, color=COLOURS[name], label=name)
            axis.bar_label(bars, fmt=_number, fontsize=6, padding=2, rotation=90)
        axis.set_xticks(range(len(OPS)), OPS)
        axis.set_title(_shape(here[0]), fontsize=9)
        axis.set_ylabel(label, fontsize=8)
        axis.margins(y=0.15)
        if limit:
            axis.set_yscale("log")
            axis.set_ylim(min(map(value, rows)) / 3, max(map(value, rows)) * 6)
            _limit_line(axis, here)
    handles = {
        text: handle
        for axis in axes
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return _save(figure, rows, title, path, "")


def _limit_line(axis: Any, rows: list[Row]) -> None:
    """The rate that is 100 %, where one number serves all operations of the panel."""
    limits = [1e2 * r.giga_madds_per_s / r.percent_of_limit for r in rows if r.percent_of_limit > 5]
    if limits and max(limits) < 1.05 * min(limits):
        axis.axhline(
            sum(limits) / len(limits), color="#333333", linestyle=":", label="limit (harness.py)"
        )


def _figure(panels: int) -> tuple[Any, list[Any]]:
    """Panels, three in a row, on white: readable in a light and in a dark page."""
    import matplotlib.pyplot as plt

    columns = min(panels, 3)
    lines = -(-panels // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(max(4.2 * columns, 6.5), 3.2 * lines + 1),
        layout="constrained",
        squeeze=False,
        facecolor="white",
    )
    flat = list(axes.flat)
    for axis in flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    for axis in flat[panels:]:
        axis.set_visible(False)
    return figure, flat


def _save(figure: Any, rows: list[Row], title: str, path: Path, suffix: str) -> Path:
    """Title with where and when, and the file."""
    import matplotlib.pyplot as plt

    path = path.with_name(f"{path.name}-{suffix}.png") if suffix else path
    row = rows[-1]
    where = f"{row.device} · torch {row.torch} · {row.kernels} · {row.commit} · {row.date}"
    figure.suptitle(f"{title}\n{where}", fontsize=10)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return path


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _shape(row: Row) -> str:
    shared = f", R = {row.R}" if row.R > 1 else ""
    return f"{row.M}×{row.N}×{row.K}{shared}, {row.dtype}"


if __name__ == "__main__":
    main()
