"""A folder is complete or not there, and nothing that is not ours is ever deleted."""

import errno
import os
from pathlib import Path

import pytest

from bayes_dc.report import ReportError, files
from bayes_dc.report.files import check_target, staged_folder

OWN = ("a.txt", "b.txt")


def write(target, text="new", **options):
    with staged_folder(target, OWN, **options) as folder:
        (folder / "a.txt").write_text(text)


def listing(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_appears_with_its_parents(tmp_path):
    write(tmp_path / "x" / "y" / "out")
    assert listing(tmp_path / "x" / "y" / "out") == {"a.txt": "new"}
    assert [p.name for p in (tmp_path / "x" / "y").iterdir()] == ["out"]


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert listing(tmp_path / "out") == {"a.txt": "new"}


def test_a_folder_with_files_is_refused_unless_overwritten(tmp_path):
    write(tmp_path / "out", "old")
    with pytest.raises(ReportError, match=r"out is not empty and is kept.*--overwrite"):
        write(tmp_path / "out")
    assert listing(tmp_path / "out") == {"a.txt": "old"}
    write(tmp_path / "out", overwrite=True)
    assert listing(tmp_path / "out") == {"a.txt": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_files_of_the_old_folder_do_not_stay(tmp_path):
    with staged_folder(tmp_path / "out", OWN) as folder:
        (folder / "b.txt").write_text("old")
    write(tmp_path / "out", overwrite=True)
    assert listing(tmp_path / "out") == {"a.txt": "new"}


@pytest.mark.parametrize("name", ["notes.txt", "a.txt/inner"])
def test_a_folder_with_other_things_is_never_replaced(tmp_path, name):
    other = tmp_path / "out" / name
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    found = name.split("/")[0]
    with pytest.raises(ReportError, match=rf"out holds '{found}', which is no part of a report"):
        write(tmp_path / "out", overwrite=True)
    assert other.read_text() == "mine"


def test_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ReportError, match=r"out is a file, not a folder"):
        write(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text() == "mine"


def test_the_current_folder_and_the_root_are_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for target in (Path(), Path("."), tmp_path, Path("x/.."), Path("/")):
        with pytest.raises(ReportError, match="is the current folder or the root of the file sys"):
            write(target, overwrite=True)
    write(Path("out"))
    assert listing(tmp_path / "out") == {"a.txt": "new"}


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert listing(tmp_path / "real") == {"a.txt": "new"}


class Full:
    """A disk that is full: the n-th call of a function of os fails."""

    def __init__(self, monkeypatch, name, fail_at):
        self.real, self.calls, self.fail_at = getattr(os, name), 0, fail_at
        monkeypatch.setattr(files.os, name, self)

    def __call__(self, *args):
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(*args)


# fsync: the file, the folder; rename: the old folder away, the new one in.
@pytest.mark.parametrize(
    ("name", "fail_at"), [("fsync", 1), ("fsync", 2), ("rename", 1), ("rename", 2)]
)
def test_a_full_disk_leaves_the_old_folder(tmp_path, monkeypatch, name, fail_at):
    write(tmp_path / "out", "old")
    disk = Full(monkeypatch, name, fail_at)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "out", overwrite=True)
    assert disk.calls >= fail_at
    assert listing(tmp_path / "out") == {"a.txt": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_error_while_writing_leaves_the_old_folder(tmp_path):
    write(tmp_path / "out", "old")

    def fail():
        with staged_folder(tmp_path / "out", OWN, overwrite=True) as folder:
            (folder / "a.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert listing(tmp_path / "out") == {"a.txt": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_stop_between_the_two_renames_is_undone_by_the_next_call(tmp_path):
    write(tmp_path / "out", "old")
    os.rename(tmp_path / "out", tmp_path / ".out.old")
    with pytest.raises(ReportError, match="not empty"):
        check_target(tmp_path / "out", OWN, overwrite=False)
    assert listing(tmp_path / "out") == {"a.txt": "old"}


def test_a_stop_before_the_old_folder_was_removed_is_cleaned_up(tmp_path):
    write(tmp_path / "out", "new")
    write(tmp_path / ".out.old", "old")
    check_target(tmp_path / "out", OWN, overwrite=True)
    assert listing(tmp_path / "out") == {"a.txt": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_foreign_folder_of_that_name_is_left_alone(tmp_path):
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "notes.txt").write_text("mine")
    write(tmp_path / "out", "new")
    with pytest.raises(ReportError, match=r"\.out\.old is in the way of replacing .*out\. Move it"):
        write(tmp_path / "out", "newer", overwrite=True)
    assert listing(tmp_path / "out") == {"a.txt": "new"}
    assert listing(tmp_path / ".out.old") == {"notes.txt": "mine"}


def test_a_folder_filled_meanwhile_is_not_replaced(tmp_path):
    def race():
        with staged_folder(tmp_path / "out", OWN) as folder:
            (folder / "a.txt").write_text("second")
            write(tmp_path / "out", "first")

    with pytest.raises(ReportError, match="not empty"):
        race()
    assert listing(tmp_path / "out") == {"a.txt": "first"}
