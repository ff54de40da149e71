"""Faults that users of such tools have met: configurations and command lines."""

import csv
import json
import os

import pytest
import torch
from fault_runs import ROOT, Folder, script

from bayes_dc.config import ConfigError, load_active_config, load_config
from bayes_dc.nn import dropconnect_layers
from bayes_dc.ops import dropconnect_linear
from bayes_dc.train import build_model
from bayes_dc.train import outputs as outputs_module
from bayes_dc.types import MaskKey

BASE = "output_dir: out\ndata: {name: digits}\n"


@pytest.fixture
def load(tmp_path):
    """Return a function that reads a configuration from text."""

    def read(text, *overrides):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return read


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a trained network, and its report."""
    folder = Folder(tmp_path_factory.mktemp("trained") / "run")
    assert folder.train() == 0
    return folder


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("5e-4", 0.0005), ("1E-3", 0.001), ("1e5", 100000.0)]
)
def test_numbers_without_a_dot(load, text, value):
    """source: rbgirshick/yacs#46: YAML 1.1 reads them as text."""
    for config in (
        load(BASE + f"train: {{optimizer: {{lr: {text}}}}}"),
        load(BASE, f"train.optimizer.lr={text}"),
    ):
        assert config.train.optimizer.lr == value
        assert isinstance(config.train.optimizer.lr, float)


def test_a_key_given_twice(load):
    """source: yaml/pyyaml#165: the second replaces the first in silence."""
    wanted = r"run\.yaml: line 6: key p is given twice \(first in line 4\)"
    with pytest.raises(ConfigError, match=wanted):
        load(BASE + "model:\n  p: 0.5\n  hidden: [8]\n  p: 0.9\n")


@pytest.mark.parametrize(
    "key", ["init_from", "output_dir", "data.root", "train.grad_clip", "model.select"]
)
def test_none_is_text_in_yaml(load, key):
    """source: hydra-ecosystem/hydra#1473: None is truthy, and a file called None is opened."""
    with pytest.raises(ConfigError, match=rf"{key}: .*write null"):
        load(BASE, f"{key}=None")


def test_null_is_no_value(load):
    """source: hydra-ecosystem/hydra#1473."""
    config = load(BASE, "init_from=null", "train.grad_clip=null", "model.select=null")
    assert config.init_from is config.train.grad_clip is config.model.select is None
    assert load(BASE, "init_from=./None").init_from == "./None"


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("model: {drop_porb: 0.3}", "model.drop_porb", "model.p"),
        ("train: {p: 0.3}", "train.p", "model.p"),
        ("model: {batch_size: 3}", "model.batch_size", "train.batch_size"),
    ],
)
def test_unknown_keys_end_the_run(tmp_path, capsys, text, key, nearest):
    """source: UMEP-dev/SUEWS#1647: they are dropped, and a default is used."""
    path = tmp_path / "run.yaml"
    path.write_text(BASE + text)
    assert script("train").main([str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{key}: unknown key; the nearest valid key is {nearest}" in said


@pytest.mark.parametrize(
    ("word", "value"), [("False", False), ("false", False), ("FALSE", False), ("True", True)]
)
def test_flags_may_be_false(load, word, value):
    """source: ACEsuit/mace#429: any text is true."""
    assert load(BASE, f"train.cuda_graph={word}").train.cuda_graph is value


@pytest.mark.parametrize("word", ["no", "off", "0", '"False"', "nope"])
def test_other_spellings_of_flags_are_refused(load, word):
    """source: ACEsuit/mace#429."""
    with pytest.raises(ConfigError, match=r"train\.cuda_graph: must be true or false; got "):
        load(BASE, f"train.cuda_graph={word}")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("train", ["--resume", "False"]),
        ("train", ["--overwrite=false"]),
        ("train", ["--no-amp"]),
        ("train", ["--amp=false"]),
        ("mc_predict", ["--overwrite", "False"]),
        ("mc_predict", ["--no-calibration=false"]),
    ],
)
def test_options_of_commands_take_no_truth_value(tmp_path, capsys, name, options):
    """source: ACEsuit/mace#429: refused, never taken for true."""
    words = {
        "train": [str(ROOT / "configs/digits_mlp.yaml")],
        "mc_predict": ["--checkpoint", str(tmp_path), "--out", str(tmp_path / "out")],
    }[name]
    with pytest.raises(SystemExit) as stopped:
        script(name).main([*words, *options])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said or "ignored explicit argument" in said


def test_tags_of_python_run_nothing(load, tmp_path, monkeypatch):
    """source: google/slo-generator#173: a full loader runs what the file says."""
    monkeypatch.chdir(tmp_path)
    tag = "!!python/object/apply:os.mkdir ['marker']"
    for read in (
        lambda: load(BASE + f"x: {tag}"),
        lambda: load(BASE, f"model.p={tag}"),
    ):
        with pytest.raises(ConfigError, match=r"tags are not read: remove .*os\.mkdir"):
            read()
    assert not os.path.exists("marker")


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path):
    """source: nlpyang/hiersumm#17: a shipped default lies outside of its range."""
    load_active_config(path) if path.name.startswith("active") else load_config(path)


def test_missing_sections_have_the_documented_defaults(load):
    """source: LAION-AI/Open-Assistant#1008: a missing key ends in a KeyError."""
    config = load(BASE)
    assert config.train.optimizer.name == "adam"
    assert config.train.schedule.name == "constant"
    with pytest.raises(ConfigError) as caught:
        load("")
    assert [line.split(": ", 1)[1] for line in str(caught.value).splitlines()] == [
        "output_dir: is missing and has no default: add it",
        "data: is missing and has no default: add it",
    ]


def test_every_layer_drops_the_share_of_the_settings(load):
    """source: qubvel/efficientnet#135: keep for drop, or a ramp along the network."""
    settings = load(BASE + "model: {hidden: [64, 64], p: 0.1}").model
    model = build_model(settings, (1, 8, 8), 10, seed=0)
    layers = dropconnect_layers(model)
    assert len(layers) == 3
    assert str(model).count("p=0.1") == 3
    x, key = torch.ones(2000, 64), MaskKey(0)
    for layer in layers.values():
        assert layer.p == 0.1
        y = dropconnect_linear(x, torch.ones(1, 64), p=layer.p, key=key, scale="none")
        n = x.numel()
        share = 1 - float(y.sum()) / n
        assert abs(share - 0.1) <= 0.01 * 0.1 + 4 * (0.1 * 0.9 / n) ** 0.5


def test_the_drop_probability_reaches_layers_and_report(tmp_path):
    """source: lukemelas/EfficientNet-PyTorch#7: it is read from the settings and goes nowhere."""
    folder = Folder(tmp_path / "run")
    assert folder.train("model.p=0.37", "train.epochs=1") == 0
    model = build_model(load_config(folder.out / "config.yaml").model, (1, 8, 8), 3, seed=0)
    assert [layer.p for layer in dropconnect_layers(model).values()] == [0.37, 0.37]
    layers = json.loads((folder.out / "last/meta.json").read_text())["layers"]
    assert {layer["p"] for layer in layers.values()} == {0.37}
    assert all(abs(layer["p_effective"] - 0.37) <= 0.0037 for layer in layers.values())


def test_the_table_of_a_prediction(trained, monkeypatch):
    """source: chemprop/chemprop#1204: passes × inputs × classes fit into no table.

    And baal-org/baal#280: the batch size of the settings is ignored; unit8co/darts#2300: the
    command does not draw.
    """
    batches, real = [], outputs_module.predict_with_uncertainty

    def predict(model, x, T, **options):
        batches.append((len(x), T))
        return real(model, x, T, **options)

    monkeypatch.setattr(outputs_module, "predict_with_uncertainty", predict)
    assert trained.predict() == 0
    assert batches == [(1, 1), (2, 4), (2, 4), (1, 4)]  # the first is for the clock
    with (trained.path / "report/predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4"]
    names = [f"prob_class {i}" for i in range(3)]
    for row in rows:
        assert sum(float(row[name]) for name in names) == pytest.approx(1)
        assert float(row["mutual_information"]) > 0


@pytest.mark.parametrize("passes", ["0", "-1", "2.5"])
def test_numbers_of_passes_that_are_none(trained, capsys, passes):
    """source: baal-org/baal#59: zero passes end in an obscure error."""
    with pytest.raises(SystemExit) as stopped:
        trained.predict(f"--passes={passes}", out="none")
    assert stopped.value.code == 2
    wanted = f"argument --passes: must be a whole number of at least 1; got {passes!r}"
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_data_set_without_samples(tmp_path, capsys, part):
    """source: baal-org/baal#59: an empty pool."""
    folder = Folder(tmp_path / "run", **{part: 0})
    assert folder.train() == 2
    said = capsys.readouterr().err
    assert f"images.npz: x_{part} holds no images: both splits are needed" in said
    assert not folder.out.exists()
