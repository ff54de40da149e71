"""Replacing a folder: whatever happens at whatever instant, the old or the new content is there."""

import errno
import os
import shutil

import pytest

from bayes_dc.train import folder as module
from bayes_dc.train.folder import current_folder, remove_folder, replace_file, replace_folder

OLD = {"a": b"old a", "b": b"old b"}
NEW = {"a": b"new a", "c": b"new c"}


class Killed(BaseException):
    """Stands for a kill: nothing in the package may catch it."""


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_at(monkeypatch, instant):
    """Stop just before the file operation number ``instant``; return the log of operations."""
    log = []

    def wrap(owner, name):
        real = getattr(owner, name)

        def step(*args, **kwargs):
            if len(log) == instant:
                raise Killed
            log.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, step)

    for name in ("rename", "replace", "fsync", "open"):
        wrap(os, name)
    wrap(shutil, "rmtree")
    wrap(module.Path, "mkdir")
    wrap(module.Path, "open")
    return log


def test_replaces_everything(tmp_path):
    folder = tmp_path / "deep" / "folder"
    replace_folder(folder, OLD)
    assert content(folder) == OLD
    replace_folder(folder, NEW)
    assert content(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


@pytest.mark.parametrize("after_a_kill", [False, True])
def test_a_kill_at_any_instant_leaves_old_or_new(tmp_path, monkeypatch, after_a_kill):
    seen = set()
    for instant in range(100):
        folder = tmp_path / str(instant) / "folder"
        replace_folder(folder, OLD)
        if after_a_kill:  # between the two renames of an earlier save
            os.rename(folder, folder.with_name("folder.old"))
        with monkeypatch.context() as patch:
            log = kill_at(patch, instant)
            try:
                replace_folder(folder, NEW)
            except Killed:
                killed = True
            else:
                killed = False
        current = current_folder(folder)
        assert current is not None, log
        found = content(current)
        assert found in (OLD, NEW), log
        seen.add(frozenset(found))
        replace_folder(folder, NEW)
        assert content(folder) == NEW
        assert [path.name for path in folder.parent.iterdir()] == ["folder"]
        if not killed:
            break
    assert not killed
    assert len(log) >= 12
    assert seen == {frozenset(OLD), frozenset(NEW)}


@pytest.mark.parametrize("call", range(4))
def test_full_disk_leaves_the_old_content(tmp_path, monkeypatch, call):
    folder = tmp_path / "folder"
    replace_folder(folder, OLD)
    calls = []
    real = os.fsync

    def fsync(handle):
        calls.append(handle)
        if len(calls) == call + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    if call < 3:  # two files and the temporary folder
        with pytest.raises(OSError, match="No space left"):
            replace_folder(folder, NEW)
        assert content(folder) == OLD
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    else:  # the parent: the new folder is already in place
        with pytest.raises(OSError, match="No space left"):
            replace_folder(folder, NEW)
        assert content(folder) == NEW


@pytest.mark.parametrize("place", ["folder", "folder.tmp", "folder.old"])
def test_links_are_replaced_and_what_they_point_to_stays(tmp_path, place):
    replace_folder(tmp_path / "elsewhere", OLD)
    replace_folder(tmp_path / "folder", OLD)
    if place == "folder":
        shutil.rmtree(tmp_path / "folder")
    (tmp_path / place).symlink_to("elsewhere")
    for files in (NEW, OLD, NEW):
        replace_folder(tmp_path / "folder", files)
        assert content(tmp_path / "folder") == files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "folder"]
    assert content(tmp_path / "elsewhere") == OLD
    (tmp_path / "folder.old").symlink_to("elsewhere")
    remove_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_remove_takes_the_siblings_along(tmp_path):
    for name in ("folder", "folder.old", "folder.tmp", "folder2"):
        (tmp_path / name).mkdir()
    remove_folder(tmp_path / "folder")
    remove_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder2"]


def test_replace_file_survives_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left"):
            replace_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
