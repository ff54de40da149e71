"""Fit a temperature and a threshold for abstaining on the validation split of a checkpoint.

    python scripts/calibrate.py --checkpoint checkpoints/mnist_cnn --target-risk 0.005
    python scripts/calibrate.py --checkpoint checkpoints/mnist_cnn --target-coverage 0.9
    python scripts/calibrate.py --checkpoint checkpoints/mnist_cnn --temperature mean

The result, calibration.json in the checkpoint's folder, is what scripts/mc_predict.py applies: it
tempers the predictions and marks each input as accepted or not. --target-risk R promises that at
most a share R of the accepted inputs is wrong, --target-coverage C that at least a share C is
accepted; either for inputs like those of the validation split, with the stated confidence. The
test split is not touched.

Where both a temperature and a target are asked for, each gets a half of the split, drawn with a
fixed seed: a promise may not rest on inputs whose labels shaped the scores.

Exit code 2 means that something in the command, the data or the checkpoint must be put right; the
message says what, and nothing was written.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from bayes_dc.command_line import positive_integer, unsigned_64
from bayes_dc.config import PredictConfig
from bayes_dc.datasets import DataConfig, DatasetError
from bayes_dc.metrics import Policy, PolicyScore
from bayes_dc.train import (
    CalibrationState,
    CheckpointError,
    ModelConfig,
    TemperatureChoice,
    calibrate,
    find_checkpoint,
    load_calibration,
    load_inputs,
    load_model,
    predict_inputs,
    readable,
    resolve_device,
    save_calibration,
    settings_of,
)

_NO_VALIDATION = (
    "checkpoint {folder} was trained without a validation split (data.validation_fraction is 0), "
    "so there is nothing to calibrate on: the network has learnt the training split, and the test "
    "split must stay unseen. Train again with --set data.validation_fraction=0.1."
)
_EXISTS = "checkpoint {folder} is calibrated already. Pass --overwrite to calibrate it anew."
_BEST = (
    "The checkpoint is the epoch of least loss on this very split, so what the split says is a "
    "little too good. Name the folder last to calibrate weights that were not chosen by it."
)


class UsageError(ValueError):
    """The command asks for something that cannot be done; the message says what to change."""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Fit a temperature and a threshold for abstaining on the validation split."
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="output of scripts/train.py")
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "--target-risk", type=_share, metavar="R", help="largest share of wrong accepted inputs"
    )
    target.add_argument(
        "--target-coverage", type=_share, metavar="C", help="least share of accepted inputs"
    )
    add(
        "--confidence",
        type=_share,
        default=0.95,
        metavar="P",
        help="probability that the promise holds (default 0.95)",
    )
    add(
        "--score",
        choices=get_args(PolicyScore),
        default="max_probability",
        help="uncertainty to compare with the threshold (default max_probability: 1 − confidence)",
    )
    add(
        "--temperature",
        choices=get_args(TemperatureChoice),
        default="logits",
        help="temper the logits of every pass (default), the mean of the passes, or none",
    )
    add("--data-root", metavar="DIR", help="folder of the data files; default: that of training")
    add("--passes", type=positive_integer, metavar="T", help="default: that of the configuration")
    add("--seed", type=unsigned_64, default=0, help="seed of the masks (default 0)")
    add(
        "--batch-size",
        type=positive_integer,
        metavar="B",
        help="changes speed and memory, not results",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--overwrite", action="store_true", help="replace a previous calibration")
    return parser.parse_args(argv)


def _share(text: str) -> float:
    """Read a number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1; got {text!r}")
    return value


def run(arguments: argparse.Namespace) -> None:
    """Check what can be checked, then predict, fit, save and say what was found."""
    model, meta = load_model(arguments.checkpoint)
    where = find_checkpoint(arguments.checkpoint)
    if not arguments.overwrite and load_calibration(where) is not None:
        raise UsageError(_EXISTS.format(folder=where))
    if settings_of(DataConfig, "data", meta).validation_fraction == 0:
        raise UsageError(_NO_VALIDATION.format(folder=where))
    device = resolve_device(arguments.device)
    inputs = load_inputs(where, meta, split="validation", root=arguments.data_root)
    assert inputs.labels is not None  # its own data set
    network = settings_of(ModelConfig, "model", meta)
    defaults = settings_of(PredictConfig, "predict", meta)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = predict_inputs(
            model.to(device),
            inputs,
            T=arguments.passes or defaults.passes,
            seed=arguments.seed,
            batch_size=arguments.batch_size or defaults.batch_size,
            device=device,
            keep_samples=True,
            plain=network.p == 0 and network.dropout == 0,
        )
    notes = [*dict.fromkeys(str(one.message) for one in caught)]
    try:
        state = calibrate(
            outputs.prediction,
            inputs.labels,
            temperature=arguments.temperature,
            target_risk=arguments.target_risk,
            target_coverage=arguments.target_coverage,
            score=arguments.score,
            confidence=arguments.confidence,
        )
    except ValueError as error:
        raise UsageError(f"--checkpoint {where}: {error}") from error
    notes += state.notes
    if where.name == "best":
        notes.append(_BEST)
    state = state.model_copy(update={"data": inputs.describe, "notes": tuple(notes)})
    path = save_calibration(where, state)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    for line in summary(state):
        print(line)
    print(f"calibration {readable(path)}")


def summary(state: CalibrationState) -> list[str]:
    """What was found, in a line or two."""
    lines = []
    if (fit := state.fitted) is not None:
        what = {"logits": "logits of every pass", "mean": "mean of the passes"}[fit.kind]
        lines.append(
            f"temperature {fit.value:.4f} ± {fit.standard_error:.4f} on the {what}: NLL "
            f"{fit.nll_before:.4f} → {fit.nll_after:.4f} on the {fit.n} inputs it was fitted on"
        )
    if (policy := state.policy) is not None:
        lines.append(f"policy: accept {policy.score} ≤ {policy.threshold:.6g}; {_promise(policy)}")
        share = policy.accepted / policy.n
        lines.append(
            f"on the {policy.n} inputs it was chosen on: {policy.accepted} accepted "
            f"({share:.1%}), {policy.errors} of them wrong"
        )
    return lines


def _promise(policy: Policy) -> str:
    """What is promised, in words."""
    if policy.target_kind == "risk":
        said = f"at most {policy.bound:.2%} of the accepted inputs are wrong"
    else:
        said = f"at least {policy.bound:.2%} of the inputs are accepted"
    return f"{said} (asked for {policy.target:.2%}), with confidence {policy.confidence:g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except (CheckpointError, DatasetError, UsageError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
