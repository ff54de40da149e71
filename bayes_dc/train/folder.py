"""Replacing a folder of files so that a kill at any instant leaves the old one or the new one.

1  write everything to <name>.tmp, fsync each file and the folder
2  rename <name> to <name>.old           (readers fall back to .old while <name> is missing)
3  rename <name>.tmp to <name>, fsync the parent
4  remove <name>.old
"""

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``folder`` hold exactly ``files``, durably and all at once.

    Args:
        folder: Folder to create or to replace; parents are created.
        files: Content by file name.

    Raises:
        OSError: If the disk is full or not writable; ``folder`` is then as it was, or as it shall
            be if only the last flush failed.
    """
    tmp, old = _sibling(folder, "tmp"), _sibling(folder, "old")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove(tmp)
        tmp.mkdir()
        for name, content in files.items():
            _write_durably(tmp / name, content)
        _sync_folder(tmp)
    except OSError:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    replaced = folder.exists()
    try:
        if replaced:
            _remove(old)
            os.rename(folder, old)
        os.rename(tmp, folder)
    except OSError:
        if replaced and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    _sync_folder(folder.parent)
    with suppress(OSError):  # somebody may be reading it; the next call tries again
        _remove(old)


def current_folder(folder: Path) -> Path | None:
    """Return where the content of ``folder`` is now.

    Args:
        folder: A folder written by ``replace_folder``.

    Returns:
        ``folder``; ``<folder>.old`` if a kill fell between the two renames; None if there is
        neither.
    """
    if folder.is_dir():
        return folder
    old = _sibling(folder, "old")
    return old if old.is_dir() else None


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` and what an interrupted ``replace_folder`` left beside it.

    Args:
        folder: A folder written by ``replace_folder``; need not exist.
    """
    for path in (*siblings(folder), folder):
        _remove(path)


def siblings(folder: Path) -> tuple[Path, Path]:
    """Return where an interrupted ``replace_folder`` may have left something.

    Args:
        folder: A folder written by ``replace_folder``.

    Returns:
        ``<folder>.old`` and ``<folder>.tmp``.
    """
    return _sibling(folder, "old"), _sibling(folder, "tmp")


def replace_file(path: Path, content: bytes) -> None:
    """Make ``path`` hold ``content``, durably and all at once.

    Args:
        path: File to create or to replace.
        content: Its bytes.

    Raises:
        OSError: If the disk is full or not writable; ``path`` is then as it was.
    """
    tmp = _sibling(path, "tmp")
    try:
        _write_durably(tmp, content)
        os.replace(tmp, path)
    except OSError:
        tmp.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read_file(path: Path, most_bytes: int | None = None) -> bytes:
    """Read a whole file, in bounded time and memory.

    Args:
        path: File.
        most_bytes: Size above which it cannot be what it should be. Default None: any.

    Returns:
        Its bytes.

    Raises:
        ValueError: If it is larger, or a device or pipe, which may never end.
        OSError: If it cannot be read.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ValueError("it is a device, a pipe or a socket, not a file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise ValueError(f"it has {status.st_size} bytes, and no such file has over {most_bytes}")
    return path.read_bytes()


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _remove(path: Path) -> None:
    """Remove a folder, or a link or file in its place; what a link points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
