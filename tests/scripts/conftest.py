"""A checkpoint of a small network that knows the digits, and the scripts as modules."""

import importlib.resources
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bayes_dc.config import Config
from bayes_dc.datasets import DataConfig, load_dataset
from bayes_dc.train import CheckpointMeta, build_model, save_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mc_predict.py"


@pytest.fixture(scope="session")
def mc_predict():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("mc_predict", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mc_predict"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def digits():
    return load_dataset(DataConfig(name="digits", validation_fraction=0.1))


@pytest.fixture(scope="session")
def make_config():
    """Return a maker of configurations of a small network on digits."""

    def make(**model):
        return Config.model_validate({
            "output_dir": "x",
            "model": {"hidden": [32]} | model,
            "data": {"name": "digits", "validation_fraction": 0.1},
            "predict": {"passes": 6, "batch_size": 16},
        })

    return make


@pytest.fixture(scope="session")
def save_network():
    """Return a function that saves a checkpoint; ``changes`` replace parts of its description."""

    def save(folder, model, config, bundle, **changes):
        parts = {
            "config": config.model_dump(mode="json"),
            "seed": config.seed,
            "class_names": bundle.class_names,
            "input_shape": bundle.input_shape,
            "normalisation": bundle.normalisation,
        }
        save_checkpoint(folder, model, CheckpointMeta(**(parts | changes)))
        return folder

    return save


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, digits, make_config, save_network):
    """A small network, trained on its mean weights."""
    config = make_config()
    model = build_model(config.model, digits.input_shape, 10, seed=0).eval()
    x = digits.train.batch(torch.arange(len(digits.train)), torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), digits.train.labels).backward()
        optimizer.step()
    return save_network(tmp_path_factory.mktemp("run") / "checkpoint", model, config, digits)


@pytest.fixture
def predict(mc_predict, checkpoint, tmp_path):
    """Run the script on the checkpoint; return the exit code and the folder of the report."""

    def run(*options, out="out", folder=checkpoint):
        arguments = ["--checkpoint", str(folder), "--out", str(tmp_path / out), "--device", "cpu"]
        return mc_predict.main([*arguments, *options]), tmp_path / out

    return run


@pytest.fixture
def tune(monkeypatch, tmp_path):
    """The script as a module, writing into an empty folder."""
    spec = importlib.util.spec_from_file_location("tune", SCRIPT.with_name("tune.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tune", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
    return module


@pytest.fixture
def _tf32():
    """Put the switch back that the script turns on."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
