"""Finding, checking and unpacking data files: what is missing or damaged is named, never used."""

import gzip
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from torchvision.datasets.utils import check_integrity, download_url, extract_archive

from bayes_dc.datasets.split import DatasetError

logger = logging.getLogger("bayes_dc.datasets")

DOWNLOAD_TIMEOUT_SECONDS = 30.0
"""Longest silence of a server before a download is given up."""

_MISSING = """\
{name}: missing {files} in {folder}. Copy the files there, or set data.download=true \
(--set data.download=true) to fetch them, or point data.root at the folder that holds them.\
"""

_NO_ROOM = """\
{name}: cannot unpack {path}: {why}. Copy the folder to a place with room where files may be \
written, and point data.root there.\
"""

_DAMAGED = """\
{name}: {path} is damaged or was only partly downloaded ({why}). Delete it, then copy it again \
or set data.download=true.\
"""


_OTHER_RELEASE = """ \
If it is another release of the set on purpose, unpack it by hand (gunzip): of unpacked files only \
the length is checked.\
"""


class KnownFile(NamedTuple):
    """A file whose content is known.

    Attributes:
        path: Where it must lie.
        md5: Its checksum.
    """

    path: Path
    md5: str


def _missing_text(name: str, files: Sequence[Path]) -> str:
    """Return the message for absent files of one folder."""
    names = ", ".join(path.name for path in files)
    return _MISSING.format(name=name, files=names, folder=files[0].parent)


def require(name: str, files: Sequence[KnownFile]) -> None:
    """Check that every file is there and is the published one.

    Args:
        name: Data set, for the message.
        files: What is needed, all in one folder.

    Raises:
        DatasetError: If a file is absent or its checksum differs.
    """
    absent = [file.path for file in files if not file.path.is_file()]
    if absent:
        raise DatasetError(_missing_text(name, absent))
    for path, md5 in files:
        if not check_integrity(path, md5):
            raise DatasetError(_DAMAGED.format(name=name, path=path, why="wrong MD5 checksum"))


def unpack_idx(name: str, archives: Sequence[KnownFile]) -> None:
    """Make sure that every idx file lies unpacked and whole beside its ``.gz``.

    Args:
        name: Data set, for the message.
        archives: The ``.gz`` files; those already unpacked need not be there.

    Raises:
        DatasetError: If a file is absent, damaged, or half unpacked with no good archive beside it.
    """
    absent = [
        a.path for a in archives if not (a.path.is_file() or a.path.with_suffix("").is_file())
    ]
    if absent:
        raise DatasetError(_missing_text(name, absent))
    for path, md5 in archives:
        raw = path.with_suffix("")
        if raw.is_file() and _idx_is_whole(raw):
            continue
        if not path.is_file():
            raise DatasetError(
                _DAMAGED.format(name=name, path=raw, why="shorter than its header says")
            )
        if not check_integrity(path, md5):
            text = _DAMAGED.format(name=name, path=path, why="wrong MD5 checksum")
            raise DatasetError(text + _OTHER_RELEASE)
        # A name of its own: another run that starts now may unpack the same file.
        partial = raw.with_name(f".{raw.name}.{uuid4().hex[:12]}.partial")
        try:
            with gzip.open(path) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
            os.replace(partial, raw)
        except OSError as error:
            partial.unlink(missing_ok=True)
            why = error.strerror or error
            raise DatasetError(_NO_ROOM.format(name=name, path=path, why=why)) from error


def fetch_idx(name: str, archives: Sequence[KnownFile], mirrors: Sequence[str]) -> None:
    """Download every idx file that is neither unpacked and whole nor there as a good ``.gz``.

    Args:
        name: Data set, for messages.
        archives: The ``.gz`` files.
        mirrors: Addresses of folders that hold them; the next one is tried where one refuses, is
            silent or sends something else.

    Raises:
        OSError: If no mirror has a file.
    """
    for path, md5 in archives:
        raw = path.with_suffix("")
        if raw.is_file() and _idx_is_whole(raw):
            continue
        failures = []
        for mirror in mirrors:
            try:
                download_url(mirror + path.name, path.parent, path.name, md5)
                break
            except (OSError, RuntimeError) as error:
                failures.append(f"{mirror}: {str(error).strip()}")
                logger.warning("%s: no %s from %s", name, path.name, failures[-1])
        else:
            raise OSError(f"{path.name} is on no mirror ({'; '.join(failures)})")


def unpack_archive(name: str, archive: KnownFile, files: Sequence[Path]) -> None:
    """Put files of an archive in place, each whole or not at all.

    Args:
        name: Data set, for the message.
        archive: The archive, beside the folder that it holds.
        files: Where its files must lie, under the folder of the archive.

    Raises:
        DatasetError: If the archive is absent or damaged, or its files cannot be written.
    """
    require(name, [archive])
    base = archive.path.parent
    try:
        # A folder of its own: another run that starts now may unpack the same archive.
        with TemporaryDirectory(prefix=".unpacking-", dir=base) as scratch:
            extract_archive(archive.path, scratch)
            for file in files:
                file.parent.mkdir(exist_ok=True)
                os.replace(Path(scratch) / file.relative_to(base), file)
    except OSError as error:
        why = error.strerror or error
        raise DatasetError(_NO_ROOM.format(name=name, path=archive.path, why=why)) from error


def _idx_is_whole(path: Path) -> bool:
    """Whether an idx file of bytes is as long as its header says."""
    with path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08":
            return False
        sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        return False
    return path.stat().st_size == 4 + len(sizes) + int(
        np.frombuffer(sizes, ">u4").prod(dtype=np.int64)
    )


@contextmanager
def downloading(name: str, folder: Path) -> Iterator[None]:
    """Give a download a time limit and turn its failures into one kind of error.

    Args:
        name: Data set, for the message.
        folder: Where the files go.

    Yields:
        Nothing; the download runs inside.

    Raises:
        DatasetError: If the download fails.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            f"{name}: download into {folder} failed: {str(error).strip()}. Check the network, or "
            "copy the files there by hand."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
