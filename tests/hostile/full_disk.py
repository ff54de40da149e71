"""Disks that are full: at one call of the process, or a small file system that really is."""

import builtins
import errno
import io
import os
import subprocess
from contextlib import contextmanager


def full():
    return OSError(errno.ENOSPC, "No space left on device")


class _File:
    """A file that is open for writing on a disk that may be full."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, content):
        try:
            self._disk.step("write")
        except OSError:
            self._file.write(content[: len(content) // 2])  # what there was room for
            raise
        return self._file.write(content)

    def flush(self):
        self._disk.step("flush")
        return self._file.flush()

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


class Disk:
    """Counts what needs room under a folder; from call number ``fails`` on there is none.

    Files cannot be opened for writing, written or flushed then, nor folders be made. A name is
    changed in a full folder as a rule, so of the renames only call ``fails`` itself fails.
    """

    def __init__(self, monkeypatch, folder, fails):
        self.steps, self._fails, self._folder = [], fails, str(folder)
        for owner in (io, builtins):
            monkeypatch.setattr(owner, "open", self._opening(owner.open))
        for name in ("mkdir", "rename", "replace", "fsync"):
            monkeypatch.setattr(os, name, self._calling(name, getattr(os, name)))

    def step(self, name):
        self.steps.append(name)
        number = len(self.steps) - 1
        renames = name in ("rename", "replace")
        if number == self._fails or (number > self._fails >= 0 and not renames):
            raise full()

    def _opening(self, real):
        def opened(file, mode="r", *args, **kwargs):
            ours = isinstance(file, (str, os.PathLike)) and str(file).startswith(self._folder)
            if not ours or not set(mode) & set("wax+"):
                return real(file, mode, *args, **kwargs)
            self.step("open")
            return _File(real(file, mode, *args, **kwargs), self)

        return opened

    def _calling(self, name, real):
        def called(first, *args, **kwargs):
            if isinstance(first, int) or str(first).startswith(self._folder):
                self.step(name)
            return real(first, *args, **kwargs)

        return called


@contextmanager
def small_file_system(folder, kib):
    """Mount a file system of so many KiB; yields why that is not possible, or None."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        yield str(error)
        return
    if done.returncode:
        yield done.stderr.strip() or "mount failed"
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder, leave_kib):
    """Take all room of a small file system but so many KiB; return the file that takes it."""
    path = folder / "filler"
    free = os.statvfs(folder)
    size = free.f_bavail * free.f_frsize - leave_kib * 1024
    path.write_bytes(bytes(max(size, 0)))
    return path
