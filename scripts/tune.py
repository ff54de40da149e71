"""Time every candidate launch configuration on this GPU and keep the best of each shape.

    python scripts/tune.py
    python scripts/tune.py --op linear_fwd --shapes mine.yaml --dry-run

Writes bayes_dc/ops/_tuned/<gpu>.yaml, which the launchers read; p = 0.5. An operator is written as
a whole, when all its shapes were measured; the others stay as they are. A candidate that does not
compile for this GPU is skipped and counted; one whose result differs from the default's in any bit
is a bug and stops the run. Exit code 1 means that the budget left operators out, 2 that something
must be put right.
"""

import argparse
import datetime
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayes_dc.ops import _tuned
from bayes_dc.ops._tuned.format import DTYPES, OPS, Entry, Tuned, dump, parse_shapes
from bayes_dc.ops._tuned.measure import (
    Bench,
    Case,
    Kernel,
    Result,
    TuneError,
    compile_ahead,
    measure,
)
from bayes_dc.train.folder import replace_file

FOLDER = Path(_tuned.__file__).parent
_NO_GPU = "error: no CUDA GPU to time on; run this where torch.cuda.is_available() is True"
_EXAMPLE = "linear_fwd: [{dtype: float32, M: 512, N: 256, K: 256}]"


def table(fields: Sequence[str], *rows: Sequence[int]) -> list[dict[str, int]]:
    """Configurations, a row of numbers each."""
    return [dict(zip(fields, row, strict=True)) for row in rows]


_ROW_SHAPES: list[tuple[int, ...]] = [
    *((128, 800, 784), (1024, 1024, 1024), (2048, 2048, 2048), (16384, 1024, 1024)),
    *((100_000, 1024, 784), (1000, 10, 1024), (100_000, 10, 1024), (64, 40, 44)),
]
_GROUPED_SHAPES: list[tuple[int, ...]] = [
    *((1, 128, 1024, 1024), (64, 1024, 2048, 2048), (512, 128, 2048, 2048)),
    *((100, 1000, 1024, 784), (100, 1000, 1024, 1024), (100, 1000, 10, 1024)),
]
SHAPES = {op: _GROUPED_SHAPES if "G" in known.sizes else _ROW_SHAPES for op, known in OPS.items()}
SHAPES["linear_fwd"] = SHAPES["linear_fwd"] + [
    *((8, 1024, 1024), (100, 1024, 1024), (100, 10, 1024), (400, 1024, 1024)),
    *((1600, 1024, 1024), (1600, 10, 1024)),
]
"""Default shapes, in the order of ``OPS[op].sizes``: training and T passes of MLPs."""

_SUMMED = {"fwd": "inputs", "dx": "outputs", "dw": "rows"}
_TILE = ("rows", "outputs", "inputs", "warps", "stages")
# Simpler ones first: among equals the first is kept.
CANDIDATES: dict[str, list[dict[str, int]]] = {
    "linear_fwd": table(
        ("rows", "lanes", "quads", "warps", "registers"),
        *((1, 32, 4, 1, 0), (1, 32, 4, 1, 128), (2, 32, 4, 1, 0), (2, 32, 4, 1, 168)),
        *((1, 32, 4, 4, 168), (1, 32, 2, 4, 168), (1, 32, 2, 8, 128), (1, 32, 2, 16, 128)),
        *((1, 16, 1, 8, 128), (1, 8, 1, 4, 0)),
    ),
    "linear_dx": table(
        ("rows", "quads", "lanes"),
        *((1, 16, 2), (1, 8, 4), (2, 16, 2), (2, 8, 4), (4, 32, 1), (4, 16, 2), (4, 8, 4)),
    ),
    "linear_dw": table(("rows",), (4,), (8,), (16,), (32,)),
    "linear_grouped_fwd": table(
        _TILE,
        *((64, 64, 32, 4, 2), (64, 64, 32, 4, 3), (16, 64, 64, 4, 4), (32, 64, 64, 4, 4)),
        *((64, 64, 64, 4, 3), (64, 128, 64, 4, 3), (128, 64, 64, 4, 3), (128, 128, 64, 4, 3)),
        *((128, 256, 64, 8, 3), (256, 64, 64, 4, 2), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4)),
    ),
    "linear_grouped_dx": table(
        _TILE,
        *((64, 32, 64, 4, 2), (64, 32, 64, 4, 3), (16, 64, 64, 4, 4), (32, 64, 64, 4, 4)),
        *((64, 64, 64, 4, 3), (64, 64, 128, 4, 3), (128, 64, 64, 4, 3), (128, 64, 128, 4, 3)),
        *((128, 64, 256, 8, 3), (256, 64, 64, 4, 2), (256, 64, 128, 8, 3), (256, 64, 128, 8, 4)),
    ),
    "linear_grouped_dw": table(
        _TILE,
        *((32, 64, 64, 4, 2), (32, 64, 64, 4, 3), (64, 64, 64, 4, 3), (64, 64, 128, 4, 3)),
        *((64, 128, 64, 4, 3), (64, 128, 128, 8, 3), (64, 128, 128, 8, 4), (64, 256, 64, 8, 3)),
    ),
    "gaussian_linear": table(
        _TILE,
        *((64, 64, 32, 4, 3), (64, 128, 32, 4, 3), (64, 128, 64, 4, 2), (64, 128, 64, 4, 3)),
        *((128, 64, 32, 4, 3), (128, 64, 64, 4, 3), (128, 128, 32, 8, 3), (128, 128, 32, 8, 4)),
        *((128, 128, 64, 8, 2), (128, 128, 64, 8, 3), (128, 16, 64, 4, 3), (256, 64, 32, 8, 3)),
    ),
}


def candidates_of(op: str, dtype: torch.dtype, config: Callable[..., Any]) -> list[Any]:
    """The candidates for a type: 128 bytes in a step of the tensor cores, of float32, too."""
    found = CANDIDATES[op]
    if op.startswith("linear_grouped") and dtype == torch.float32:
        summed = _SUMMED[op.rpartition("_")[2]]
        least = 32 if summed == "outputs" else 16  # a word of the mask has 32 outputs
        found = [c | {summed: c[summed] // 2} for c in found if c[summed] >= 2 * least]
    return [config(**candidate) for candidate in found]


def load_kernel(op: str) -> Kernel:
    """The launcher of an operator; triton is imported with the first."""
    from bayes_dc.ops import _grouped, _launch
    from bayes_dc.ops.gaussian import factors
    from bayes_dc.ops.gaussian import triton_moments as moments
    from bayes_dc.ops.linear import op as linear
    from bayes_dc.ops.linear import triton_dw, triton_dx, triton_fwd
    from bayes_dc.ops.linear import triton_grouped_dw as grouped_dw
    from bayes_dc.ops.linear import triton_grouped_dx as grouped_dx
    from bayes_dc.ops.linear import triton_grouped_fwd as grouped_fwd

    def partial(case: Case, w: Tensor) -> dict[str, Tensor]:
        settings: Any = _grouped if "G" in case.sizes else _launch
        splits = settings.dw_splits(*(n for name, n in case.sizes.items() if name != "R"))
        shape = (splits, *w.shape)
        return {"partial": w.new_empty(shape, dtype=torch.float32)} if splits > 1 else {}

    def squares(case: Case, w: Tensor) -> dict[str, Tensor]:
        return {"squares": factors.squares(w)}

    def arranged(rows: Tensor) -> Tensor:
        return linear._along_rows(rows) if _grouped.reads_along_rows(rows) else rows

    row, tile, draw = _launch.RowConfig, _grouped.GroupedConfig, moments.GaussianConfig
    return {
        "linear_fwd": Kernel(triton_fwd.launch_fwd, row, _launch.fwd_config),
        "linear_dx": Kernel(triton_dx.launch_dx, row, _launch.dx_config),
        "linear_dw": Kernel(triton_dw.launch_dw, row, _launch.dw_config, room=partial),
        "linear_grouped_fwd": Kernel(grouped_fwd.launch_fwd, tile, _grouped.fwd_config),
        "linear_grouped_dx": Kernel(grouped_dx.launch_dx, tile, _grouped.dx_config),
        "linear_grouped_dw": Kernel(
            grouped_dw.launch_dw, tile, _grouped.dw_config, arrange=arranged, room=partial
        ),
        "gaussian_linear": Kernel(moments.launch_linear, draw, moments.gaussian_config, squares),
    }[op]


def gpu_bench() -> Bench:
    """Times on the current GPU: medians of repeated calls, the cache flushed before each.

    Short ones are repeated inside a graph: from Python, a launch takes longer than they do.
    """
    from triton.errors import TritonError
    from triton.testing import do_bench, do_bench_cudagraph

    def milliseconds(call: Callable[[], None], repeat_ms: float) -> float:
        time_ms = do_bench(call, warmup=2, rep=repeat_ms, return_mode="median")
        if time_ms > 0.3:
            return time_ms
        return do_bench_cudagraph(call, rep=repeat_ms / 10, return_mode="median")  # ten replays

    device = torch.device("cuda", torch.cuda.current_device())
    # The compiler's passes and the driver report a configuration that does not fit as RuntimeError.
    return Bench(device, milliseconds, (TritonError, RuntimeError))


def gpu_workers() -> Executor:
    """Processes that compile: at most 16, one for each core and 2 GiB of the GPU's free memory."""
    workers = max(1, min(16, os.cpu_count() or 1, torch.cuda.mem_get_info()[0] // 2**31))
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, torch.set_float32_matmul_precision, ("high",))


def cases_of(op: str, shapes: Sequence[tuple[int, ...]], extra: Sequence[Case]) -> list[Case]:
    """The default shapes in every type, and those of ``--shapes``; each once."""
    names = OPS[op].sizes
    default = [
        Case(op, dtype, dict(zip(names, shape, strict=True)))
        for dtype in DTYPES.values()
        for shape in shapes
    ]
    return default + [case for case in extra if case.op == op and case not in default]


def read_shapes(path: Path | None) -> list[Case]:
    """The cases of a file of shapes."""
    if path is None:
        return []
    listed = parse_shapes(path.read_text(encoding="utf-8"), str(path))
    return [Case(op, e.dtype, e.sizes) for op, entries in listed.items() for e in entries]


def line_of(result: Result) -> str:
    """A result as a line of the table."""
    gain = 100 * (result.default_ms / result.best_ms - 1)
    config = " ".join(f"{name}={n}" for name, n in result.best._asdict().items())
    why = ", ".join(f"{n} {cause}" for cause, n in sorted(result.skipped.items()))
    skipped = f", skipped {why}" if why else ""
    return (
        f"{result.case!s:46} {result.default_ms:9.4f} {result.best_ms:9.4f} {gain:+6.1f} %  "
        f"{config} ({result.tried} tried{skipped})"
    )


def merged(old: Tuned | None, gpu: str, op: str, results: Sequence[Result]) -> Tuned:
    """The file with the entries of one operator replaced."""
    import triton

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    how = {"torch": str(torch.__version__), "triton": triton.__version__, "date": today}
    entries = [Entry(r.case.dtype, r.case.sizes, r.best._asdict()) for r in results]
    measured = {**(old.measured if old else {}), op: how}
    configs = {**(old.configs if old else {}), op: entries}
    order = [name for name in OPS if name in configs]
    return Tuned(gpu, {o: measured[o] for o in order}, {o: configs[o] for o in order})


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Choose launch configurations for this GPU.")
    parser.add_argument(
        "--op", action="append", choices=list(SHAPES), help="tune only this; may be repeated"
    )
    parser.add_argument("--shapes", type=Path, metavar="FILE", help=f"YAML, e.g. {_EXAMPLE}")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing")
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=float("inf"),
        metavar="S",
        help="start no shape after this time; operators not finished by then stay as they are",
    )
    return parser.parse_args(argv)


def tune_op(
    op: str, cases: Sequence[Case], bench: Bench, pool: Executor, until: float
) -> list[Result] | None:
    """Tune every shape of an operator; None if the clock passes ``until`` before the last."""
    if time.monotonic() >= until:
        return None
    kernel = load_kernel(op)

    def configs(dtype: torch.dtype) -> list[Any]:
        return candidates_of(op, dtype, kernel.config)

    started = time.monotonic()
    compile_ahead(cases, load_kernel, configs, bench, pool)
    print(f"{op}: candidates compiled in {time.monotonic() - started:.0f} s", file=sys.stderr)
    results = []
    for case in cases:
        if time.monotonic() >= until:
            return None
        results.append(measure(case, kernel, configs(case.dtype), bench))
        print(line_of(results[-1]), flush=True)
    return results


def tune(arguments: argparse.Namespace, bench: Bench, pool: Executor, gpu: str) -> list[str]:
    """Tune and write one operator after the other; return those the budget left out."""
    started = time.monotonic()
    path = FOLDER / _tuned.file_name(gpu)
    extra = read_shapes(arguments.shapes)
    tuned = _tuned.load(gpu)
    left_out, written = [], "nothing"
    print(f"{gpu}: milliseconds of the default and of the best configuration, and the gain")
    for op in arguments.op or SHAPES:
        cases = cases_of(op, SHAPES[op], extra)
        results = tune_op(op, cases, bench, pool, started + arguments.budget_seconds)
        if results is None:
            left_out.append(op)
            continue
        tuned = merged(tuned, gpu, op, results)
        if not arguments.dry_run:
            replace_file(path, dump(tuned).encode())
            written = str(path)
    print(f"{time.monotonic() - started:.0f} s; {written} written")
    return left_out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    if not torch.cuda.is_available():
        print(_NO_GPU, file=sys.stderr)
        return 2
    try:
        # The tensor-core kernels take float32 only so; the workers are told the same.
        torch.set_float32_matmul_precision("high")
        with gpu_workers() as pool:
            left_out = tune(arguments, gpu_bench(), pool, torch.cuda.get_device_name())
    except (TuneError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if left_out:
        print(f"the budget left out, as they were: {', '.join(left_out)}", file=sys.stderr)
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
