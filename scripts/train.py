"""Train a network from a configuration file and save checkpoints and metrics.

    python scripts/train.py configs/digits_mlp.yaml
    python scripts/train.py configs/mnist_mlp.yaml --set train.epochs=20 --set model.p=0.25
    python scripts/train.py configs/mnist_mlp.yaml --resume
    torchrun --nproc_per_node 2 scripts/train.py configs/mnist_mlp.yaml

With torchrun the processes share every batch; masks, batches and results stay those of one process,
to rounding.

Relative paths are relative to the current folder. Exit code 2 means that something in the command,
the configuration, the data or the checkpoint must be put right; the message says what.
"""

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bayes_dc.config import Config, ConfigError, dump_config, load_config
from bayes_dc.datasets import DatasetError, load_dataset
from bayes_dc.train import (
    CheckpointError,
    CheckpointMeta,
    Ranks,
    RunFolder,
    TrainingError,
    build_model,
    evaluate,
    fit,
    joined_ranks,
    load_model,
    resolve_device,
    start_from,
)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a network from a configuration file.")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML file, see configs/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a setting, e.g. --set train.epochs=5; may be repeated",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="override train.device")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with the run in output_dir")
    again.add_argument(
        "--overwrite", action="store_true", help="start over: remove the run in output_dir"
    )
    return parser.parse_args(argv)


def train(config: Config, ranks: Ranks, *, resume: bool, overwrite: bool) -> None:
    """Check everything that can be checked, then train, evaluate and say where the results are."""
    run = RunFolder(Path(os.path.expanduser(config.output_dir)))
    if ranks.is_main:
        run.check(resume=resume, overwrite=overwrite)
    device = resolve_device(config.train.device)
    with ranks.main_first():
        data = load_dataset(config.data)
    try:
        model = build_model(config.model, data.input_shape, len(data.class_names), seed=config.seed)
    except ValueError as error:  # what the types of the settings cannot know, e.g. p = 1e-9
        raise ConfigError(f"model: {error}") from error
    meta = CheckpointMeta(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        class_names=data.class_names,
        input_shape=data.input_shape,
        normalisation=data.normalisation,
    )
    if config.init_from is not None and not (resume and run.has_checkpoint()):
        start_from(os.path.expanduser(config.init_from), model, meta)
    fit(
        model,
        data,
        config.train,
        run,
        meta,
        config_text=dump_config(config),
        resume=resume,
        overwrite=overwrite,
        ranks=ranks,
    )
    if not ranks.is_main:
        return
    saved, saved_meta = load_model(run.path, classes=len(data.class_names))
    score = evaluate(saved.to(device), data.test, config.train.batch_size, device)
    print(
        f"test error {1 - score.accuracy:.2%} ({score.wrong} of {score.samples}), "
        f"loss {score.loss_nats:.4f} nats: mean-weight network after epoch {saved_meta.epoch}"
    )
    print(f"checkpoint {run.path}")
    if not math.isfinite(score.loss_nats):
        raise TrainingError(
            f"the test loss of the saved network is {score.loss_nats}: its outputs overflow, or a "
            "test input is NaN or infinite. Lower train.optimizer.lr and train again with "
            "--overwrite, or clean the data."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    overrides = list(arguments.overrides)
    if arguments.device is not None:
        overrides.append(f"train.device={arguments.device}")
    try:
        config = load_config(arguments.config, overrides)
        with joined_ranks(config.train.device, config.train.rank_timeout_seconds) as ranks:
            if not ranks.is_main:
                logging.getLogger().setLevel(logging.WARNING)
            train(config, ranks, resume=arguments.resume, overwrite=arguments.overwrite)
    except (CheckpointError, ConfigError, DatasetError, TrainingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; --resume goes on after the last saved epoch", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
