"""Data sets that are packed bombs, lie about their sizes, or came only in part."""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from damage import archive, cuts, flips, refused

import bayes_dc.datasets.vision  # noqa: F401 - once, not in every fork
from bayes_dc.datasets import DataConfig, DatasetError, load_dataset, load_votes

SMALL = {
    "x_train": np.arange(6 * 20, dtype=np.uint8).reshape(6, 5, 4),
    "y_train": np.arange(6) % 3,
    "x_test": np.arange(3 * 20, dtype=np.uint8).reshape(3, 5, 4),
    "y_test": np.arange(3),
}


def load(name, root):
    return load_dataset(DataConfig(name=name, root=str(root)))


def npy(about, data=b""):
    """A .npy file with any header, a dict or text."""
    text = about if isinstance(about, str) else repr(about)
    text = text.ljust(128 - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def npz(compression=zipfile.ZIP_STORED, **replaced):
    """An .npz of the small set; some of its files are replaced by bytes."""
    files = {}
    for name, array in SMALL.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        files[f"{name}.npy"] = buffer.getvalue()
    return archive(files | {f"{name}.npy": new for name, new in replaced.items()}, compression)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.npz"


def refusal(path, content, **limits):
    path.write_bytes(content)
    text = refused(lambda: load("npz", path), "DatasetError", path, **limits)
    assert text.startswith(f"DatasetError: npz: {path}")
    return text


def zeros(gigabytes):
    """A .npy file of zeros, made by a process that never holds it."""
    count = gigabytes * 2**30
    about = npy({"descr": "|u1", "fortran_order": False, "shape": (count // 2**20, 2**10, 2**10)})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        with made.open("x_train.npy", "w", force_zip64=True) as file:
            file.write(about)
            for _ in range(count // 2**20):
                file.write(bytes(2**20))
        for name in ("y_train", "x_test", "y_test"):
            array = io.BytesIO()
            np.save(array, SMALL[name])
            made.writestr(f"{name}.npy", array.getvalue())
    return buffer.getvalue()


def test_a_packed_bomb_is_refused_before_it_is_unpacked(path):
    bomb = zeros(gigabytes=1)
    assert len(bomb) < 8 * 2**20
    text = refusal(path, bomb, mib=256, seconds=5)
    assert f"has {len(bomb)} bytes and would take {2**30 + 128 + 3 * 128 + 9 * 8 + 60} " in text
    assert "more than 200 times as many: it is no set of pictures. If it is, save it by" in text


def test_a_small_set_may_be_packed_however_well(path):
    empty = {name: np.zeros_like(array) for name, array in SMALL.items() if name[0] == "x"}
    np.savez_compressed(
        path,
        **(
            SMALL
            | empty
            | {"x_train": np.zeros((2000, 64, 64), np.uint8)}
            | {"y_train": np.zeros(2000, int), "x_test": np.zeros((3, 64, 64), np.uint8)}
        ),
    )
    data = load_dataset(DataConfig(name="npz", root=str(path), scaling="unit"))
    assert len(data.train) == 2000


U1 = {"descr": "|u1", "fortran_order": False, "shape": (6, 5, 4)}
ARRAYS = {
    "shape beyond the file": U1 | {"shape": (6, 10**6, 10**6)},
    "shape that overflows": U1 | {"shape": (2**32, 2**32, 4)},
    "negative shape": U1 | {"shape": (-6, -5, 4)},
    "a shape of text": U1 | {"shape": "x"},
    "a million dimensions": U1 | {"shape": (1,) * 30},
    "objects": U1 | {"descr": "|O"},
    "texts of a gigabyte": U1 | {"descr": "<U300000000"},
    "unknown type": U1 | {"descr": "<q9"},
    "a type of types": U1 | {"descr": [("a", "|O"), ("b", "<f8")]},
    "a call": "__import__('os').mkdir('marker')",
    "deeply nested": "(" * 100 + ")" * 100,
    "no dict": "[1, 2]",
}


@pytest.mark.parametrize("about", ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_claim_what_they_do_not_hold(path, about, monkeypatch):
    monkeypatch.chdir(path.parent)
    refusal(path, npz(x_train=npy(about, bytes(120))), seconds=10)
    assert list(path.parent.iterdir()) == [path]


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("name", ["x_train", "y_test", "class_names"])
def test_pickled_code_in_an_array_is_not_run(path, name):
    marker = path.parent / "marker"
    objects = io.BytesIO()
    np.save(objects, np.array([Harm(str(marker))] * 6, dtype=object), allow_pickle=True)
    bare = pickle.dumps(Harm(str(marker)))
    for content in (objects.getvalue(), bare):
        refusal(path, npz(**{name: content}))
    assert not marker.exists()


def test_names_that_leave_the_folder_write_nothing(path):
    away = path.parent.parent / "absolute.npy"
    files = {"../../x_train.npy": b"1", str(away): b"1", "..\\x.npy": b"1"}
    before = sorted(path.parent.iterdir())
    assert "lacks x_train, y_train, x_test, y_test; it holds " in refusal(path, archive(files))
    path.unlink()
    assert sorted(path.parent.iterdir()) == before
    assert not away.exists()


def test_a_set_cut_at_every_hundredth_of_its_length_is_named(path):
    for content in cuts(npz()):
        path.write_bytes(content)
        with pytest.raises(DatasetError) as caught:
            load("npz", path)
        assert str(caught.value).startswith(f"npz: {path} ")


@pytest.mark.parametrize(
    "packing",
    [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA],
    ids=["stored", "deflate", "lzma"],
)
def test_changed_bits_give_the_same_data_or_the_named_error(path, packing):
    """Every byte of the pictures has a checksum; some of the archive's own do not matter."""
    path.write_bytes(npz(packing))
    whole, texts = load("npz", path), []
    for content in flips(npz(packing)):
        path.write_bytes(content)
        try:
            data = load("npz", path)
        except DatasetError as error:
            texts.append(str(error))
            continue
        assert torch.equal(data.train.images, whole.train.images)
        assert torch.equal(data.test.labels, whole.test.labels)
    assert all(str(path) in text for text in texts)


def idx(*shape, data=b"", kind=8):
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + data


@pytest.fixture
def mnist(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 3)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            idx(count, 28, 28, data=bytes(count * 784))
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(count, data=bytes(range(count))))
    return folder


IDX = {
    "sizes that overflow to the right length": idx(2**31, 2**31, 4, data=b""),
    "sizes that overflow to nothing": idx(2**32 - 1, 2**32 - 1, 2**32 - 1),
    "sizes beyond the file": idx(2**31, 28, 28, data=bytes(100)),
    "255 dimensions": b"\0\0\x08\xff" + bytes(255 * 4),
    "numbers of another kind": idx(6, 28, 28, data=bytes(6 * 784), kind=13),
    "a header cut short": b"\0\0\x08\x03\0\0",
    "a packed archive": gzip.compress(bytes(10**6)),
    "nothing": b"",
}


@pytest.mark.parametrize("content", IDX.values(), ids=IDX)
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_unpacked_files_that_lie_about_their_size(mnist, name, content):
    (mnist / name).write_bytes(content)
    root = mnist.parents[1]
    refused(lambda: load("mnist", root), "DatasetError", mnist, seconds=20)


def test_a_bomb_in_place_of_an_archive_is_not_unpacked(mnist):
    """Its checksum is another, so nothing of it is read."""
    (mnist / "train-images-idx3-ubyte").unlink()
    bomb = mnist / "train-images-idx3-ubyte.gz"
    bomb.write_bytes(gzip.compress(bytes(2**28)))
    text = refused(lambda: load("mnist", mnist.parents[1]), "DatasetError", bomb, mib=200)
    assert "is damaged or was only partly downloaded (wrong MD5 checksum). Delete it" in text
    assert not (mnist / "train-images-idx3-ubyte").exists()
    assert not list(mnist.glob(".*"))


VOTES = np.eye(4, dtype=np.int64)[np.arange(40) % 4] * 9
VOTED = torch.arange(40) % 4


def votes_refusal(path, content):
    path.write_bytes(content)
    text = refused(lambda: load_votes(path, VOTED, 4), "DatasetError", path, seconds=10)
    assert text.startswith("DatasetError: votes: ")
    return text


def test_damaged_votes_are_named(tmp_path):
    path = tmp_path / "votes.npz"
    np.savez_compressed(path, counts=VOTES)
    whole, texts = path.read_bytes(), []
    for content in (*cuts(whole), *flips(whole)):
        path.write_bytes(content)
        try:
            votes = load_votes(path, VOTED, 4)
        except DatasetError as error:
            texts.append(str(error))
        else:
            assert (votes.numpy() == VOTES).all()
    assert len(texts) >= 100
    assert all(str(path) in text for text in texts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive({"counts.npy": b"text"}), "counts is no NumPy array"),
        (archive({"a.npy": b"", "b.npy": b""}), "must hold one array of counts; got a, b."),
        (archive({}), "must hold one array of counts; got none."),
        (pickle.dumps(VOTES), "is not readable as .npy or .npz of numbers"),
        (npy({"descr": "<i8", "fortran_order": False, "shape": (40, 10**12)}), "is not readable"),
        (npy({"descr": "|O", "fortran_order": False, "shape": (40, 4)}), "is not readable"),
    ],
    ids=["text", "two arrays", "no array", "a pickle", "shape beyond the file", "objects"],
)
def test_votes_that_are_no_counts(tmp_path, content, message):
    assert message in votes_refusal(tmp_path / "votes.npz", content)


def test_packed_votes_are_refused_before_they_are_unpacked(tmp_path):
    bomb = archive({"counts.npy": bytes(2**28)}, zipfile.ZIP_DEFLATED)
    text = votes_refusal(tmp_path / "votes.npz", bomb)
    assert f"counts unpacks to {2**28} bytes; votes take {8 * 160 + 2**16}" in text


def test_votes_from_a_pipe_do_not_block(tmp_path):
    path = tmp_path / "votes.npy"
    os.mkfifo(path)
    text = refused(lambda: load_votes(path, VOTED, 4), "DatasetError", path, seconds=5)
    assert "is no file: name the .npy or .npz of counts." in text


def test_the_undamaged_sets_are_read(path, mnist):
    """Or the tests above would show nothing."""
    path.write_bytes(npz())
    assert len(load("npz", path).train) == 6
    assert len(load("mnist", mnist.parents[1]).test) == 3
    assert json.dumps(load("npz", path).class_names) == '["0", "1", "2"]'
