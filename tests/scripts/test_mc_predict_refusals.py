"""Everything that scripts/mc_predict.py refuses, by its message; nothing is written or lost."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc.datasets import DataConfig
from bayes_dc.train import build_model, load_model, outputs, save_checkpoint


def refused(result, capsys):
    """The one-line message of a run that wrote nothing."""
    code, folder = result
    assert code == 2
    assert not folder.exists()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_an_unreadable_image_is_named_and_nothing_is_written(
    predict, tmp_path, content, capsys, save_network
):
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    if content is not None:
        (tmp_path / "bad.png").write_bytes(content)
    result = predict("--images", str(tmp_path / "good.png"), str(tmp_path / "bad.png"))
    assert f"cannot read image {tmp_path / 'bad.png'}" in refused(result, capsys)


def test_a_truncated_image_is_named(predict, tmp_path, capsys, save_network):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    assert "half.jpg" in refused(predict("--images", str(tmp_path / "half.jpg")), capsys)


def test_an_output_folder_is_checked_before_any_work(predict, tmp_path, capsys):
    code, folder = predict("--limit", "3")
    assert code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    code, _ = predict("--limit", "4", folder=tmp_path / "no checkpoint here")
    assert code == 2
    assert "is not empty and is kept" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert predict("--limit", "4", "--overwrite")[0] == 0
    assert (folder / "predictions.csv").read_text("utf-8").count("\n") == 5


def test_a_full_disk_leaves_the_old_report(predict, monkeypatch, capsys):
    _, folder = predict("--limit", "3")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    code, _ = predict("--limit", "4", "--overwrite")
    monkeypatch.undo()
    assert code == 2
    error = capsys.readouterr().err
    assert f"error: cannot write the report {folder}: No space left on device" in error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_current_folder_is_not_replaced(predict, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert predict("--limit", "3", out="here")[0] == 2
    assert "here is the current folder or the root" in capsys.readouterr().err
    assert not list((tmp_path / "here").iterdir())


def test_a_missing_checkpoint_is_named(predict, tmp_path, capsys):
    message = refused(predict(folder=tmp_path / "nowhere"), capsys)
    assert str(tmp_path / "nowhere") in message


def test_another_number_of_classes_is_refused(
    predict, digits, tmp_path, capsys, make_config, save_network
):
    config = make_config()
    model = build_model(config.model, digits.input_shape, 7)
    folder = save_network(tmp_path / "seven", model, config, digits, class_names=tuple("abcdefg"))
    message = refused(predict(folder=folder), capsys)
    assert "digits has 10 classes" in message
    assert "was trained for 7" in message


def test_another_input_shape_is_refused(
    predict, digits, tmp_path, capsys, make_config, save_network
):
    config = make_config()
    model = build_model(config.model, (1, 7, 9), 10)
    folder = save_network(tmp_path / "shape", model, config, digits, input_shape=(1, 7, 9))
    message = refused(predict(folder=folder), capsys)
    assert "digits has inputs of shape [1, 8, 8]" in message
    assert "was trained on [1, 7, 9]" in message


def test_a_plain_network_is_refused(predict, digits, tmp_path, capsys, make_config, save_network):
    config = make_config(p=0.0)
    folder = save_network(
        tmp_path / "plain", build_model(config.model, digits.input_shape, 10), config, digits
    )
    assert refused(predict(folder=folder), capsys) == (
        f"error: checkpoint {folder} is a plain network: model.p and model.dropout are 0 in its "
        "configuration, so every pass would be equal. Train with --set model.p=0.5 (or "
        f"model.dropout above 0), or fine-tune this one with --set init_from={folder} --set "
        "model.p=0.25. To see it beside another network name it with --compare."
    )


def test_what_the_network_cannot_do_is_said_with_the_checkpoint(predict, capsys, monkeypatch):
    def refuse(*arguments, **options):
        raise ValueError("the model mixes samples")

    monkeypatch.setattr(outputs, "predict_with_uncertainty", refuse)
    message = refused(predict(), capsys)
    assert message == "error: the checkpoint cannot be predicted with: the model mixes samples"


def test_a_split_that_is_not_there_is_refused(
    predict, digits, tmp_path, capsys, make_config, save_network
):
    config = make_config()
    config = config.model_copy(update={"data": DataConfig(name="digits")})
    folder = save_network(
        tmp_path / "all", build_model(config.model, digits.input_shape, 10), config, digits
    )
    message = refused(predict("--split", "validation", folder=folder), capsys)
    assert "digits has no validation split" in message


def test_missing_data_files_are_named(predict, tmp_path, capsys):
    root = str(tmp_path / "none")
    message = refused(predict("--data", "mnist", "--data-root", root), capsys)
    assert "mnist: missing " in message
    assert message.endswith(
        "Here --data-root sets data.root; the other settings of data are those of training."
    )


@pytest.mark.parametrize("name", ["npz", "mnist"])
@pytest.mark.parametrize("split", ["test", "train"])
def test_data_that_is_not_where_training_found_it_names_the_option(
    predict, tmp_path, monkeypatch, capsys, name, split
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    message = refused(predict("--data", name, "--split", split), capsys)
    assert message.startswith(f"error: {name}: ")
    assert " Here --data-root sets data.root; the other settings of data are those of" in message


def test_a_configuration_that_cannot_be_read_is_refused(
    predict, checkpoint, digits, tmp_path, capsys
):
    model, meta = load_model(checkpoint)
    config = dict(meta.config) | {"predict": {"passes": 0}}
    save_checkpoint(tmp_path / "odd", model, meta.model_copy(update={"config": config}))
    message = refused(predict(folder=tmp_path / "odd"), capsys)
    assert "section predict of the configuration in the checkpoint cannot be read" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(predict, capsys):
    assert "torch finds no CUDA device" in refused(predict("--device", "cuda"), capsys)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--passes", "0"], "--passes: must be a whole number of at least 1; got '0'"),
        (["--passes", "2.5"], "--passes: must be a whole number of at least 1; got '2.5'"),
        (["--limit", "-1"], "--limit"),
        (["--batch-size", "0"], "--batch-size: must be a whole number"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**64)], "--seed: must be a whole number in 0 … 2**64 − 1"),
        (["--data", "minst"], "invalid choice: 'minst'"),
        (["--data", "digits", "--images", "a.png"], "not allowed with argument"),
        (["--images"], "expected at least one argument"),
        (["--images", "a.png", "--split", "test"], "--split: not read with --images; leave it out"),
        (["--images", "a.png", "--data-root", "d"], "--data-root: not read with --images"),
    ],
)
def test_the_command_line_is_checked(predict, options, text, capsys):
    with pytest.raises(SystemExit) as stop:
        predict(*options)
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--data-root", "nowhere"), ("--ood", "digits=nowhere")])
def test_a_folder_for_a_set_without_files_is_refused(predict, options, capsys):
    """It would be read by nobody, and the report be of other data than asked for."""
    message = refused(predict("--limit", "3", *options), capsys)
    assert message == (
        "error: digits: the set is inside scikit-learn and has no files, so 'nowhere' would not be "
        "read. Leave the folder out, or name the data set that lies there."
    )
