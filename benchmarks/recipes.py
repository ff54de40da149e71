"""Experiments of docs/measured.md: ``python -m benchmarks.recipes mnist_cnn --seeds 0 1 2``.

    mnist_mlp    784-800-800-10, DropConnect p = 0.5 (McClure & Kriegeskorte 2016, table 1), plain
    mnist_cnn    32c5-p2-64c5-p2-500-10, the same (table 3), beside MC dropout and the plain network
    cifar10      ResNet-18: DropConnect where it helps, everywhere, MC dropout, plain
    finetune     a plainly trained ResNet-18 converted, as it is and after at most 3 epochs
    sweep        ResNet-18: where DropConnect goes and how much of it, one seed
    speed        milliseconds of a training step of each ResNet-18 of cifar10, one after the other

Every run is a configuration of configs/ for one seed. Runs train side by side in --jobs processes
over the --devices; each is evaluated with T = 100 passes on the whole test set and written to the
results at once, so that a stopped program goes on where it was. Scores are mean ± standard
deviation over the seeds. Training seconds are those of a run among its neighbours.

Exit code 2 means that something in the command, the settings or the data must be put right, 1 that
runs failed; the messages say what and which.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from bayes_dc.command_line import positive_integer, unsigned_64
from benchmarks import recipe_runs
from benchmarks.recipe_runs import PASSES, Run

PLACEMENTS = {
    "everywhere": ["*"],
    "all but the first convolution": ["!conv1"],
    "last stage": ["layer4"],
    "last block and fc": ["layer4.1", "fc"],
    "fc": ["fc"],
}
PROBABILITIES = (0.25, 0.5, 0.75)
CIFAR = ("", "_everywhere", "_dropout", "_plain")
COLUMNS = ("error %", "NLL", "Brier", "ECE")


def main() -> int:
    """Train what is asked for, evaluate all, print the table; return the exit code."""
    arguments = parse_arguments()
    runs = plan(arguments)
    try:
        results = recipe_runs.execute(
            runs,
            out=arguments.out,
            results=arguments.results,
            jobs=arguments.jobs,
            devices=arguments.devices,
            overwrite=arguments.overwrite,
        )
    except recipe_runs.USER_ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table(arguments.recipe, runs, results))
    return int(any(run.name not in results for run in runs))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("mnist_mlp", "mnist_cnn", "cifar10", "finetune", "sweep", "speed")
    parser.add_argument("recipe", choices=names)
    parser.add_argument("--seeds", type=unsigned_64, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=positive_integer, default=1, help="runs side by side")
    parser.add_argument("--devices", nargs="+", default=[], metavar="GPU", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--results", type=Path, default=recipe_runs.RESULTS)
    parser.add_argument("--passes", type=positive_integer, default=PASSES, metavar="T")
    parser.add_argument("--amp", action="store_true", help="evaluate under bf16 autocast")
    parser.add_argument("--overwrite", action="store_true", help="train again what is there")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting of every run, e.g. --set data.root=/data",
    )
    arguments = parser.parse_args()
    for number, seed in enumerate(arguments.seeds):
        if seed in arguments.seeds[:number]:
            parser.error(f"argument --seeds: {seed} is given twice; name every seed once")
    return arguments


def plan(arguments: argparse.Namespace) -> list[Run]:
    """The runs of a recipe, in the order of its table."""

    def run(config: str, row: str, seed: int, *changes: str, **options: Any) -> Run:
        name = options.pop("name", f"{config}_seed{seed}")
        overrides = (*arguments.overrides, *changes)
        return Run(
            name, row, config, seed, overrides, arguments.passes, amp=arguments.amp, **options
        )

    recipe, seeds = arguments.recipe, arguments.seeds
    if recipe in ("mnist_mlp", "mnist_cnn"):
        ends = ("", "_plain") if recipe == "mnist_mlp" else ("", "_dropout", "_plain")
        return [run(recipe + end, recipe + end, seed) for end in ends for seed in seeds]
    base = "cifar10_resnet18"
    if recipe in ("cifar10", "speed"):
        kinds = [base + kind for kind in CIFAR]
        if recipe == "speed":
            size = "train.batch_size=512"
            return [run(kind, kind, 0, size, speed=True, name=f"speed_{kind}") for kind in kinds]
        return [run(kind, kind, seed) for kind in kinds for seed in seeds]
    if recipe == "finetune":
        runs = [run(f"{base}_plain", f"{base}_plain", seed) for seed in seeds]
        for row, untrained in ((f"{base}_converted", True), (f"{base}_finetune", False)):
            for seed in seeds:
                start = f"{base}_plain_seed{seed}"
                options = {"name": f"{row}_seed{seed}", "needs": start, "untrained": untrained}
                change = f"init_from={arguments.out / start}"
                runs.append(run(f"{base}_finetune", row, seed, change, **options))
        return runs
    return [
        run(
            base,
            f"{place}, p = {p}",
            seeds[0],
            f"model.p={p}",
            f"model.select={patterns}",
            name=f"sweep_{number}_{p}",
        )
        for number, (place, patterns) in enumerate(PLACEMENTS.items())
        for p in PROBABILITIES
    ] + [run(f"{base}_plain", "plain", seeds[0], name="sweep_plain")]


def table(recipe: str, runs: list[Run], results: dict[str, dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds of every row that is there."""
    rows: dict[str, list[list[float]]] = {}
    for run in runs:
        result = results.get(run.name)
        if result is None:
            print(f"no result of {run.name}", file=sys.stderr)
            continue
        if recipe == "speed":
            rows.setdefault(run.row, []).append([result["step_ms"]])
            continue
        for kind, scores in result["scores"].items():
            times = [result["train_seconds"], result["predict_seconds"]]
            rows.setdefault(f"{run.row}: {kind}", []).append([*scores, *times])
    columns = ("ms per step",) if recipe == "speed" else (*COLUMNS, "train s", "predict s")
    lines = [f"{recipe}, seeds {sorted({run.seed for run in runs})}, mean ± sd"]
    lines.append(f"{'':60}" + "".join(f"{column:>19}" for column in columns))
    for row, values in rows.items():
        cells = "".join(f"{spread(column):>19}" for column in zip(*values, strict=True))
        lines.append(f"{row:60}{cells}")
    return "\n".join(lines)


def spread(values: tuple[float, ...]) -> str:
    """Mean ± standard deviation, or the value of a single seed."""
    mean = f"{statistics.mean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


if __name__ == "__main__":
    sys.exit(main())
