"""Uncertainty in docs/measured.md: ``python -m benchmarks.uncertainty mnist --seeds 0 1 2``.

    mnist      32c5-p2-64c5-p2-500-10 on all 60 000 images: DropConnect with masks for every row and
               sample, and with a mask for every pass; dropout; the plain network
    cifar10    ResNet-18 trained plainly, and from its weights trained on for 3 epochs with
               DropConnect in the last stage (both kinds of masks) and with dropout

Every row is a configuration of configs/ with the changes in ``ROWS``, one training for a seed.
Measured on each: scores on the test set, selective prediction by entropy, detection of the sets
--ood by entropy, mutual information, maximal probability and energy, test images turned by
0 … 180 degrees, and, with --votes, agreement with people. A line is mean ± standard deviation over
the seeds. What has a result with the same settings in --results is not done again.

--ood takes data sets of this package (fashion_mnist, kmnist, svhn, …; only their test files are
needed) and NAME=FILE.npz; pictures of another size or colour are converted.
"""

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import recipe_runs
from benchmarks.recipe_runs import ROOT, Run
from benchmarks.uncertainty_scores import Options, measure

RESULTS = ROOT / "benchmarks/results/uncertainty.json"
PLAIN = "cifar10_resnet18_plain"
TUNED = "cifar10_resnet18_finetune"
ROWS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "mnist": {
        "DropConnect, row/sample": ("mnist_cnn", ()),
        "DropConnect, pass": ("mnist_cnn", ("model.scope=pass",)),
        "dropout": ("mnist_cnn_dropout", ()),
        "plain": ("mnist_cnn_plain", ()),
    },
    "cifar10": {
        "plain": (PLAIN, ()),
        "DropConnect, row/sample, p = 0.25": (TUNED, ()),
        "DropConnect, row/sample, p = 0.5": (TUNED, ("model.p=0.5",)),
        "DropConnect, pass, p = 0.5": (TUNED, ("model.p=0.5", "model.scope=pass")),
        "dropout": (TUNED, ("model.p=0", "model.select=null", "model.dropout=0.125")),
    },
}
OOD = {"mnist": ("fashion_mnist", "kmnist"), "cifar10": ("svhn",)}


def main() -> int:
    """Train what is asked for, measure all, print the tables; return the exit code."""
    arguments = parse_arguments()
    runs = plan(arguments)
    options = Options(
        tuple(OOD[arguments.group] if arguments.ood is None else arguments.ood),
        arguments.ood_inputs,
        arguments.rotated,
        arguments.rotation_passes,
        None if arguments.votes is None else str(arguments.votes),
    )
    recorded = {**options._asdict(), "ood": list(options.ood)}
    try:
        results = recipe_runs.execute(
            runs,
            out=arguments.out,
            results=arguments.results,
            jobs=arguments.jobs,
            devices=arguments.devices,
            overwrite=arguments.overwrite,
            measure=partial(measure, options=options),
            options={"options": recorded},
        )
    except recipe_runs.USER_ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table(runs, results))
    return int(any(run.name not in results for run in runs))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("group", choices=ROWS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--devices", nargs="+", default=[], metavar="GPU", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--passes", type=int, default=recipe_runs.PASSES, metavar="T")
    parser.add_argument("--ood", nargs="*", metavar="SET", help="default: by group")
    parser.add_argument("--ood-inputs", type=int, default=10_000, metavar="N")
    parser.add_argument("--rotated", type=int, default=1000, metavar="N")
    parser.add_argument("--rotation-passes", type=int, default=50, metavar="T")
    parser.add_argument("--votes", type=Path, metavar="FILE")
    parser.add_argument("--amp", action="store_true", help="predict under bf16 autocast")
    parser.add_argument("--overwrite", action="store_true", help="train again what is there")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    return parser.parse_args()


def plan(arguments: argparse.Namespace) -> list[Run]:
    """The runs in the order of the table."""
    runs = []
    for number, (row, (config, changes)) in enumerate(ROWS[arguments.group].items()):
        for seed in arguments.seeds:
            overrides = (*arguments.overrides, *changes)
            needs = None
            if config == TUNED:
                needs = name_of(PLAIN, 0, seed)
                # The set of --set is that of the plain training, its epochs are not.
                overrides = tuple(o for o in overrides if not o.startswith("train."))
                overrides += (f"init_from={arguments.out / needs}",)
            name = name_of(config, number, seed)
            runs.append(
                Run(
                    name,
                    row,
                    config,
                    seed,
                    overrides,
                    arguments.passes,
                    needs=needs,
                    amp=arguments.amp,
                )
            )
    return runs


def name_of(config: str, number: int, seed: int) -> str:
    """Folder and key of a run."""
    return f"uncertainty_{config}_{number}_seed{seed}"


def table(runs: list[Run], results: dict[str, dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, a block for each group of scores."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run.name in results:
            found.setdefault(run.row, []).append(results[run.name]["scores"])
        else:
            print(f"no result of {run.name}", file=sys.stderr)
    blocks = list(dict.fromkeys(block for rows in found.values() for block in rows[0]))
    lines = [f"seeds {sorted({run.seed for run in runs})}, mean ± sd"]
    for block in blocks:
        if block == "rotation":
            lines += rotation_lines(found)
            continue
        columns = list(dict.fromkeys(c for r in found.values() for c in flat(r[0], block)))
        lines += ["", f"{block:36}" + "".join(f"{column:>28}" for column in columns)]
        for row, seeds in found.items():
            values = [[flat(scores, block).get(column) for scores in seeds] for column in columns]
            lines.append(f"{row:36}" + "".join(f"{spread(column):>28}" for column in values))
    return "\n".join(lines)


def flat(scores: dict[str, Any], block: str) -> dict[str, float]:
    """A block of scores by column."""
    values = scores.get(block, {})
    return values if isinstance(values, dict) else {"": values}


def rotation_lines(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Means over seeds, one line for a row and score, one column for an angle."""
    first = next(iter(found.values()))[0]["rotation"]
    lines = ["", f"{'rotation, degrees':36}{'':10}" + "".join(f"{angle:>8}" for angle in first)]
    for score in next(iter(first.values())):
        for row, seeds in found.items():
            means = [statistics.mean(s["rotation"][angle][score] for s in seeds) for angle in first]
            lines.append(f"{row:36}{score:10}" + "".join(f"{mean:8.3f}" for mean in means))
    return lines


def spread(values: list[float | None]) -> str:
    """Mean ± standard deviation; a dash where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.mean(known):.4f}"
    return f"{mean} ± {statistics.stdev(known):.4f}" if len(known) > 1 else mean


if __name__ == "__main__":
    sys.exit(main())
