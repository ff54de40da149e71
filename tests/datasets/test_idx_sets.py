"""MNIST and its kin: files are checked before they are used, archives copied by hand just work.

Real MNIST is read where the shared data folder lies beside the repository; the other sets are
written here in their official layout, with the checksums patched to match.
"""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets as tv
from vision_files import load, md5

from bayes_dc.datasets import DataConfig, DatasetError, load_dataset, load_test_split
from bayes_dc.datasets import files as files_module

SHARED = Path(__file__).parents[3] / "shared" / "data"
IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
CPU = torch.device("cpu")


def idx(array):
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture(params=["mnist", "fashion_mnist", "kmnist"])
def idx_set(request, tmp_path, monkeypatch):
    """A small set in MNIST's layout: returns name, root, folder of the .gz files and the images."""
    cls = {"mnist": tv.MNIST, "fashion_mnist": tv.FashionMNIST, "kmnist": tv.KMNIST}[request.param]
    folder = tmp_path / cls.__name__ / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 28, 28))
    arrays = (images[:8], np.arange(8) % 10, images[8:], np.arange(4))
    resources = []
    for stem, array in zip(IDX, arrays, strict=True):
        content = gzip.compress(idx(array))
        (folder / f"{stem}-ubyte.gz").write_bytes(content)
        resources.append((f"{stem}-ubyte.gz", md5(content)))
    monkeypatch.setattr(cls, "resources", resources)
    return request.param, tmp_path, folder, images


def test_archives_copied_by_hand_are_unpacked(idx_set):
    name, root, folder, images = idx_set
    data = load(name, root)
    assert (len(data.train), len(data.test)) == (8, 4)
    assert data.input_shape == (1, 28, 28)
    assert len(data.class_names) == 10
    assert np.array_equal(data.test.image(3)[:, :, 0], images[11])
    assert data.train.labels.tolist() == [*range(8)]
    assert not list(folder.glob("*.partial"))


def test_unpacked_files_alone_are_enough(idx_set):
    name, root, folder, _ = idx_set
    load(name, root)
    for archive in folder.glob("*.gz"):
        archive.unlink()
    assert len(load(name, root).train) == 8


def test_missing_files_are_named_with_the_folder(idx_set):
    name, root, folder, _ = idx_set
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    (folder / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DatasetError) as caught:
        load(name, root)
    text = str(caught.value)
    assert f"missing train-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz in {folder}" in text
    assert "set data.download=true" in text


def test_damaged_archive_is_named(idx_set):
    name, root, folder, _ = idx_set
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DatasetError) as caught:
        load(name, root)
    assert f"{path} is damaged or was only partly downloaded (wrong MD5" in str(caught.value)
    assert "Delete it" in str(caught.value)
    assert "another release of the set on purpose, unpack it by hand (gunzip)" in str(caught.value)
    assert not (folder / "train-images-idx3-ubyte").exists()


def test_half_unpacked_file_is_unpacked_again(idx_set):
    name, root, folder, images = idx_set
    load(name, root)
    path = folder / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(load(name, root).test.image(3)[:, :, 0], images[11])


@pytest.mark.parametrize("keep", [0, 3, 10, 500])
def test_half_unpacked_file_without_archive_is_named(idx_set, keep):
    name, root, folder, _ = idx_set
    load(name, root)
    path = folder / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:keep])
    path.with_name(path.name + ".gz").unlink()
    with pytest.raises(DatasetError, match=r"t10k-images-idx3-ubyte is damaged .*than its header"):
        load(name, root)


def test_full_disk_while_unpacking(idx_set, monkeypatch):
    name, root, folder, _ = idx_set

    def full(source, target):
        target.write(source.read(100))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files_module.shutil, "copyfileobj", full)
    with pytest.raises(DatasetError, match=r"cannot unpack .*No space left on device\. Copy the"):
        load(name, root)
    monkeypatch.undo()
    assert sorted(path.suffix for path in folder.iterdir()) == [".gz"] * 4


def test_two_runs_may_unpack_at_the_same_time(idx_set, monkeypatch):
    """A second run starts and ends while the first is in the middle of a file."""
    name, root, folder, images = idx_set
    real = shutil.copyfileobj
    seen = []

    def interrupted(source, target):
        target.write(source.read(100))
        if not seen:
            seen.append(None)
            seen[0] = load(name, root).train.images
        real(source, target)

    monkeypatch.setattr(files_module.shutil, "copyfileobj", interrupted)
    first = load(name, root).train.images
    assert np.array_equal(first[:, 0].numpy(), images[:8])
    assert torch.equal(seen[0], first)
    assert len(list(folder.iterdir())) == 8


def test_images_and_labels_of_different_sets(idx_set):
    name, root, folder, _ = idx_set
    load(name, root)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(5)))
    with pytest.raises(DatasetError, match="8 images but 5 labels: files of two different sets"):
        load(name, root)


def test_labels_in_place_of_images(idx_set):
    name, root, folder, _ = idx_set
    load(name, root)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(np.arange(5)))
    with pytest.raises(DatasetError, match=r"not readable as .*3 dimension.*Delete the files"):
        load(name, root)


def test_label_of_another_set(idx_set):
    name, root, folder, _ = idx_set
    load(name, root)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.full(8, 11)))
    with pytest.raises(DatasetError, match=r"labels must be 0 … 9 for 10 classes; got 11 … 11"):
        load(name, root)


def test_another_sets_files_are_never_taken(tmp_path, monkeypatch):
    """MNIST's files have the same names as Fashion-MNIST's: only the folder tells them apart."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for stem in IDX:
        (folder / f"{stem}-ubyte").write_bytes(
            idx(np.zeros((4, 28, 28) if "images" in stem else 4))
        )
    assert len(load("mnist", tmp_path).train) == 4
    with pytest.raises(
        DatasetError, match=r"fashion_mnist: missing train-images.*FashionMNIST/raw"
    ):
        load("fashion_mnist", tmp_path)


def test_download_fills_in_what_is_missing(idx_set, monkeypatch):
    name, root, folder, _ = idx_set
    path = folder / "train-images-idx3-ubyte.gz"
    elsewhere = root / "elsewhere"
    shutil.move(path, elsewhere)
    calls = []

    def download(url, root, filename, md5):
        if filename == path.name:
            calls.append(files_module.socket.getdefaulttimeout())
            shutil.copy(elsewhere, path)

    monkeypatch.setattr(files_module, "download_url", download)
    assert len(load(name, root, download=True).train) == 8
    assert calls == [files_module.DOWNLOAD_TIMEOUT_SECONDS]
    assert files_module.socket.getdefaulttimeout() is None
    assert len(load(name, root, download=True).train) == 8
    assert len(calls) == 1


def test_failed_download_says_why(idx_set, monkeypatch):
    name, root, folder, _ = idx_set
    (folder / "train-images-idx3-ubyte.gz").unlink()

    def download(*arguments):
        raise TimeoutError("timed out")

    monkeypatch.setattr(files_module, "download_url", download)
    wanted = (
        r"download into .*raw failed: train-images-idx3-ubyte\.gz is on no mirror "
        r"\(http.*: timed out\)\. Check the network"
    )
    with pytest.raises(DatasetError, match=wanted):
        load(name, root, download=True)


def test_unknown_home_folder_is_a_folder_that_is_missing():
    with pytest.raises(DatasetError, match=r"mnist: missing .* in ~nobody-of-this-name/MNIST/raw"):
        load("mnist", "~nobody-of-this-name")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real data at {SHARED}")
def test_real_mnist(tmp_path):
    shutil.copytree(SHARED / "MNIST", tmp_path / "MNIST", copy_function=shutil.copyfile)
    (tmp_path / "MNIST").chmod(0o755)
    (tmp_path / "MNIST" / "raw").chmod(0o755)
    data = load("mnist", tmp_path)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    pixels = data.train.images.double() / 255
    assert round(float(pixels.mean()), 4) == data.normalisation.mean[0]
    assert round(float(pixels.std(correction=0)), 4) == data.normalisation.std[0]


def test_test_files_are_enough_for_the_test_split(idx_set):
    name, root, folder, images = idx_set
    for file in folder.glob("train-*"):
        file.unlink()
    settings = DataConfig(name=name, root=str(root))
    test = load_test_split(settings)
    assert np.array_equal(test.image(3)[:, :, 0], images[11])
    with pytest.raises(DatasetError, match=r"missing train-images-idx3-ubyte\.gz, train-labels"):
        load_dataset(settings)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DatasetError, match=r"missing t10k-labels-idx1-ubyte\.gz in"):
        load_test_split(settings)


def test_test_split_alone_is_that_of_the_whole_set():
    settings = DataConfig(name="digits", scaling="unit")
    alone, whole = load_test_split(settings), load_dataset(settings).test
    assert torch.equal(alone.images, whole.images)
    assert torch.equal(alone.labels, whole.labels)
    assert alone.normalisation == whole.normalisation
