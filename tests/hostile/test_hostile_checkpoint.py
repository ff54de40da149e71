"""Checkpoints that were cut, changed, made by others or made to do harm: refused by name."""

import io
import json
import os
import pickle
import re

import pytest
import torch
from damage import (
    archive,
    cuts,
    flips,
    parts_of_weights,
    put,
    refused,
    unpacked,
    weights_file,
)

from bayes_dc.train import (
    CheckpointError,
    load_calibration,
    load_checkpoint,
    load_model,
    load_train_state,
    save_checkpoint,
)
from bayes_dc.train.meta import MOST_BYTES

READERS = {
    "model.safetensors": load_model,
    "meta.json": load_model,
    "train_state.pt": load_train_state,
    "calibration.json": load_calibration,
}
EVERY = pytest.mark.parametrize("name", READERS)
SEALED = pytest.mark.parametrize("name", ["model.safetensors", "train_state.pt"])


def refusal(name, folder):
    with pytest.raises(CheckpointError) as caught:
        READERS[name](folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@EVERY
def test_a_file_cut_at_every_hundredth_of_its_length_is_named(checkpoint, name):
    for content in cuts((checkpoint / name).read_bytes()):
        (checkpoint / name).write_bytes(content)
        assert name in refusal(name, checkpoint)


@SEALED
def test_a_cut_file_whose_checksum_was_made_to_fit_is_named(checkpoint, name):
    for content in cuts((checkpoint / name).read_bytes()):
        put(checkpoint, name, content)
        assert f"{name} cannot be read: " in refusal(name, checkpoint)


@SEALED
def test_any_changed_bit_of_the_other_files_is_noticed(checkpoint, name):
    for content in flips((checkpoint / name).read_bytes()):
        (checkpoint / name).write_bytes(content)
        text = refusal(name, checkpoint)
        assert text.startswith(f"{checkpoint / name} is truncated or was changed: its SHA-256")


@pytest.mark.parametrize("name", ["meta.json", "calibration.json"])
def test_a_changed_bit_of_a_description_is_refused_or_another_value(checkpoint, name):
    """They have no checksum: a digit that became another digit is a value like any other."""
    texts = []
    for content in flips((checkpoint / name).read_bytes()):
        (checkpoint / name).write_bytes(content)
        try:
            READERS[name](checkpoint)
        except CheckpointError as error:
            texts.append(str(error))
    assert len(texts) > 50
    assert all(name in text or "model.safetensors" in text for text in texts)


FOREIGN = {
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "an archive": archive({"a": b"b"}),
    "text": b"hello\n" * 50,
    "a page": b"<!doctype html><title>404</title>",
    "nothing": b"",
    "zeros": bytes(1000),
    "a pickle": pickle.dumps({"state_dict": [1, 2]}),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@EVERY
def test_foreign_content_is_named(checkpoint, name, content):
    put(checkpoint, name, content) if name != "meta.json" else (checkpoint / name).write_bytes(
        content
    )
    assert name in refusal(name, checkpoint)


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def harmful(kind, marker):
    if kind == "torch":
        buffer = io.BytesIO()
        torch.save({"optimizer": Harm(marker)}, buffer)
        return buffer.getvalue()
    if kind == "old torch":
        buffer = io.BytesIO()
        torch.save({"optimizer": Harm(marker)}, buffer, _use_new_zipfile_serialization=False)
        return buffer.getvalue()
    return pickle.dumps(Harm(marker), protocol=int(kind))


@pytest.mark.parametrize("kind", ["0", "2", "5", "torch", "old torch"])
@EVERY
def test_pickled_code_in_place_of_any_file_is_not_run(checkpoint, tmp_path, name, kind):
    marker = tmp_path / "marker"
    content = harmful(kind, str(marker))
    if name == "meta.json":
        (checkpoint / name).write_bytes(content)
    else:
        put(checkpoint, name, content)
    assert name in refusal(name, checkpoint)
    assert not marker.exists()


def test_the_harmful_pickle_would_have_run(tmp_path):
    """Or the test above would show nothing."""
    pickle.loads(harmful("2", str(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def test_other_files_in_the_folder_are_never_opened(checkpoint, tmp_path):
    marker = tmp_path / "marker"
    for name in ("model.bin", "pytorch_model.bin", "config.py", "model.pt", "__init__.py"):
        (checkpoint / name).write_bytes(harmful("2", str(marker)))
        (checkpoint / name).chmod(0)
    load_model(checkpoint)
    load_train_state(checkpoint)
    assert not marker.exists()


PATHS = ["../../x", "/etc/passwd", "..\\..\\x", "C:\\x", "file:///etc/passwd", "x\0y"]


@pytest.mark.parametrize("path", PATHS)
def test_paths_in_a_description_lead_nowhere(checkpoint, tmp_path, monkeypatch, path):
    """No name in it is opened, made or removed; only the data set's folder is a path."""
    (tmp_path / "x").write_text("secret")
    meta = json.loads((checkpoint / "meta.json").read_bytes())
    meta["config"]["output_dir"] = meta["config"]["init_from"] = path
    meta["sha256"][path] = meta["sha256"]["model.safetensors"]
    meta["class_names"][0] = path
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    before = sorted(tmp_path.rglob("*"))
    opened = []
    real = io.open

    def watch(file, *args, **kwargs):
        opened.append(str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(io, "open", watch)
    _, meta = load_model(checkpoint)
    load_train_state(checkpoint)
    load_calibration(checkpoint)
    assert meta.class_names[0] == path
    assert len(opened) >= 4
    assert {os.path.dirname(name) for name in opened} == {str(checkpoint)}
    assert sorted(tmp_path.rglob("*")) == before


@EVERY
def test_a_link_to_an_endless_device_is_refused_at_once(checkpoint, name):
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to("/dev/zero")
    text = refused(lambda: READERS[name](checkpoint), "CheckpointError", checkpoint, seconds=10)
    if name == "meta.json":  # a folder without one is no checkpoint
        assert "no checkpoint at" in text
    else:
        assert f"{name} cannot be read: it is a device, a pipe or a socket" in text


@EVERY
def test_a_pipe_in_place_of_a_file_does_not_block(checkpoint, name):
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    refused(lambda: READERS[name](checkpoint), "CheckpointError", checkpoint, seconds=5)


@pytest.mark.parametrize("name", ["meta.json", "calibration.json"])
def test_a_huge_description_is_refused_unread(checkpoint, name):
    with (checkpoint / name).open("r+b") as file:
        file.truncate(2**40)
    text = refused(lambda: READERS[name](checkpoint), "CheckpointError", checkpoint / name)
    assert f"it has {2**40} bytes, and no such file has over {MOST_BYTES}" in text


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.pt"])
def test_a_file_larger_than_memory_is_named(checkpoint, name):
    with (checkpoint / name).open("r+b") as file:
        file.truncate(2**40)
    text = refused(lambda: READERS[name](checkpoint), "CheckpointError", checkpoint / name)
    assert f"{name} cannot be read: it does not fit in memory" in text


@pytest.mark.parametrize(
    "deep",
    [b"[" * 10**6, b'{"a":' * 10**6, b"[" * 500 + b"]" * 500],
    ids=["lists", "objects", "whole"],
)
@pytest.mark.parametrize("name", ["meta.json", "calibration.json"])
def test_deeply_nested_descriptions_are_refused(checkpoint, name, deep):
    (checkpoint / name).write_bytes(deep)
    assert name in refusal(name, checkpoint)


def test_a_description_too_large_to_be_read_is_not_written(tmp_path, checkpoint):
    model, meta = load_model(checkpoint)
    names = ("x" * MOST_BYTES, *meta.class_names[1:])
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path / "new", model, meta.model_copy(update={"class_names": names}))
    assert re.search(
        rf"cannot write checkpoint .*new: meta\.json would have \d+ bytes, and at most "
        rf"{MOST_BYTES} are read\. Use shorter names of classes\.",
        str(caught.value),
    )
    assert not (tmp_path / "new").exists()


def entry(shape, start, stop, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


HEADERS = {
    "shape beyond the file": {"a": entry([2**40], 0, 2**42)},
    "shape that overflows": {"a": entry([2**32, 2**32], 0, 0)},
    "shape unlike the bytes": {"a": entry([2**40], 0, 4)},
    "negative shape": {"a": entry([-1], 0, 4)},
    "shape of no numbers": {"a": entry(["x"], 0, 4)},
    "empty and absurd": {"a": entry([0, 2**62], 0, 0)},
    "a million dimensions": {"a": entry([1] * 10**6, 0, 4)},
    "offsets backwards": {"a": entry([1], 4, 0)},
    "overlapping tensors": {"a": entry([1], 0, 4), "b": entry([1], 0, 4)},
    "a hole": {"a": entry([1], 4, 8)},
    "unknown type": {"a": entry([1], 0, 4, "F17")},
    "no entry": {"a": 3},
    "a list": [1, 2],
    "two of a name": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":3}',
    "no text": b"\xff" * 50,
    "deeply nested": b'{"a":' * 10**5,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_of_weights_that_are_absurd(checkpoint, header):
    put(checkpoint, "model.safetensors", weights_file(header, bytes(4)))
    path = checkpoint / "model.safetensors"
    refused(lambda: load_model(checkpoint), "CheckpointError", path, seconds=10)


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_header_said_to_be_larger_than_the_file(checkpoint, size):
    content = size.to_bytes(8, "little") + b"{}"
    put(checkpoint, "model.safetensors", content)
    path = checkpoint / "model.safetensors"
    text = refused(lambda: load_model(checkpoint), "CheckpointError", path)
    assert "cannot be read: " in text


def test_many_weights_that_do_not_fit_are_not_all_listed(checkpoint):
    header, data = parts_of_weights((checkpoint / "model.safetensors").read_bytes())
    header |= {f"extra.{i}": entry([0], len(data), len(data)) for i in range(1000)}
    put(checkpoint, "model.safetensors", weights_file(header, data))
    text = refusal("model.safetensors", checkpoint)
    assert "unexpected extra.0; unexpected extra.1; " in text
    assert "; and 980 more. The files are of two different runs" in text


CONFIGS = {
    "a layer of 4 TiB": {"model": {"hidden": [10**6, 10**6]}},
    "a layer beyond all memory": {"model": {"hidden": [2**62, 2**62]}},
    "a width that is no machine number": {"model": {"hidden": [2**70]}},
    "very many layers": {"model": {"hidden": [1] * 10**6}},
    "another network": {"model": {"name": "resnet18", "hidden": None}},
    "no model": {"model": None},
    "a list": {"model": [1]},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_networks_that_the_weights_do_not_fit_take_no_memory(checkpoint, config):
    meta = json.loads((checkpoint / "meta.json").read_bytes())
    meta["config"] |= config
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    refused(lambda: load_model(checkpoint), "CheckpointError", checkpoint, seconds=20)


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
@pytest.mark.parametrize("side", [2**14 + 1, 2**20, 2**40])
def test_inputs_of_absurd_shape_take_no_memory(checkpoint, name, side):
    meta = json.loads((checkpoint / "meta.json").read_bytes())
    hidden = [4] if name == "mlp" else None
    meta["config"]["model"] |= {"name": name, "hidden": hidden}
    meta["input_shape"] = [1, side, side]
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    text = refused(lambda: load_model(checkpoint), "CheckpointError", checkpoint / "meta.json")
    assert f"one input of input_shape [1, {side}, {side}] has over {2**28} values" in text


def test_data_that_is_no_section_does_not_hide_the_number_of_classes(checkpoint):
    meta = json.loads((checkpoint / "meta.json").read_bytes())
    meta["config"]["data"] = ["digits"]
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match=r"for 3 classes; the data has 4\. Use .*\(unknown\)"):
        load_model(checkpoint, classes=4)


def test_a_calibration_beside_weights_without_a_checksum(checkpoint):
    meta = json.loads((checkpoint / "meta.json").read_bytes())
    meta["sha256"] = {}
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    assert "meta.json cannot be read: it has no SHA-256 of model.safetensors" in refusal(
        "calibration.json", checkpoint
    )


def test_the_undamaged_checkpoint_is_read(checkpoint):
    """Or the tests above would show nothing."""
    load_model(checkpoint)
    _, weights = load_checkpoint(checkpoint)
    assert sorted(weights) == ["1.bias", "1.weight", "3.bias", "3.weight"]
    assert load_calibration(checkpoint).temperature == 1.5
    assert len(load_train_state(checkpoint)["optimizer"]["state"]) == 4
    put(
        checkpoint,
        "train_state.pt",
        archive(unpacked((checkpoint / "train_state.pt").read_bytes())),
    )
    load_train_state(checkpoint)
