"""The output folder: refused when in use, cut back on resume, cleared only of what is ours."""

import errno
import json
import os

import pytest

from bayes_dc.train import CheckpointError, RunFolder, TrainingError
from bayes_dc.train.run import check_same_run


def rows(epochs):
    return [{"epoch": i, "loss": i / 7} for i in range(1, epochs + 1)]


def filled(tmp_path, epochs=3):
    run = RunFolder(tmp_path)
    for row in rows(epochs):
        run.add_metrics(row)
    return run


def test_empty_and_absent_folders_are_free(tmp_path):
    RunFolder(tmp_path).check(resume=False, overwrite=False)
    RunFolder(tmp_path / "new").check(resume=False, overwrite=False)
    assert not (tmp_path / "new").exists()


def test_used_folder_is_refused(tmp_path):
    run = filled(tmp_path)
    with pytest.raises(TrainingError, match=r"is not empty\. Pass --resume to go on .*--overwrite"):
        run.check(resume=False, overwrite=False)
    run.check(resume=True, overwrite=False)
    run.check(resume=False, overwrite=True)
    assert len(run.metrics.read_text().splitlines()) == 3


def test_file_in_place_of_the_folder(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(TrainingError, match="file is a file: name a folder"):
        RunFolder(path).check(resume=False, overwrite=True)


def test_overwriting_removes_our_files_only(tmp_path):
    run = filled(tmp_path)
    for name in ("last", "last.old", "best", "best.tmp", "mine"):
        (tmp_path / name).mkdir()
    run.start("a: 1\n", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "mine"]
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"


@pytest.mark.parametrize("place", ["best", "last", "last.old", "best.tmp"])
@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_other_peoples_files_are_never_replaced(tmp_path, place, options):
    (tmp_path / place / "photos").mkdir(parents=True)
    options = {"resume": False, "overwrite": False} | options
    with pytest.raises(TrainingError, match=rf"{place} holds 'photos', which is no part of a chec"):
        RunFolder(tmp_path).check(**options)


def test_files_that_systems_leave_behind_are_no_obstacle(tmp_path):
    run = filled(tmp_path)
    run.last.mkdir()
    for name in (".DS_Store", "meta.json"):
        (run.last / name).touch()
    run.check(resume=True, overwrite=False)
    run.start("a: 1\n", overwrite=True)
    assert not run.last.exists()


def test_two_runs_never_share_a_folder(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.locked():
        with (
            pytest.raises(TrainingError, match=r"another run is writing to output_dir .*run: wait"),
            second.locked(),
        ):
            pytest.fail("the folder was given to a second run")
        (tmp_path / "run" / "metrics.jsonl").touch()
    with second.locked():
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_folder_on_a_system_without_locks(tmp_path, monkeypatch, caplog):
    def flock(handle, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with RunFolder(tmp_path).locked():
        assert "cannot be locked: start no second run in it" in caplog.text


def test_full_disk_is_named_with_the_folder(tmp_path, monkeypatch):
    run = filled(tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = f"cannot write to output_dir {tmp_path}: No space left on device. The last checkpoint"
    for action in (
        lambda: run.add_metrics({"epoch": 4}),
        lambda: run.keep_metrics(1),
        lambda: run.start("a: 1\n", overwrite=True),
    ):
        with pytest.raises(CheckpointError) as caught:
            action()
        assert message in str(caught.value)
    monkeypatch.undo()
    assert run.keep_metrics(3) == rows(3)


def test_starting_without_overwriting_removes_nothing(tmp_path):
    run = filled(tmp_path)
    run.last.mkdir()
    run.start("a: 1\n", overwrite=False)
    assert run.last.is_dir()
    assert len(run.metrics.read_text().splitlines()) == 3


@pytest.mark.parametrize("epochs", [0, 1, 3, 9])
def test_metrics_are_cut_back(tmp_path, epochs):
    run = filled(tmp_path)
    assert run.keep_metrics(epochs) == rows(min(epochs, 3))
    run.add_metrics({"epoch": 99})
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [*rows(min(epochs, 3)), {"epoch": 99}]


@pytest.mark.parametrize(
    "tail", [b'{"epoch": 4, "lo', b"null\n", b"{}\n", b"[]\n", b"\xff\n", b"\0\n"]
)
def test_half_written_line_is_cut_off(tmp_path, tail):
    run = filled(tmp_path)
    with run.metrics.open("ab") as file:
        file.write(tail)
    assert run.keep_metrics(9) == rows(3)


def test_no_metrics_yet(tmp_path):
    run = RunFolder(tmp_path)
    assert run.keep_metrics(2) == []
    assert run.metrics.read_text() == ""


OLD = {"seed": 1, "train": {"epochs": 3, "optimizer": {"lr": 0.1}}, "data": {"root": "a"}}


def test_what_may_change_on_resume(tmp_path):
    new = {"seed": 1, "train": {"epochs": 9, "optimizer": {"lr": 0.1}}, "data": {"root": "b"}}
    check_same_run(OLD, {**new, "predict": {"passes": 7}, "output_dir": "x"}, tmp_path)
    check_same_run({"h": [1, 2]}, {"h": (1, 2)}, tmp_path)


def test_what_may_not_change_on_resume(tmp_path):
    new = {"seed": 2, "train": {"epochs": 3, "optimizer": {"lr": 0.2}}, "data": {"root": "a"}}
    with pytest.raises(TrainingError) as caught:
        check_same_run(OLD, new, tmp_path)
    text = str(caught.value)
    assert "cannot resume" in text
    assert "seed was 1 and is 2; train.optimizer.lr was 0.1 and is 0.2. Set it back" in text
