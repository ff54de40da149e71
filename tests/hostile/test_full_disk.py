"""A disk that is full at any moment: what was there stays, and the work goes on with new room."""

import gzip
import hashlib
import shutil
import struct

import numpy as np
import pytest
import torch
from damage import model_config, save_small
from full_disk import Disk, fill, small_file_system
from torchvision import datasets as tv

from bayes_dc.datasets import (
    ArraySplit,
    DataConfig,
    DatasetBundle,
    DatasetError,
    Normalisation,
    load_dataset,
)
from bayes_dc.report import ReportError
from bayes_dc.report.files import staged_folder
from bayes_dc.train import (
    CalibrationState,
    CheckpointError,
    CheckpointMeta,
    RunFolder,
    TrainConfig,
    build_model,
    fit,
    load_calibration,
    load_checkpoint,
    load_model,
    load_train_state,
    save_calibration,
)
from bayes_dc.train.folder import replace_folder

UNIT = Normalisation((0.0,), (1.0,))


def split(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (samples, 1, 3, 3), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % 3
    return ArraySplit(images, labels, ("0", "1", "2"), UNIT, "toy")


def train(path, epochs, *, resume):
    """Train a small network with a best and a last checkpoint, anew or from where it was."""
    data = DatasetBundle(
        name="toy",
        train=split(12, 0),
        validation=split(6, 1),
        test=split(6, 2),
        class_names=("0", "1", "2"),
        input_shape=(1, 3, 3),
        normalisation=UNIT,
    )
    config = model_config()
    settings = TrainConfig(epochs=epochs, batch_size=12, device="cpu")
    meta = CheckpointMeta(
        config=config.model_dump(mode="json"),
        seed=0,
        class_names=data.class_names,
        input_shape=data.input_shape,
        normalisation=UNIT,
    )
    model = build_model(config.model, data.input_shape, 3)
    run = RunFolder(path)
    return fit(model, data, settings, run, meta, config_text="a: 1\n", resume=resume)


def weights(folder):
    meta, found = load_checkpoint(folder)
    return meta.epoch, {name: value.tolist() for name, value in found.items()}


def numbers(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Metrics, last and best weights after 1 and after 2 epochs in one go."""
    path = tmp_path_factory.mktemp("whole")
    after = {}
    for epochs in (1, 2):
        rows = train(path / str(epochs), epochs, resume=False)
        folder = path / str(epochs)
        after[epochs] = numbers(rows), weights(folder / "last"), weights(folder / "best")
    return after


def check_whole(path, uninterrupted):
    """Each checkpoint loads, and is one that the uninterrupted run had."""
    epoch, found = weights(path / "last")
    load_train_state(path / "last")
    load_model(path)
    assert (epoch, found) == uninterrupted[epoch][1]
    assert weights(path / "best") in [whole[2] for whole in uninterrupted.values()]


def check_goes_on(path, uninterrupted):
    """With room again, the run ends where the uninterrupted one did."""
    rows = train(path, 2, resume=True)
    assert numbers(rows) == uninterrupted[2][0]
    assert weights(path / "last") == uninterrupted[2][1]
    assert weights(path / "best") == uninterrupted[2][2]


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_no_write_of_a_training_run_that_fails_costs_a_checkpoint(
    tmp_path, monkeypatch, uninterrupted
):
    """Each call that needs room fails in its turn, in the second epoch of a run."""
    train(tmp_path / "first", 1, resume=False)
    texts = set()
    for number in range(300):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "first", path)
        with monkeypatch.context() as patch:
            disk = Disk(patch, tmp_path, number)
            try:
                train(path, 2, resume=True)
                failed = False
            except CheckpointError as error:
                failed = True
                texts.add(str(error).replace(str(path), "PATH"))
        if not failed:
            break
        assert len(disk.steps) > number
        check_whole(path, uninterrupted)
        check_goes_on(path, uninterrupted)
        assert {"best", "config.yaml", "last", "metrics.jsonl"} <= set(names(path))
        assert not list(path.glob("*.tmp"))
    assert not failed
    assert len(disk.steps) == number > 30
    assert set(disk.steps) == {"open", "write", "flush", "fsync", "rename", "replace", "mkdir"}
    assert all("No space left on device" in text for text in texts)
    assert all("is kept" in text and "PATH" in text for text in texts)


@pytest.mark.parametrize("number", range(12))
def test_a_folder_that_cannot_be_replaced_is_found_under_its_own_name(
    tmp_path, monkeypatch, number
):
    replace_folder(tmp_path / "c", {"a": b"old"})
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path, number)
        try:
            replace_folder(tmp_path / "c", {"a": b"new"})
            failed = False
        except OSError as error:
            failed = True
            assert "No space left" in str(error)  # noqa: PT017 - one of several ends
    last = disk.steps[number - 1 : number] == ["rename"] and disk.steps[number:] == ["fsync"]
    assert (tmp_path / "c" / "a").read_bytes() == (b"new" if last or not failed else b"old")
    assert names(tmp_path) == (["c", "c.old"] if last else ["c"])


@pytest.mark.parametrize("leave_kib", [0, 4, 8, 12])
def test_a_training_run_on_a_file_system_that_is_full(tmp_path, uninterrupted, leave_kib):
    with small_file_system(tmp_path / "disk", kib=256) as why:
        if why is not None:
            pytest.skip(f"no small file system can be mounted here: {why}")
        path = tmp_path / "disk" / "run"
        train(path, 1, resume=False)
        filler = fill(tmp_path / "disk", leave_kib)
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            train(path, 2, resume=True)
        assert str(path) in str(caught.value)
        check_whole(path, uninterrupted)
        filler.unlink()
        check_goes_on(path, uninterrupted)


@pytest.mark.parametrize("fails", range(8))
def test_a_calibration_that_cannot_be_written_keeps_the_old_one(tmp_path, monkeypatch, fails):
    folder = save_small(tmp_path / "c")
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path, fails)
        try:
            save_calibration(folder, CalibrationState(T=9, seed=1))
            failed = False
        except CheckpointError as error:
            failed = True
            text = str(error)
    assert disk.steps[:6] == ["open", "write", "flush", "fsync", "replace", "fsync"][: fails + 1]
    assert failed == (fails < 6)
    passes = load_calibration(folder).T
    assert passes == (3 if fails < 5 else 9)  # call 5 is after the rename
    assert names(folder) == ["calibration.json", "meta.json", "model.safetensors", "train_state.pt"]
    if failed:
        assert f"cannot write {folder / 'calibration.json'}: No space left on device." in text


def test_no_write_of_a_report_that_fails_costs_the_old_one(tmp_path, monkeypatch):
    own = ("a.html", "b.png")

    def write(text):
        with staged_folder(tmp_path / "out", own, overwrite=True) as folder:
            (folder / "a.html").write_text(text)
            (folder / "b.png").write_bytes(text.encode())

    write("old")
    for number in range(100):
        with monkeypatch.context() as patch:
            disk = Disk(patch, tmp_path, number)
            try:
                write("new")
                failed = False
            except (OSError, ReportError) as error:
                failed = True
                text = str(error)
        found = {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}
        if not failed:
            break
        assert "No space left on device" in text
        complete = disk.steps[number] == "fsync" and found["a.html"] == "new"
        assert found == dict.fromkeys(own, "new" if complete else "old")
        assert [name for name in names(tmp_path) if name != "out"] in ([], [".out.old"])
        write("old")
        assert names(tmp_path) == ["out"]
    assert not failed
    assert number >= 10
    assert found == dict.fromkeys(own, "new")


def test_no_write_of_unpacking_that_fails_leaves_a_half_file(tmp_path, monkeypatch):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    resources = []
    for part in ("train", "t10k"):
        for stem, shape in (("images-idx3", (3, 28, 28)), ("labels-idx1", (3,))):
            head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            content = gzip.compress(head + np.zeros(shape, np.uint8).tobytes())
            name = f"{part}-{stem}-ubyte.gz"
            (folder / name).write_bytes(content)
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            resources.append((name, md5))
    monkeypatch.setattr(tv.MNIST, "resources", resources)
    for number in range(100):
        with monkeypatch.context() as patch:
            disk = Disk(patch, tmp_path, number)
            try:
                data = load_dataset(DataConfig(name="mnist", root=str(tmp_path)))
                break
            except DatasetError as error:
                text = str(error)
        assert "mnist: cannot unpack " in text
        assert "No space left on device. Copy the folder to a place with room" in text
        assert not [name for name in names(folder) if "partial" in name]
        assert all(
            len((folder / n).read_bytes()) in (11, 12, 16 + 3 * 784) or n.endswith(".gz")
            for n in names(folder)
        )
        for name in names(folder):
            if not name.endswith(".gz"):
                (folder / name).unlink()
    assert len(data.train) == 3
    assert number == len(disk.steps) >= 12
