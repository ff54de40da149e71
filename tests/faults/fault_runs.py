"""A data set of a few images and the scripts on it: faults are tried where users meet them."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from bayes_dc.train.step import TrainingStep

ROOT = Path(__file__).parents[2]
CONFIG = """\
output_dir: {folder}/out
seed: 3
data: {{name: npz, root: {folder}/images.npz}}
model: {{hidden: [8], p: 0.5}}
train: {{epochs: 3, batch_size: 2, device: cpu}}
predict: {{passes: 4, batch_size: 2}}
"""


def script(name):
    """A script as a module."""
    known = f"fault_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, ROOT / "scripts" / f"{name}.py")
        sys.modules[known] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]


class Folder:
    """A folder with images, a configuration, and what the scripts make of them."""

    def __init__(self, path, *, train=6, test=5, side=8, classes=3):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        arrays = {}
        for part, n in (("train", train), ("test", test)):
            arrays[f"x_{part}"] = rng.integers(0, 256, (n, side, side), dtype=np.uint8)
            arrays[f"y_{part}"] = np.arange(n) % classes
        names = np.array([f"class {i}" for i in range(classes)])
        np.savez(path / "images.npz", class_names=names, **arrays)
        self._configure()

    def _configure(self):
        self.config, self.out = self.path / "run.yaml", self.path / "out"
        self.config.write_text(CONFIG.format(folder=self.path))

    def copy(self, path):
        """The same in another folder."""
        other = object.__new__(Folder)
        other.path = shutil.copytree(self.path, path)
        other._configure()
        return other

    def train(self, *settings, resume=False, overwrite=False):
        """Run scripts/train.py with ``--set`` for each setting; return the exit code."""
        options = [word for setting in settings for word in ("--set", setting)]
        options += ["--resume"] * resume + ["--overwrite"] * overwrite
        return script("train").main([str(self.config), *options])

    def predict(self, *options, checkpoint=None, out="report"):
        """Run scripts/mc_predict.py; return the exit code."""
        words = ["--checkpoint", str(checkpoint or self.out), "--out", str(self.path / out)]
        return script("mc_predict").main([*words, "--device", "cpu", *options])

    def metrics(self):
        """Lines of metrics.jsonl without what depends on the clock."""
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        clock = {"seconds", "samples_per_second"}
        return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


def record_steps(monkeypatch, stop_before=None):
    """Note (step, images, loss) of every step of training; Ctrl-C comes before ``stop_before``."""
    real, seen = TrainingStep.__call__, []

    def step(self, x, y, number, *where):
        if number == stop_before:
            raise KeyboardInterrupt
        loss, correct = real(self, x, y, number, *where)
        seen.append((number, x.clone(), float(loss)))
        return loss, correct

    monkeypatch.setattr(TrainingStep, "__call__", step)
    return seen
