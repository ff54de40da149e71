r"""Predict with uncertainty from a checkpoint and write a report.

    python scripts/mc_predict.py --checkpoint checkpoints/digits_mlp --out results/digits_mlp
    python scripts/mc_predict.py --checkpoint checkpoints/mnist_mlp --data kmnist --out results/k
    python scripts/mc_predict.py --checkpoint checkpoints/mnist_mlp --images *.png --out results/own
    python scripts/mc_predict.py --checkpoint checkpoints/mnist_mlp --out results/all \
        --ood fashion_mnist kmnist --shift --compare checkpoints/mnist_dropout --seeds 0 1 2

Images are turned upright (EXIF), converted to the network's channels (1: grey, 3: RGB; transparency
is dropped), resized to its height and width without keeping the aspect ratio, and normalised as in
training. Inputs of a data set are numbered by their position in the split; masks are keyed by it,
so batch size, --limit and device do not change a prediction. With torchrun the processes share the
batches, and the report is that of one process. A temperature and a policy that
scripts/calibrate.py saved in the checkpoint are applied, unless --no-calibration.

Relative paths are relative to the current folder. Exit code 2 means that something in the command,
the data or the checkpoint must be put right; the message says what, and nothing was written.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from bayes_dc.command_line import positive_integer, unsigned_64
from bayes_dc.config import PredictConfig
from bayes_dc.datasets import SHIFTS, DatasetError, DatasetName
from bayes_dc.mc import Convergence, Prediction
from bayes_dc.report import (
    TURNED,
    Cost,
    Evaluation,
    Named,
    OODSet,
    ReportError,
    RotatedInput,
    SeedRun,
    ShiftPoint,
    ShiftSweep,
    Temperature,
    check_output,
    describe_environment,
    peak_memory,
    shift_point,
    write_report,
)
from bayes_dc.train import (
    CalibrationState,
    CheckpointError,
    CheckpointMeta,
    Inputs,
    ModelConfig,
    Outputs,
    Ranks,
    TrainingError,
    changed_inputs,
    joined_ranks,
    load_calibration,
    load_images,
    load_inputs,
    load_model,
    load_other,
    predict_inputs,
    readable,
    resolve_device,
    settings_of,
    turned_input,
    turned_inputs,
)

RANK_TIMEOUT_SECONDS = 600
CONVERGENCE_INPUTS = 1000
"""Convergence in T is shown for the first inputs: means over more say the same."""

_PLAIN = (
    "checkpoint {folder} is a plain network: model.p and model.dropout are 0 in its configuration, "
    "so every pass would be equal. Train with --set model.p=0.5 (or model.dropout above 0), or "
    "fine-tune this one with --set init_from={folder} --set model.p=0.25. To see it beside another "
    "network name it with --compare."
)
_DATA_ROOT = "Here --data-root sets data.root; the other settings of data are those of training."
_OOD_ROOT = "Nothing is downloaded for --ood. Name its folder with --ood {name}=DIR."
_OOD_FILES = "Nothing is downloaded for --ood."
_OOD_TASK = (
    "The set {name} holds the very inputs of the task: what tells the two apart means nothing."
)
_OTHER_INPUTS = (
    "--compare {folder}: its inputs are not those of {first} (other classes, data or validation "
    "split). Compare networks that were trained on the same data set, or name one with --data."
)


class UsageError(ValueError):
    """The command asks for something that cannot be done; the message says what to change."""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Predict with uncertainty and write a report.")
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="output of scripts/train.py")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the report")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", choices=get_args(DatasetName), help="default: that of training")
    source.add_argument("--images", type=Path, nargs="+", metavar="FILE", help="image files")
    add("--data-root", metavar="DIR", help="folder of the data files; default: that of training")
    add("--split", choices=("test", "validation", "train"), help="default: test")
    add("--limit", type=positive_integer, metavar="N", help="only the first N inputs, of --ood too")
    add("--passes", type=positive_integer, metavar="T", help="default: that of the configuration")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=unsigned_64, default=0, help="seed of the masks (default 0)")
    seeds.add_argument(
        "--seeds",
        type=unsigned_64,
        nargs="+",
        metavar="S",
        help="predict once for each; the report is of the first and shows the spread over all",
    )
    add(
        "--ood",
        type=_data_set,
        nargs="+",
        default=[],
        metavar="NAME[=DIR]|LABEL=FILE.npz",
        help="data sets of another kind (test split): does the network know that it does not know?",
    )
    add(
        "--shift",
        nargs="*",
        choices=(*SHIFTS, TURNED),
        metavar="NAME",
        help=f"change the inputs, five severities; names: {', '.join(SHIFTS)}, and {TURNED} (half "
        "a turn in 12 steps); without names all",
    )
    add(
        "--shift-limit",
        type=positive_integer,
        default=1000,
        metavar="N",
        help="inputs of --shift (1000)",
    )
    add(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="other checkpoints, of plain networks too, side by side on the same inputs",
    )
    add("--no-calibration", action="store_true", help="leave calibration.json unread")
    add(
        "--batch-size",
        type=positive_integer,
        metavar="B",
        help="changes speed and memory, not results",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--overwrite", action="store_true", help="replace the report in --out")
    arguments = parser.parse_args(argv)
    if arguments.images:
        for option, value in (("--split", arguments.split), ("--data-root", arguments.data_root)):
            if value is not None:
                parser.error(f"argument {option}: not read with --images; leave it out")
    labels = [label for label, *_ in arguments.ood]
    if len(set(labels)) < len(labels):
        parser.error(f"argument --ood: every set must have a name of its own; got {labels}")
    arguments.split = arguments.split or "test"
    arguments.seeds = list(dict.fromkeys(arguments.seeds or [arguments.seed]))
    if arguments.shift == []:
        arguments.shift = [*SHIFTS, TURNED]
    return arguments


def _data_set(text: str) -> tuple[str, DatasetName, str | None]:
    """Read NAME, NAME=DIR or LABEL=FILE.npz: label, data set, where its files are."""
    name, equals, root = text.partition("=")
    for known in get_args(DatasetName):
        if name == known and (root or not equals):
            return name, known, root or None
    if name and root.endswith(".npz"):
        return name, "npz", root
    known = ", ".join(get_args(DatasetName))
    text = f"must be NAME, NAME=DIR or LABEL=FILE.npz, NAME one of {known}; got {text!r}"
    raise argparse.ArgumentTypeError(text)


@dataclass(frozen=True)
class Network:
    """A checkpoint that was opened, and how it is to predict."""

    folder: Path
    name: str
    model: nn.Module
    meta: CheckpointMeta
    plain: bool
    calibration: CalibrationState | None
    T: int
    batch_size: int
    device: torch.device
    ranks: Ranks

    def predict(
        self, inputs: Inputs, seed: int, *, keep: bool = False, curve: Convergence | None = None
    ) -> Outputs:
        """Predict all inputs; ``curve`` is given the samples of the first."""
        labels, calibration = inputs.labels, self.calibration
        adjusted = calibration is not None and calibration.fitted is not None

        def watch(part: Prediction, positions: Tensor) -> None:
            first = positions < CONVERGENCE_INPUTS
            if curve is not None and part.samples is not None and first.any():
                known = None if labels is None else labels[positions[first]]
                curve.update(part.samples[:, first], known)

        return predict_inputs(
            self.model,
            inputs,
            T=self.T,
            seed=seed,
            batch_size=min(self.batch_size, len(inputs)),
            device=self.device,
            keep_samples=keep,
            adjust=calibration.temper if adjusted and calibration is not None else None,
            watch=None if curve is None or self.plain else watch,
            watched=CONVERGENCE_INPUTS,
            plain=self.plain,
            ranks=self.ranks,
        )


def open_network(folder: Path, name: str, arguments: argparse.Namespace, ranks: Ranks) -> Network:
    """Open a checkpoint with its calibration."""
    model, meta = load_model(folder)
    network = settings_of(ModelConfig, "model", meta)
    defaults = settings_of(PredictConfig, "predict", meta)
    device = resolve_device(arguments.device)
    return Network(
        folder=folder,
        name=name,
        model=model.to(device),
        meta=meta,
        plain=network.p == 0 and network.dropout == 0,
        calibration=None if arguments.no_calibration else load_calibration(folder),
        T=arguments.passes or defaults.passes,
        batch_size=arguments.batch_size or defaults.batch_size,
        device=device,
        ranks=ranks,
    )


def open_inputs(network: Network, arguments: argparse.Namespace) -> Inputs:
    """Open what is to be predicted."""
    if arguments.images:
        return load_images(network.meta, arguments.images[: arguments.limit])
    try:
        return load_inputs(
            network.folder,
            network.meta,
            split=arguments.split,
            data=arguments.data,
            root=arguments.data_root,
            limit=arguments.limit,
        )
    except DatasetError as error:
        raise DatasetError(f"{error} {_DATA_ROOT}" if _names_settings(error) else error) from error


def _names_settings(error: DatasetError) -> bool:
    """Whether a message names settings of training, which are options of other names here."""
    return "data.root" in str(error) or "data.download" in str(error)


def evaluate(
    network: Network, inputs: Inputs, arguments: argparse.Namespace, seeds: Sequence[int]
) -> Evaluation:
    """Predict everything that was asked for with one network."""
    seed, labels = seeds[0], inputs.labels
    curve = Convergence()
    outputs = network.predict(inputs, seed, curve=curve)
    memory, kind = peak_memory(network.device)
    state, prediction = network.calibration, outputs.prediction
    fitted = None if state is None else state.fitted
    evaluation = Evaluation(
        prediction=prediction,
        ids=inputs.ids,
        class_names=network.meta.class_names,
        image=inputs.image,
        cost=Cost(outputs.seconds, memory, kind),
        labels=labels,
        mean_network=outputs.mean_network,
        energy=outputs.energy,
        name=network.name,
        data=inputs.describe,
        checkpoint={"folder": readable(network.folder)} | network.meta.model_dump(mode="json"),
        run={"device": str(network.device), "batch_size": min(network.batch_size, len(inputs))},
        environment=describe_environment(network.device),
        nonfinite_inputs=outputs.nonfinite,
        temperature=Temperature(fitted.value, fitted.kind, fitted.n) if fitted else None,
        policy=state.policy if state else None,
        convergence=() if network.plain or prediction.T == 1 else curve.compute(),
    )
    others = [network.predict(inputs, other).prediction for other in seeds[1:]]
    runs = [SeedRun(*pair) for pair in zip(seeds, [prediction, *others], strict=True)]
    return replace(
        evaluation,
        seeds=runs,
        ood=[foreign(network, one, arguments) for one in arguments.ood],
        shift=sweep(network, inputs, arguments) if arguments.shift else None,
    )


def foreign(
    network: Network, one: tuple[str, DatasetName, str | None], arguments: argparse.Namespace
) -> OODSet:
    """Predict the test split of a set of another kind: label, data set, where its files are."""
    label, name, root = one
    try:
        inputs = load_other(network.meta, name, root=root, limit=arguments.limit)
    except DatasetError as error:
        remedy = _OOD_ROOT.format(name=name) if root is None else _OOD_FILES
        raise DatasetError(f"{error} {remedy}" if _names_settings(error) else error) from error
    outputs = network.predict(inputs, arguments.seeds[0])
    return OODSet(
        name=label,
        prediction=outputs.prediction,
        image=inputs.image,
        mean_network=outputs.mean_network,
        energy=outputs.energy,
        data=inputs.describe,
    )


def sweep(network: Network, inputs: Inputs, arguments: argparse.Namespace) -> ShiftSweep:
    """Predict changed inputs, one change and severity after the other."""
    count, seed = min(arguments.shift_limit, len(inputs)), arguments.seeds[0]
    clean = inputs.with_pixels(np.stack([inputs.image(i) for i in range(count)]))
    unchanged = network.predict(clean, seed).prediction

    def point(name: str, severity: float, changed: Inputs) -> ShiftPoint:
        predicted = network.predict(changed, seed).prediction
        return shift_point(name, severity, predicted, changed.labels)

    points = [shift_point(name, 0, unchanged, clean.labels) for name in arguments.shift]
    names = [name for name in arguments.shift if name != TURNED]
    points += [point(*one) for one in changed_inputs(inputs, names, count=count, seed=seed)]
    if TURNED not in arguments.shift:
        return ShiftSweep(points)
    points += [point(TURNED, *one) for one in turned_inputs(inputs, count=count)]
    return ShiftSweep(points, None if network.plain else turn(network, clean, unchanged, seed))


def turn(network: Network, inputs: Inputs, prediction: Prediction, seed: int) -> RotatedInput:
    """Turn the first input that is predicted right, or the first, and keep every draw."""
    index, label = 0, None
    if inputs.labels is not None:
        index = int((prediction.predicted == inputs.labels).int().argmax())
        label = int(inputs.labels[index])
    degrees, steps = turned_input(inputs, index)
    samples = network.predict(steps, seed, keep=True).prediction.samples
    assert samples is not None
    pictures = [steps.image(k) for k in range(len(degrees))]
    return RotatedInput(inputs.ids[index], label, degrees, pictures, samples)


def compare(
    evaluation: Evaluation, names: Sequence[str], arguments: argparse.Namespace, ranks: Ranks
) -> tuple[list[Named], list[str]]:
    """Evaluate the other checkpoints on the same inputs; what is odd about their calibration."""
    found, odd = [], []
    for folder, name in zip(arguments.compare, names, strict=True):
        network = open_network(folder, name, arguments, ranks)
        inputs = open_inputs(network, arguments)
        same = network.meta.class_names == evaluation.class_names
        if not same or inputs.describe != evaluation.data or inputs.ids != evaluation.ids:
            first = arguments.checkpoint
            raise UsageError(_OTHER_INPUTS.format(folder=folder, first=first))
        found.append(Named(name, evaluate(network, inputs, arguments, arguments.seeds[:1])))
        if network.calibration is not None and not network.plain:
            said = network.calibration.mismatches(T=network.T, seed=arguments.seeds[0])
            odd += [f"{name}: {one}" for one in said]
    return found, odd


def names_of(folders: Sequence[Path]) -> list[str]:
    """Short names of checkpoints: of the run, or the whole path where that is not enough."""
    paths = [readable(folder) for folder in folders]
    whole = [folder.resolve() for folder in folders]
    short = [readable(Path(f.parent.name if f.name in ("best", "last") else f.name)) for f in whole]
    return [s if short.count(s) == 1 else p for s, p in zip(short, paths, strict=True)]


def run(arguments: argparse.Namespace, ranks: Ranks) -> None:
    """Check everything that can be checked, then predict, write and say where the report is."""
    if ranks.is_main:
        check_output(arguments.out, overwrite=arguments.overwrite)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device. Use --device cpu or auto.")
    own, *others = names_of([arguments.checkpoint, *arguments.compare])
    network = open_network(arguments.checkpoint, own, arguments, ranks)
    if network.plain:
        raise UsageError(_PLAIN.format(folder=arguments.checkpoint))
    with ranks.main_first():
        inputs = open_inputs(network, arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluation = evaluate(network, inputs, arguments, arguments.seeds)
        compared, odd = compare(evaluation, others, arguments, ranks)
        evaluation = replace(evaluation, compared=compared)
    said = ranks.gather([str(warning.message) for warning in caught])
    notes = [*inputs.notes, *(text for one in said for text in one)]
    if network.calibration is not None:
        notes += network.calibration.mismatches(T=network.T, seed=arguments.seeds[0])
    notes += odd
    task = inputs.describe.get("sha256")
    notes += [_OOD_TASK.format(name=o.name) for o in evaluation.ood if o.data.get("sha256") == task]
    if not ranks.is_main:
        return
    notes = list(dict.fromkeys(notes))
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    try:
        evaluation = replace(evaluation, warnings=notes)
        page = write_report(evaluation, arguments.out, overwrite=arguments.overwrite)
    except OSError as error:
        raise UsageError(
            f"cannot write the report {arguments.out}: {error.strerror or error}. The old one, if "
            "any, is kept; make room or choose another --out."
        ) from error
    print(headline(arguments.out / "report.json"))
    print(f"report {readable(page)}")


def headline(path: Path) -> str:
    """The numbers of a report that was written, in one line."""
    document = json.loads(path.read_text(encoding="utf-8"))
    wanted = ("accuracy", "nll", "brier", "ece", "entropy", "mutual_information")
    found = {k: document["metrics"][k]["monte_carlo"] for k in wanted if k in document["metrics"]}
    numbers = ", ".join(f"{k} {float(estimate['value']):.4f}" for k, estimate in found.items())
    n, T, cost = document["n"], document["run"]["T"], document["cost"]["ms_per_example"]
    return f"{n} inputs, T={T}, {cost:.3g} ms each: {numbers}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    try:
        with joined_ranks(arguments.device, RANK_TIMEOUT_SECONDS) as ranks:
            run(arguments, ranks)
    except (
        CheckpointError,
        DatasetError,
        ReportError,
        TrainingError,
        UsageError,
        OSError,
    ) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
