"""CIFAR and SVHN, written here in their official layout, with the checksums patched to match."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from torchvision import datasets as tv
from vision_files import load, md5

from bayes_dc.datasets import DatasetError
from bayes_dc.datasets import files as files_module

CPU = torch.device("cpu")
CIFAR = {
    "cifar10": (tv.CIFAR10, "labels", [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]),
    "cifar100": (tv.CIFAR100, "fine_labels", ["train"], ["test"]),
}


@pytest.fixture(params=sorted(CIFAR))
def cifar(request, tmp_path, monkeypatch):
    """A small CIFAR as an archive: returns name, root, archive and the pixels per file."""
    cls, key, train, test = CIFAR[request.param]
    rng = np.random.default_rng(0)
    names = [f"class {i}" for i in range(100 if request.param == "cifar100" else 10)]
    pixels = {name: rng.integers(0, 256, (4, 3072)).astype(np.uint8) for name in (*train, *test)}
    content = {
        name: pickle.dumps({"data": pixels[name], key: [0, 1, 2, len(names) - 1]})
        for name in pixels
    }
    meta = pickle.dumps({cls.meta["key"]: names})
    archive = tmp_path / cls.filename
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in {**content, cls.meta["filename"]: meta}.items():
            info = tarfile.TarInfo(f"{cls.base_folder}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    monkeypatch.setattr(cls, "train_list", [[n, md5(content[n])] for n in train])
    monkeypatch.setattr(cls, "test_list", [[n, md5(content[n])] for n in test])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": md5(meta)})
    monkeypatch.setattr(cls, "tgz_md5", md5(archive.read_bytes()))
    return request.param, tmp_path, archive, pixels


def test_cifar_archive_copied_by_hand(cifar):
    name, root, _, pixels = cifar
    data = load(name, root)
    first = next(iter(pixels.values()))[3].reshape(3, 32, 32)
    assert np.array_equal(data.train.image(3), first.transpose(1, 2, 0))
    assert data.input_shape == (3, 32, 32)
    assert data.train.labels[:4].tolist() == [0, 1, 2, len(data.class_names) - 1]
    assert data.class_names[7] == "class 7"
    assert data.train.batch(torch.arange(2), CPU).shape == (2, 3, 32, 32)


def test_cifar_without_archive_once_unpacked(cifar):
    name, root, archive, _ = cifar
    load(name, root)
    archive.unlink()
    assert len(load(name, root).test) == 4


def test_cifar_file_lost_after_unpacking_comes_back_from_the_archive(cifar):
    name, root, archive, pixels = cifar
    load(name, root)
    lost = root / CIFAR[name][0].base_folder / list(pixels)[-1]
    lost.unlink()
    assert len(load(name, root).test) == 4
    lost.unlink()
    archive.unlink()
    with pytest.raises(DatasetError, match=rf"{name}: missing {lost.name} in .*{lost.parent.name}"):
        load(name, root)


def test_cut_cifar_archive_is_named(cifar):
    name, root, archive, _ = cifar
    archive.write_bytes(archive.read_bytes()[:1024])
    with pytest.raises(DatasetError) as caught:
        load(name, root)
    assert f"{archive} is damaged or was only partly downloaded" in str(caught.value)


def test_full_disk_while_unpacking_cifar(cifar, monkeypatch):
    name, root, archive, _ = cifar

    def full(source, target):
        (Path(target) / "half").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module, "extract_archive", full)
    with pytest.raises(DatasetError, match=r"cannot unpack .*: No space left on device\. Copy the"):
        load(name, root)
    assert list(root.iterdir()) == [archive]


def test_cifar_unpacks_beside_a_run_that_reads(cifar):
    """Files that another run has open are replaced, never written over."""
    name, root, _, pixels = cifar
    load(name, root)
    folder = root / CIFAR[name][0].base_folder
    first, *_, last = pixels
    with (folder / first).open("rb") as reading:
        whole = (folder / first).read_bytes()
        (folder / last).unlink()
        before = (folder / first).stat().st_ino
        load(name, root)
        assert reading.read() == whole
        assert (folder / first).stat().st_ino != before
    assert not list(root.glob(".unpacking-*"))


def test_changed_cifar_file_is_named(cifar):
    name, root, archive, pixels = cifar
    load(name, root)
    archive.unlink()
    changed = root / CIFAR[name][0].base_folder / next(iter(pixels))
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(DatasetError) as caught:
        load(name, root)
    assert f"{changed} is damaged" in str(caught.value)


@pytest.fixture
def svhn(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    entries = {}
    for part, n in (("train", 5), ("test", 3)):
        path = tmp_path / f"{part}_32x32.mat"
        x = rng.integers(0, 256, (32, 32, 3, n)).astype(np.uint8)
        scipy.io.savemat(path, {"X": x, "y": np.array([[10], [1], [9], [2], [3]][:n])})
        entries[part] = ["", path.name, md5(path.read_bytes())]
        if part == "test":
            pixels = x
    monkeypatch.setattr(tv.SVHN, "split_list", {**tv.SVHN.split_list, **entries})
    return tmp_path, pixels


def test_svhn(svhn):
    root, pixels = svhn
    data = load("svhn", root)
    assert data.train.labels.tolist() == [0, 1, 9, 2, 3]
    assert data.class_names == tuple("0123456789")
    assert np.array_equal(data.test.image(2), pixels[:, :, :, 2])


def test_svhn_files_are_checked(svhn):
    root, _ = svhn
    path = root / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DatasetError, match=r"svhn: .*test_32x32\.mat is damaged"):
        load("svhn", root)
    path.unlink()
    with pytest.raises(DatasetError, match=r"svhn: missing test_32x32\.mat in "):
        load("svhn", root)
