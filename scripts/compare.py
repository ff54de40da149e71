"""Compare two reports of scripts/mc_predict.py: differences of all metrics with their intervals.

    python scripts/compare.py results/dropout/report.json results/dropconnect/report.json

A difference is the second report less the first. Where both hold the same inputs, the intervals are
those of the paired bootstrap (predictions.csv lies beside each report); elsewhere both are
resampled independently. Only an interval that leaves 0 out, of at least 20 inputs, is called better
or worse.

Exit code 2 means that something in the command or the reports must be put right; the message says
what.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bayes_dc.report import (
    FEWEST,
    ReportError,
    compare_sides,
    comparison_table,
    plot_differences,
    read_side,
)
from bayes_dc.train.folder import replace_file


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare two reports.")
    add = parser.add_argument
    add("first", type=Path, metavar="A.json", help="report.json that is subtracted")
    add("second", type=Path, metavar="B.json", help="the other report.json")
    add("--names", nargs=2, default=("", ""), metavar=("A", "B"), help="names for table and plot")
    default = Path("differences.png")
    add("--plot", type=Path, default=default, metavar="FILE", help="(default differences.png)")
    add("--overwrite", action="store_true", help="replace the plot if it is there")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    """Read, compare, print and plot."""
    plot: Path = arguments.plot
    if plot.exists() and not arguments.overwrite:
        raise ReportError(f"{plot} exists and is kept. Choose another --plot or pass --overwrite.")
    sides = [
        read_side(path, name)
        for path, name in zip((arguments.first, arguments.second), arguments.names, strict=True)
    ]
    first, second = (side.name for side in sides)
    if first == second:
        first, second = f"{first} (A)", f"{second} (B)"
    comparison = compare_sides(*sides)
    print(comparison_table(comparison, first, second))
    a, b = comparison.n
    how = f"the same {a} inputs, paired bootstrap"
    if not comparison.paired:
        how = f"other inputs ({a} and {b}), each resampled by itself"
    print(f"{how}; 1000 resamples")
    if min(a, b) < FEWEST:
        print(f"fewer than {FEWEST} inputs: nothing is called better or worse")
    replace_file(plot, plot_differences(comparison.rows, first, second))
    print(f"plot {plot}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except (ReportError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
