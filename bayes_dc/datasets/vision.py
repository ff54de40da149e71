"""MNIST and its look-alikes, CIFAR and SVHN: torchvision's loaders behind our own file checks.

torchvision reads what it finds; here every file is checked first (MD5, or length against the header
for an unpacked idx file), archives copied by hand are unpacked without a network, and each set is
looked for in its own folder only.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets as tv
from torchvision.datasets.mnist import read_image_file, read_label_file
from torchvision.datasets.utils import check_integrity

from bayes_dc.datasets.files import (
    KnownFile,
    downloading,
    fetch_idx,
    require,
    unpack_archive,
    unpack_idx,
)
from bayes_dc.datasets.split import ArraySplit, DatasetError, Normalisation

_DIGITS = tuple("0123456789")
_STEMS = {True: "train", False: "t10k"}


class Family(NamedTuple):
    """How one data set is checked and read.

    Attributes:
        cls: torchvision's class.
        ready: Checks (and unpacks) the files of splits in a root folder; raises DatasetError.
        read: Returns pixels (uint8 ``[n, C, H, W]``), labels and class names of the training or
            test split.
        folder: Folder of the files under the root.
        standard: Mean and deviation of the training set.
    """

    cls: Any
    ready: Callable[[str, Any, Path, tuple[bool, ...]], None]
    read: Callable[[Any, Path, bool], tuple[Tensor, Tensor, tuple[str, ...]]]
    folder: str
    standard: Normalisation


BOTH = (True, False)
"""Training and test split."""


def load(
    name: str,
    root: str,
    download: bool,
    normalisation: Normalisation,
    parts: tuple[bool, ...] = BOTH,
) -> list[ArraySplit]:
    """Return the training and the test split of a torchvision data set.

    Args:
        name: Key of ``FAMILIES``.
        root: Folder that holds the data sets.
        download: Fetch missing or damaged files.
        normalisation: Constants of the float batches.
        parts: Which splits: True for training, False for test. The files of others need not be
            there where each split has its own.

    Returns:
        The official splits, in the order of ``parts``.

    Raises:
        DatasetError: If a file is missing, damaged or of another data set.
    """
    family = FAMILIES[name]
    base = Path(os.path.expanduser(root))  # an unknown ~name stays as it is
    folder = base / family.folder
    try:
        family.ready(name, family.cls, base, parts)
    except DatasetError:
        if not download:
            raise
        with downloading(name, folder):
            _download(name, family.cls, base)
        family.ready(name, family.cls, base, parts)
    return [_split(name, family, base, part, normalisation) for part in parts]


def _download(name: str, cls: Any, base: Path) -> None:
    """Fetch what is missing."""
    if issubclass(cls, tv.MNIST):
        # Not cls(base): it keeps unpacked files that are cut short, and gives up when the first
        # mirror is silent.
        fetch_idx(name, _idx_archives(cls, base, BOTH), cls.mirrors)
    elif cls is tv.SVHN:
        for split in ("train", "test"):
            cls(base, split=split, download=True)
    else:
        cls(base, train=True, download=True)


def _split(
    name: str, family: Family, base: Path, train: bool, normalisation: Normalisation
) -> ArraySplit:
    """Read one split and check that images and labels belong together."""
    where = f"{name} ({'train' if train else 'test'}) in {base / family.folder}"
    try:
        images, labels, class_names = family.read(family.cls, base, train)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise DatasetError(
            f"{where}: not readable as {name}: {error}. Delete the files and copy or download them "
            "again."
        ) from error
    if len(images) != len(labels):
        raise DatasetError(
            f"{where}: {len(images)} images but {len(labels)} labels: files of two different sets."
        )
    return ArraySplit(images, labels, class_names, normalisation, where)


def _ready_idx(name: str, cls: Any, base: Path, parts: tuple[bool, ...]) -> None:
    """Check and unpack the idx files of ``<root>/<Class>/raw``, two for each split."""
    unpack_idx(name, _idx_archives(cls, base, parts))


def _idx_archives(cls: Any, base: Path, parts: tuple[bool, ...]) -> list[KnownFile]:
    """The ``.gz`` files of splits."""
    folder = base / cls.__name__ / "raw"
    stems = tuple(_STEMS[part] for part in parts)
    return [KnownFile(folder / f, md5) for f, md5 in cls.resources if f.startswith(stems)]


def _read_idx(cls: Any, base: Path, train: bool) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read an MNIST-like split."""
    # Not cls(base): it would prefer a processed/training.pt of old versions to the checked files.
    stem = base / cls.__name__ / "raw" / _STEMS[train]
    images = read_image_file(f"{stem}-images-idx3-ubyte").unsqueeze(1)
    # "0 - zero" is torchvision's name of the digit 0.
    names = _DIGITS if cls is tv.MNIST else tuple(cls.classes)
    return images, read_label_file(f"{stem}-labels-idx1-ubyte"), names


def _ready_cifar(name: str, cls: Any, base: Path, parts: tuple[bool, ...]) -> None:
    """Check the batches, unpacking a good archive that was copied by hand."""
    folder = base / cls.base_folder
    # Both splits, whatever is asked for: torchvision's reader wants them.
    wanted = [*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])]
    files = [KnownFile(folder / file, md5) for file, md5 in wanted]
    archive = base / cls.filename
    if not all(check_integrity(path, md5) for path, md5 in files) and archive.is_file():
        unpack_archive(name, KnownFile(archive, cls.tgz_md5), [path for path, _ in files])
    require(name, files)


def _read_cifar(cls: Any, base: Path, train: bool) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read a CIFAR split."""
    data = cls(base, train=train)
    images = torch.from_numpy(np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)))
    return images, torch.tensor(data.targets, dtype=torch.int64), tuple(data.classes)


def _ready_svhn(name: str, cls: Any, base: Path, parts: tuple[bool, ...]) -> None:
    """Check the .mat file of each split."""
    require(
        name,
        [
            KnownFile(base / file, md5)
            for _, file, md5 in (cls.split_list["train" if part else "test"] for part in parts)
        ],
    )


def _read_svhn(cls: Any, base: Path, train: bool) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read an SVHN split."""
    data = cls(base, split="train" if train else "test")
    return torch.from_numpy(np.ascontiguousarray(data.data)), torch.from_numpy(data.labels), _DIGITS


FAMILIES: dict[str, Family] = {
    "mnist": Family(
        tv.MNIST, _ready_idx, _read_idx, "MNIST/raw", Normalisation((0.1307,), (0.3081,))
    ),
    "fashion_mnist": Family(
        tv.FashionMNIST,
        _ready_idx,
        _read_idx,
        "FashionMNIST/raw",
        Normalisation((0.2860,), (0.3530,)),
    ),
    "kmnist": Family(
        tv.KMNIST, _ready_idx, _read_idx, "KMNIST/raw", Normalisation((0.1918,), (0.3483,))
    ),
    "cifar10": Family(
        tv.CIFAR10,
        _ready_cifar,
        _read_cifar,
        tv.CIFAR10.base_folder,
        Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
    "cifar100": Family(
        tv.CIFAR100,
        _ready_cifar,
        _read_cifar,
        tv.CIFAR100.base_folder,
        Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
    "svhn": Family(
        tv.SVHN,
        _ready_svhn,
        _read_svhn,
        "",
        Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    ),
}
