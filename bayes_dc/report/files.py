"""A folder that is there complete or not at all.

Files are written into a hidden sibling, flushed to the disk and put in place by renaming. A folder
that is replaced is first renamed to ``.<name>.old``; if the machine stops between the two renames,
the next ``staged_folder`` or ``check_target`` for the same name brings it back.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from bayes_dc.report.evaluation import ReportError

_EXISTS = (
    "{path} is not empty and is kept. Choose another output folder, or pass --overwrite "
    "(overwrite=True) to replace the report in it."
)
_FOREIGN = (
    "{path} holds {found!r}, which is no part of a report, so it is not replaced. "
    "Move that away or choose another output folder."
)
_IN_THE_WAY = "{path} is in the way of replacing {target}. Move it away and try again."
_NOT_REPLACED = (
    "{path} is the current folder or the root of the file system and is not replaced. "
    "Choose another output folder."
)
_NOT_FOLDER = "{path} is a file, not a folder. Choose another output folder."


def check_target(target: Path, own_files: Collection[str], *, overwrite: bool) -> None:
    """Refuse a folder that must not be replaced.

    Args:
        target: Folder that is to be written.
        own_files: Names of the files that such a folder may hold; others are never deleted.
        overwrite: Whether a complete folder may be replaced.

    Raises:
        ReportError: If ``target`` is a file, or is not empty and ``overwrite`` is False, or holds
            anything that is not in ``own_files``, or is the current folder or the root of the file
            system.
    """
    resolved = target.resolve()
    if resolved in (resolved.parent, Path.cwd()):  # the current folder would be gone
        raise ReportError(_NOT_REPLACED.format(path=target))
    _recover(resolved, own_files)
    if not target.exists():
        return
    if not target.is_dir():
        raise ReportError(_NOT_FOLDER.format(path=target))
    if not overwrite and not _is_empty(target):
        raise ReportError(_EXISTS.format(path=target))
    foreign = _foreign(target, own_files)
    if foreign is not None:
        raise ReportError(_FOREIGN.format(path=target, found=foreign))


@contextmanager
def staged_folder(
    target: Path, own_files: Collection[str], *, overwrite: bool = False
) -> Iterator[Path]:
    """Give a folder to write into that takes the place of ``target`` when the block ends well.

    Args:
        target: Folder that is to be written; missing parents are made.
        own_files: Names of the files that such a folder may hold; others are never deleted.
        overwrite: Whether a complete folder may be replaced.

    Yields:
        An empty folder beside ``target``. If the block raises, it is removed and ``target`` stays
        as it was.
    """
    target = target.resolve()
    check_target(target, own_files, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{uuid4().hex[:12]}.tmp")
    staging.mkdir()
    try:
        yield staging
        for path in [*staging.iterdir(), staging]:
            _flush(path)
        # Somebody may have written there meanwhile.
        check_target(target, own_files, overwrite=overwrite)
        _swap(staging, target, own_files)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _swap(staging: Path, target: Path, own_files: Collection[str]) -> None:
    """Put ``staging`` in the place of ``target``."""
    old, replaced = _old_name(target), target.exists()
    if replaced:
        if old.exists():
            raise ReportError(_IN_THE_WAY.format(path=old, target=target))
        os.rename(target, old)
    try:
        os.rename(staging, target)
    except OSError:
        _recover(target, own_files)
        raise
    _flush(target.parent)
    if replaced:
        shutil.rmtree(old, ignore_errors=True)


def _recover(target: Path, own_files: Collection[str]) -> None:
    """Finish what an interrupted swap left: bring back the old folder, or remove it."""
    old = _old_name(target)
    if not old.is_dir() or _foreign(old, own_files) is not None:
        return
    if target.exists() and not (target.is_dir() and _is_empty(target)):
        shutil.rmtree(old)
    else:
        os.rename(old, target)


def _foreign(folder: Path, own_files: Collection[str]) -> str | None:
    """Name of an entry that is none of ours, if there is one."""
    for entry in sorted(folder.iterdir()):
        if entry.name not in own_files or not entry.is_file():
            return entry.name
    return None


def _is_empty(folder: Path) -> bool:
    """Whether a folder has no entries."""
    return next(folder.iterdir(), None) is None


def _old_name(target: Path) -> Path:
    """Where a folder waits while it is replaced."""
    return target.with_name(f".{target.name}.old")


def _flush(path: Path) -> None:
    """Have the system write a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
