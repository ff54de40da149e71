"""Checkpoints: what is saved comes back bit for bit; what is damaged or foreign is refused."""

import errno
import hashlib
import json
import os
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from bayes_dc.nn import DropConnectLinear
from bayes_dc.train import (
    CheckpointError,
    find_checkpoint,
    load_checkpoint,
    load_model,
    load_train_state,
    save_checkpoint,
)
from bayes_dc.train.checkpoint import load_weights

STATE = {"step": 7, "tensor": torch.arange(3), "nested": {"lr": 0.1, "flags": [True, None]}}


@pytest.fixture
def saved(make_run):
    """A saved network with DropConnect: returns run and folder."""
    run = make_run(p=0.1)
    folder = run.folder.last
    meta = run.meta.model_copy(update={"epoch": 2, "step": 10, "metrics": {"train_loss": 0.5}})
    save_checkpoint(folder, run.model, meta, STATE)
    return run, folder


def edit_meta(folder, **changes):
    path = folder / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reseal(folder, name, content):
    """Replace a file and make its checksum fit, as someone who means harm would."""
    (folder / name).write_bytes(content)
    checksums = json.loads((folder / "meta.json").read_text())["sha256"]
    edit_meta(folder, sha256={**checksums, name: hashlib.sha256(content).hexdigest()})


def refusal(action, *args, **kwargs):
    with pytest.raises(CheckpointError) as caught:
        action(*args, **kwargs)
    return str(caught.value)


def test_everything_comes_back(saved):
    run, folder = saved
    meta, state = load_checkpoint(folder)
    own = run.model.state_dict()
    assert sorted(state) == sorted(own)
    assert all(torch.equal(state[name], own[name]) for name in own)
    assert (meta.epoch, meta.step, meta.metrics) == (2, 10, {"train_loss": 0.5})
    assert meta.class_names == run.data.class_names
    assert meta.input_shape == run.data.input_shape
    assert meta.normalisation == run.data.normalisation
    assert meta.config == run.meta.config
    restored = load_train_state(folder)
    assert torch.equal(restored.pop("tensor"), STATE["tensor"])
    assert restored == {k: v for k, v in STATE.items() if k != "tensor"}


def test_masks_of_every_layer_are_on_record(saved):
    run, folder = saved
    meta, _ = load_checkpoint(folder)
    layers = {n: m for n, m in run.model.named_modules() if isinstance(m, DropConnectLinear)}
    assert len(layers) == 2
    assert {n: (r.p, r.p_effective, r.mask_layer) for n, r in meta.layers.items()} == {
        n: (m.p, m.p_effective, m.mask_layer) for n, m in layers.items()
    }
    assert all(record.p == 0.1 for record in meta.layers.values())


@pytest.mark.parametrize("p", [0, 0.5])
def test_rebuilt_network_gives_the_same_outputs(make_run, p):
    run = make_run(p=p, hidden=(6, 4))
    save_checkpoint(run.folder.last, run.model, run.meta)
    model, _ = load_model(run.folder.last)
    x = torch.rand(5, 1, 3, 3)
    assert not model.training
    assert torch.equal(model(x), run.model.eval()(x))


def test_tied_and_strided_weights_are_saved(tmp_path, make_run):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias = nn.Parameter(torch.arange(6.0)[::2])
    save_checkpoint(tmp_path / "c", model, make_run().meta)
    _, state = load_checkpoint(tmp_path / "c")
    assert torch.equal(state["1.weight"], state["0.weight"])
    assert state["0.bias"].tolist() == [0, 2, 4]


def test_run_folder_means_best_else_last(saved):
    run, folder = saved
    assert find_checkpoint(run.folder.path) == folder
    save_checkpoint(run.folder.best, run.model, run.meta)
    assert find_checkpoint(run.folder.path) == run.folder.best
    assert load_checkpoint(run.folder.path)[0].epoch == 0
    assert load_checkpoint(folder)[0].epoch == 2


def test_folder_that_a_kill_left_under_its_old_name(saved):
    run, folder = saved
    os.rename(folder, folder.with_name("last.old"))
    (folder.with_name("last.tmp")).mkdir()
    assert load_checkpoint(folder)[0].epoch == 2
    assert load_checkpoint(run.folder.path)[0].epoch == 2
    assert load_model(folder)[1].step == 10


def test_full_disk_keeps_the_previous_checkpoint(saved, monkeypatch):
    run, folder = saved
    with torch.no_grad():
        run.model[1].weight.zero_()

    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        text = refusal(save_checkpoint, folder, run.model, run.meta)
    assert f"cannot write checkpoint {folder}: No space left on device. The previous one" in text
    assert "free 1 MiB or name another output_dir" in text
    meta, state = load_checkpoint(folder)
    assert meta.epoch == 2
    assert state["1.weight"].any()


def test_missing_folder(tmp_path):
    text = refusal(load_checkpoint, tmp_path / "none")
    assert text.startswith(f"no checkpoint at {tmp_path / 'none'}: there is no such folder. Train")


def test_folder_of_something_else(tmp_path):
    text = refusal(load_checkpoint, tmp_path)
    assert "it holds neither meta.json nor a folder best or last with one. Name the" in text


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.pt"])
def test_missing_file(saved, name):
    _, folder = saved
    (folder / name).unlink()
    load = load_checkpoint if name.startswith("model") else load_train_state
    assert f"{name} is missing. Copy the folder as a whole" in refusal(load, folder)


def test_checkpoint_without_training_state(make_run):
    run = make_run()
    save_checkpoint(run.folder.best, run.model, run.meta)
    assert "train_state.pt is missing" in refusal(load_train_state, run.folder.best)


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.pt"])
@pytest.mark.parametrize("change", ["cut", "flip"])
def test_truncated_or_changed_file(saved, name, change):
    _, folder = saved
    content = bytearray((folder / name).read_bytes())
    if change == "cut":
        del content[-100:]
    else:
        content[-1] ^= 1
    (folder / name).write_bytes(content)
    load = load_checkpoint if name.startswith("model") else load_train_state
    text = refusal(load, folder)
    assert text.startswith(f"{folder / name} is truncated or was changed: its SHA-256 is not")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_meta_that_is_not_json(saved, content):
    _, folder = saved
    (folder / "meta.json").write_bytes(content)
    assert f"{folder / 'meta.json'} cannot be read: " in refusal(load_checkpoint, folder)


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"schema_name": "other"}'])
def test_foreign_meta(saved, content):
    _, folder = saved
    (folder / "meta.json").write_text(content)
    text = refusal(load_checkpoint, folder)
    assert "meta.json was not written by bayes_dc: schema_name must be bayes_dc.checkpoint" in text


def test_other_schema_version(saved):
    _, folder = saved
    edit_meta(folder, schema_version=2, package_version="9.9")
    text = refusal(load_checkpoint, folder)
    assert "schema version 2; this version reads 1. Use bayes_dc 9.9, which wrote it" in text


META = [
    ({"class_names": "abc"}, "class_names: Input should be a valid"),
    ({"class_names": []}, "class_names: "),
    ({"input_shape": [1, 0, 3]}, "input_shape.1: Input should be greater than or equal to 1"),
    ({"seed": "1"}, "seed: Input should be a valid integer"),
    ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
    ({"seed": 2**64}, "seed: Input should be less than 18446744073709551616"),
    ({"normalisation": {"mean": [0.5], "std": [0.0]}}, "normalisation: Value error, mean and std"),
    (
        {"normalisation": {"mean": [0.5] * 3, "std": [1.0] * 3}},
        ": Value error, normalisation has constants for 3 channels, input_shape [1, 3, 3] has 1",
    ),
    ({"path": "/etc/passwd"}, "path: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("changes", "message"), META)
def test_meta_with_wrong_fields(saved, changes, message):
    _, folder = saved
    edit_meta(folder, **changes)
    assert f"meta.json cannot be read: {message}" in refusal(load_checkpoint, folder)


@pytest.mark.parametrize("model", [None, {"name": "resnet"}, {"p": 2}])
def test_meta_with_an_unusable_configuration(saved, model):
    run, folder = saved
    edit_meta(folder, config={**run.meta.config, "model": model})
    assert "meta.json cannot be read: " in refusal(load_model, folder)


def test_file_names_in_meta_are_never_opened(saved, tmp_path):
    _, folder = saved
    checksums = json.loads((folder / "meta.json").read_text())["sha256"]
    edit_meta(folder, sha256={**checksums, "../../secret": "0", "/etc/passwd": "0"})
    assert load_checkpoint(folder)[0].epoch == 2


def test_class_count_is_compared(saved):
    _, folder = saved
    load_model(folder, classes=3)
    text = refusal(load_model, folder, classes=10)
    assert "was trained for 3 classes; the data has 10. Use the data set it was trained on" in text


def change_weights(folder, change):
    state = safetensors.torch.load((folder / "model.safetensors").read_bytes())
    change(state)
    reseal(folder, "model.safetensors", safetensors.torch.save(state))


WEIGHTS = [
    (lambda s: s.pop("1.bias"), "missing 1.bias"),
    (lambda s: s.update(extra=torch.zeros(1)), "unexpected extra"),
    (
        lambda s: s.update({"1.bias": torch.zeros(9)}),
        "1.bias is float32 [9] and should be float32 [8]",
    ),
    (
        lambda s: s.update({"1.bias": torch.zeros(8).half()}),
        "1.bias is float16 [8] and should be float32",
    ),
    (
        lambda s: s.update({"module.1.bias": s.pop("1.bias")}),
        "missing 1.bias; unexpected module.1.bias",
    ),
]


@pytest.mark.parametrize(("change", "message"), WEIGHTS)
def test_weights_that_do_not_fit(saved, change, message):
    _, folder = saved
    change_weights(folder, change)
    text = refusal(load_model, folder)
    assert f"do not fit the network of its configuration: {message}" in text
    assert str(folder / "model.safetensors") in text


def test_weights_that_do_not_fit_change_nothing(saved, tmp_path):
    run, _ = saved
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    half = {name: value + 1 for name, value in list(before.items())[:-1]}
    refusal(load_weights, run.model, half, tmp_path)
    assert all(torch.equal(run.model.state_dict()[name], before[name]) for name in before)


def test_file_that_is_not_safetensors(saved):
    _, folder = saved
    reseal(folder, "model.safetensors", b"\xff" * 64)
    assert "model.safetensors cannot be read: " in refusal(load_checkpoint, folder)


def test_masks_that_this_version_would_make_differently(saved):
    _, folder = saved
    layers = json.loads((folder / "meta.json").read_text())["layers"]
    layers[next(iter(layers))]["p_effective"] = 0.125
    edit_meta(folder, layers=layers)
    assert "the masks of this version differ from those in the checkpoint" in refusal(
        load_model, folder
    )


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("content", [b"", b"(", b"\x80\x02.", b"PK\x03\x04" + bytes(40)])
def test_training_state_that_is_not_ours(saved, content):
    _, folder = saved
    reseal(folder, "train_state.pt", content)
    assert "train_state.pt cannot be read: " in refusal(load_train_state, folder)


@pytest.mark.parametrize("wrapped", [False, True], ids=["pickle", "torch"])
def test_pickled_code_is_not_run(saved, tmp_path, wrapped):
    _, folder = saved
    marker = tmp_path / "marker"
    harm = Harm(str(marker))
    if wrapped:
        torch.save({"optimizer": harm}, tmp_path / "harm")
        content = (tmp_path / "harm").read_bytes()
    else:
        content = pickle.dumps(harm, protocol=2)
    reseal(folder, "train_state.pt", content)
    assert "train_state.pt cannot be read: " in refusal(load_train_state, folder)
    assert not marker.exists()
