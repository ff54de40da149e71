"""Milliseconds of a training step of a configuration, on images that say nothing."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from bayes_dc.config import Config, dump_config
from bayes_dc.datasets import ArraySplit, DatasetBundle, Normalisation
from bayes_dc.train import CheckpointMeta, RunFolder, fit

STEPS = 20


def noise(config: Config) -> DatasetBundle:
    """Images enough for the steps that are timed."""
    samples = STEPS * config.train.batch_size
    images = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8)
    names = tuple(map(str, range(10)))
    unit = Normalisation((0.5,) * 3, (0.25,) * 3)
    split = ArraySplit(images, torch.arange(samples) % 10, names, unit, "noise")
    return DatasetBundle("noise", split, None, split, names, (3, 32, 32), unit)


def step_ms(config: Config, model: nn.Module, meta: CheckpointMeta) -> float:
    """Milliseconds of a training step, from the second epoch on; nothing of it is kept."""
    train = config.train.model_copy(update={"epochs": 3})
    with TemporaryDirectory(prefix="speed-") as folder:
        run = RunFolder(Path(folder))
        rows = fit(model, noise(config), train, run, meta, config_text=dump_config(config))
    return min(1e3 * row["seconds"] / STEPS for row in rows)
