"""Ours beside what people would use, in one run: ``python -m benchmarks.run``.

Gates first: a wrong result is not timed. ``harness.py`` says what the columns mean. What fails or
does not fit the time is named at the end, and the exit status is 1.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

import torch

from benchmarks.cases import measure_all
from benchmarks.groups import GROUPS, SHAPES, Shapes, load
from benchmarks.ratios import ratios
from benchmarks.records import RESULTS, Row, append, check_folder, environment, line, table
from benchmarks.warm import compile_all

BUDGET_S = {"cpu": 0.5, "cuda": 0.04}
"""Seconds of timed calls for each line."""


def main() -> None:
    """Run what fits the device, print the tables and what follows from them."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    parser.add_argument("--quick", action="store_true", help="the entries marked quick only")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="another shapes.yaml")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no entry after so many"
    )
    parser.add_argument(
        "--keep",
        nargs="?",
        type=Path,
        const=RESULTS,
        help="add the rows to the CSV files of this folder, by default benchmarks/results",
    )
    arguments = parser.parse_args()
    started, device = time.perf_counter(), arguments.device
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit: print what is there
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a CUDA GPU that torch can use; leave it out for the CPU")
    if not arguments.shapes.is_file():
        parser.error(f"--shapes must name a file; {arguments.shapes} is none")
    if arguments.keep:
        check_folder(arguments.keep)
    shapes = load(arguments.shapes, device, quick=arguments.quick)
    shapes = {name: entries for name, entries in shapes.items() if name in arguments.only}
    if device == "cuda":
        compile_all(shapes, device)
    missing: list[str] = []
    until = started + arguments.seconds
    try:
        rows = run(shapes, device, until=until, keep=arguments.keep, missing=missing)
        print(" · ".join(environment(device).values()))
        print(table(rows, device))
        print("\n".join(["", *ratios(rows)]))
        print("columns: see benchmarks/harness.py; MiB: highest allocation beyond the inputs")
    finally:  # also where the above fails: nothing is left out without a word
        if missing:
            print("\n".join(["not measured:", *missing]))
    if missing:
        raise SystemExit(1)


def run(
    shapes: Shapes,
    device: str,
    *,
    budget_s: float | None = None,
    until: float = float("inf"),
    keep: Path | None = None,
    missing: list[str] | None = None,
) -> list[Row]:
    """A row for each case of each entry.

    Rows go to stderr, and into the CSV files of ``keep``, as soon as their entry is done. Why
    something is missing is added to ``missing``; None raises instead.
    """
    where, rows = environment(device), list[Row]()
    open_gates = [name for name in shapes if shapes[name] and _passes(name, device, missing)]
    entries = [(name, entry) for name in open_gates for entry in shapes[name]]
    # Where time runs out, every group has its quick entries.
    for name, entry in sorted(entries, key=lambda pair: not pair[1].quick):
        if missing is not None and time.perf_counter() > until:
            missing.append(f"{name}, {entry}: no time left (--seconds)")
            continue
        print(f"measuring {name}, {entry}", file=sys.stderr, flush=True)
        cases = GROUPS[name].cases(entry, device)
        budget = budget_s or BUDGET_S[device]
        try:
            found = measure_all(cases, device, where, budget, report=_report, missing=missing)
        except KeyboardInterrupt:
            if missing is None:
                raise
            missing.append(f"{name}, {entry} and what follows: interrupted")
            break
        rows += found
        if keep and found:
            append(found, keep)
        if device == "cuda":
            torch.cuda.empty_cache()
    return sorted(rows, key=lambda row: open_gates.index(row.group))


def _passes(name: str, device: str, missing: list[str] | None) -> bool:
    """Whether the gate of a group lets it through."""
    try:
        GROUPS[name].check(device)
    except (Exception, SystemExit) as error:
        if missing is None:
            raise
        missing.append(f"{name}: {error}")
        return False
    return True


def _report(row: Row) -> None:
    print(line(row), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
