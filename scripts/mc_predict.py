"""Predict with uncertainty from a checkpoint and write a report.

    python scripts/mc_predict.py --checkpoint checkpoints/digits_mlp --out results/digits_mlp
    python scripts/mc_predict.py --checkpoint checkpoints/mnist_mlp --data kmnist --out results/k
    python scripts/mc_predict.py --checkpoint checkpoints/mnist_mlp --images *.png --out results/own

Images are turned upright (EXIF), converted to the network's channels (1: grey, 3: RGB; transparency
is dropped), resized to its height and width without keeping the aspect ratio, and normalised as in
training. Inputs of a data set are numbered by their position in the split; masks are keyed by it,
so batch size, --limit and device do not change a prediction.

Relative paths are relative to the current folder. Exit code 2 means that something in the command,
the data or the checkpoint must be put right; the message says what, and nothing was written.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from bayes_dc import Prediction, predict_with_uncertainty
from bayes_dc.config import PredictConfig
from bayes_dc.datasets import (
    DataConfig,
    DatasetError,
    DatasetName,
    Settings,
    Split,
    load_dataset,
    load_test_split,
)
from bayes_dc.datasets.images import FolderSplit, read_image
from bayes_dc.datasets.split import to_float
from bayes_dc.report import (
    Cost,
    Evaluation,
    ReportError,
    check_output,
    describe_environment,
    join_predictions,
    peak_memory,
    write_report,
)
from bayes_dc.train import (
    CheckpointError,
    CheckpointMeta,
    ModelConfig,
    load_model,
    resolve_device,
)

_PLAIN = (
    "checkpoint {folder} is a plain network: model.p and model.dropout are 0 in its configuration, "
    "so every pass would be equal. Train with --set model.p=0.5 (or model.dropout above 0), or "
    "fine-tune this one with --set init_from={folder} --set model.p=0.25."
)
_DATA_ROOT = "Here --data-root sets data.root; the other settings of data are those of training."


class UsageError(ValueError):
    """The command asks for something that cannot be done; the message says what to change."""


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted.

    Attributes:
        ids: Name of every input.
        labels: Class of every input ``[N]``, or None.
        batch: Gives the inputs of int64 positions ``[b]`` as floats ``[b, C, H, W]``.
        image: Gives one picture as uint8 ``[H, W, C]``.
        describe: What the report says about the data.
        notes: What a reader must know about them.
    """

    ids: tuple[str, ...]
    labels: Tensor | None
    batch: Callable[[Tensor, torch.device], Tensor]
    image: Callable[[int], np.ndarray]
    describe: dict[str, object]
    notes: tuple[str, ...] = ()


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
    add("--limit", type=_positive, metavar="N", help="only the first N inputs")
    add("--passes", type=_positive, metavar="T", help="default: that of the configuration")
    add("--seed", type=_seed, default=0, help="seed of the masks (default 0)")
    add("--batch-size", type=_positive, metavar="B", help="changes speed and memory, not results")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--overwrite", action="store_true", help="replace the report in --out")
    arguments = parser.parse_args(argv)
    if arguments.images:
        for option, value in (("--split", arguments.split), ("--data-root", arguments.data_root)):
            if value is not None:
                parser.error(f"argument {option}: not read with --images; leave it out")
    arguments.split = arguments.split or "test"
    return arguments


def _positive(text: str) -> int:
    """Read a whole number of at least 1."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return value


def _seed(text: str) -> int:
    """Read an unsigned 64-bit number."""
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number in 0 … 2**64 − 1; got {text!r}")
    return value


S = TypeVar("S", bound=Settings)


def _settings(kind: type[S], section: str, meta: CheckpointMeta) -> S:
    """A section of the configuration that the checkpoint was made with."""
    try:
        return kind.model_validate(meta.config.get(section, {}))
    except ValueError as error:
        raise CheckpointError(
            f"section {section} of the configuration in the checkpoint cannot be read ({error}). "
            f"Use bayes_dc {meta.package_version}, which wrote it, or train again."
        ) from error


def load_split(arguments: argparse.Namespace, meta: CheckpointMeta) -> Inputs:
    """Open a split of a data set, on the scale that the network was trained on."""
    trained_on = _settings(DataConfig, "data", meta)
    name = arguments.data or trained_on.name
    settings = trained_on
    if name != trained_on.name:
        size = meta.input_shape[1] if name == "imagefolder" else None
        settings = DataConfig(name=name, root=trained_on.root, image_size=size)
    if arguments.data_root is not None:
        settings = settings.model_copy(update={"root": arguments.data_root})
    if arguments.split == "test":  # the files of the others need not be there
        split = load_test_split(settings, meta.normalisation)
    else:
        bundle = load_dataset(settings, meta.normalisation)
        found = bundle.train if arguments.split == "train" else bundle.validation
        if found is None:
            raise UsageError(
                f"--split validation: {name} has no validation split (validation_fraction is 0 in "
                "the configuration of the checkpoint, or --data names another set). Use --split "
                "test."
            )
        split = found
    if len(split.class_names) != len(meta.class_names):
        raise UsageError(
            f"{name} has {len(split.class_names)} classes; checkpoint {arguments.checkpoint} was "
            f"trained for {len(meta.class_names)}. Use the data set it was trained on "
            f"({trained_on.name}), or pass the files with --images."
        )
    shape = tuple(split.batch(torch.arange(1), torch.device("cpu")).shape[1:])
    if shape != meta.input_shape:
        raise UsageError(
            f"{name} has inputs of shape {list(shape)}; checkpoint "
            f"{arguments.checkpoint} was trained on {list(meta.input_shape)}. Use the data set it "
            f"was trained on ({trained_on.name}), or pass the files with --images."
        )
    count = min(len(split), arguments.limit or len(split))
    same_classes = split.class_names == meta.class_names
    return Inputs(
        ids=_names(split, count),
        labels=split.labels[:count] if same_classes else None,
        batch=split.batch,
        image=split.image,
        describe={
            "name": name,
            "split": arguments.split,
            "inputs in the split": len(split),
            "sha256": _digest(split, count),
        },
        notes=()
        if same_classes
        else (
            f"The classes of {name} ({', '.join(split.class_names)}) are not those of the network "
            f"({', '.join(meta.class_names)}): labels are not used.",
        ),
    )


def _names(split: Split, count: int) -> tuple[str, ...]:
    """Positions in the split, or the paths of its files."""
    if isinstance(split, FolderSplit):
        return tuple(_readable(file) for file in split.files[:count])
    return tuple(map(str, range(count)))


def _readable(file: Path) -> str:
    """A path as text; bytes that are not UTF-8 are shown with escapes."""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def _digest(split: Split, count: int) -> str:
    """SHA-256 of the labels and pictures that are evaluated."""
    digest = hashlib.sha256(split.labels[:count].numpy().astype("<i8").tobytes())
    for i in range(count):
        digest.update(np.ascontiguousarray(split.image(i)).tobytes())
    return digest.hexdigest()


def load_images(arguments: argparse.Namespace, meta: CheckpointMeta) -> Inputs:
    """Read image files in the shape that the network was trained on."""
    files = arguments.images[: arguments.limit]
    channels, height, width = meta.input_shape
    if channels not in (1, 3):
        raise UsageError(
            f"--images: the network takes {channels} channels; images have 1 (grey) or 3 (RGB)."
        )
    digest = hashlib.sha256()
    pictures = []
    for file in files:
        pictures.append(read_image(file, channels, height, width))
        digest.update(file.read_bytes())
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)

    def batch(positions: Tensor, device: torch.device) -> Tensor:
        return to_float(pixels[positions].to(device).contiguous(), meta.normalisation)

    kind = "grey" if channels == 1 else "RGB"
    return Inputs(
        ids=tuple(map(_readable, files)),
        labels=None,
        batch=batch,
        image=pictures.__getitem__,
        describe={
            "name": f"{len(files)} image files",
            "conversion": f"turned upright, {kind}, resized to {width} × {height} pixels",
            "sha256": digest.hexdigest(),
        },
    )


@dataclass(frozen=True)
class Outputs:
    """What a network says about all inputs, on the CPU.

    Attributes:
        prediction: Of T Monte Carlo passes.
        mean_network: Class probabilities of the mean-weight network ``[N, C]``, float64.
        nonfinite: Inputs that hold NaN or infinite values, by position.
        seconds: Wall time of the Monte Carlo passes.
    """

    prediction: Prediction
    mean_network: Tensor
    nonfinite: tuple[int, ...]
    seconds: float


def predict(
    model: nn.Module, inputs: Inputs, *, T: int, seed: int, batch_size: int, device: torch.device
) -> Outputs:
    """Predict batch by batch; masks are keyed by the position of an input, not by its batch."""
    model.eval()
    parts: list[Prediction] = []
    means: list[Tensor] = []
    nonfinite: list[int] = []
    seconds = 0.0
    for positions in _progress(torch.arange(len(inputs.ids)).split(batch_size), len(inputs.ids)):
        x = inputs.batch(positions, device)
        broken = ~x.isfinite().flatten(1).all(dim=1).cpu()
        nonfinite += positions[broken].tolist()
        _wait(device)
        start = time.perf_counter()
        try:
            part = predict_with_uncertainty(model, x, T, seed=seed, sample_ids=positions.to(device))
        except ValueError as error:
            raise UsageError(f"the checkpoint cannot be predicted with: {error}") from error
        _wait(device)
        seconds += time.perf_counter() - start
        parts.append(join_predictions([part]))  # on the CPU: device memory does not grow
        with torch.inference_mode():
            means.append(model(x).double().softmax(dim=1).cpu())
    return Outputs(join_predictions(parts), torch.cat(means), tuple(nonfinite), seconds)


def _progress(batches: Sequence[Tensor], total: int) -> Iterable[Tensor]:
    """Show progress in inputs when a person is watching."""
    with tqdm(total=total, unit="input", disable=not sys.stderr.isatty()) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))


def _wait(device: torch.device) -> None:
    """Wait until the device has finished, so that the clock measures the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run(arguments: argparse.Namespace) -> None:
    """Check everything that can be checked, then predict, write and say where the report is."""
    check_output(arguments.out, overwrite=arguments.overwrite)
    model, meta = load_model(arguments.checkpoint)
    network = _settings(ModelConfig, "model", meta)
    if network.p == 0 and network.dropout == 0:
        raise UsageError(_PLAIN.format(folder=arguments.checkpoint))
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device. Use --device cpu or auto.")
    device = resolve_device(arguments.device)
    load = load_images if arguments.images else load_split
    try:
        inputs = load(arguments, meta)
    except DatasetError as error:
        named = "data.root" in str(error) or "data.download" in str(error)
        raise DatasetError(f"{error} {_DATA_ROOT}" if named else error) from error
    defaults = _settings(PredictConfig, "predict", meta)
    T = arguments.passes or defaults.passes
    batch_size = min(arguments.batch_size or defaults.batch_size, len(inputs.ids))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = predict(
            model.to(device),
            inputs,
            T=T,
            seed=arguments.seed,
            batch_size=batch_size,
            device=device,
        )
    notes = list(dict.fromkeys([*inputs.notes, *(str(warning.message) for warning in caught)]))
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    memory, kind = peak_memory(device)
    evaluation = Evaluation(
        prediction=outputs.prediction,
        ids=inputs.ids,
        class_names=meta.class_names,
        image=inputs.image,
        cost=Cost(outputs.seconds, memory, kind),
        labels=inputs.labels,
        mean_network=outputs.mean_network,
        data=inputs.describe,
        checkpoint={"folder": _readable(arguments.checkpoint)} | meta.model_dump(mode="json"),
        run={"device": str(device), "batch_size": batch_size},
        environment=describe_environment(device),
        warnings=notes,
        nonfinite_inputs=outputs.nonfinite,
    )
    try:
        page = write_report(evaluation, arguments.out, overwrite=arguments.overwrite)
    except OSError as error:
        raise UsageError(
            f"cannot write the report {arguments.out}: {error.strerror or error}. The old one, if "
            "any, is kept; make room or choose another --out."
        ) from error
    print(headline(arguments.out / "report.json"))
    print(f"report {_readable(page)}")


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
        run(arguments)
    except (CheckpointError, DatasetError, ReportError, UsageError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
