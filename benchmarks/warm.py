"""Compile what will be timed, in many processes: their caches on disk serve the run.

Triton and Inductor compile on one core, for seconds each; a run on a GPU machine with many cores
would mostly wait for them.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from benchmarks.cases import OURS, precision
from benchmarks.gates import linear_is_exact
from benchmarks.groups import GROUPS, Shapes, exact_cases

MOST_PROCESSES = 32


def compile_all(shapes: Shapes, device: str) -> None:
    """Call every gate and every case that compiles once; what fails here is told by the run."""
    started = time.perf_counter()
    tasks = list(tasks_of(shapes, device))
    processes = min(os.cpu_count() or 1, MOST_PROCESSES, len(tasks))
    context = multiprocessing.get_context("spawn")
    failed = 0
    with ProcessPoolExecutor(processes, context, initializer=_one_thread) as pool:
        waiting = [pool.submit(*task) for task in tasks]
        for done in as_completed(waiting):
            failed += done.exception() is not None
    seconds = time.perf_counter() - started
    print(
        f"compiled in {seconds:.0f} s by {processes} processes; {failed} of {len(tasks)} failed",
        file=sys.stderr,
        flush=True,
    )


def tasks_of(shapes: Shapes, device: str) -> Iterator[tuple[Any, ...]]:
    """Functions with their arguments: what is small and shared by the gates first, these last."""
    names = [name for name, entries in shapes.items() if entries]
    exact = [case for name in names for case in exact_cases(name, device)]
    yield from ((linear_is_exact, device, *case) for case in dict.fromkeys(exact))
    for name in names:
        yield from ((compile_part, name, part, device) for part in parts(shapes[name]))
    yield from ((GROUPS[name].check, device) for name in names)


def parts(entries: list[Any]) -> Iterator[Any]:
    """The entries, one dtype and one p at a time."""
    for entry in entries:
        for dtype in entry.dtypes:
            part = replace(entry, dtypes=(dtype,))
            if hasattr(entry, "p"):
                yield from (replace(part, p=(p,)) for p in entry.p)
            else:
                yield part


def compile_part(name: str, part: Any, device: str) -> None:
    """The cases of a part of an entry that compile something."""
    for case in GROUPS[name].cases(part, device):
        if case.implementation.startswith(OURS) or "compiled" in case.implementation:
            with precision(case.dtype):
                case.call()


def _one_thread() -> None:
    """One compiling thread for each process."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    sys.stdout = sys.stderr
