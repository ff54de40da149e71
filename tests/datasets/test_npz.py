"""One NumPy file: what it gives, and that whatever is wrong with it is said with its name."""

import io
import zipfile

import numpy as np
import pytest
import torch

from bayes_dc.datasets import DataConfig, DatasetError, Normalisation, load_dataset

CPU = torch.device("cpu")


def arrays(shape=(5, 4, 3), train=6, test=3, **changes):
    rng = np.random.default_rng(0)
    made = {
        "x_train": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
        "y_train": np.arange(train) % 3,
        "x_test": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        "y_test": np.arange(test) % 3,
    }
    made |= changes
    return {name: array for name, array in made.items() if array is not None}


def save(tmp_path, **content):
    path = tmp_path / "images.npz"
    np.savez(path, **content)
    return path


def load(path, normalisation=None, **settings):
    return load_dataset(DataConfig(name="npz", root=str(path), **settings), normalisation)


def test_colour_images(tmp_path):
    content = arrays()
    data = load(save(tmp_path, **content), scaling="unit")
    assert data.input_shape == (3, 5, 4)
    assert (len(data.train), len(data.test)) == (6, 3)
    assert data.class_names == ("0", "1", "2")
    assert data.test.labels.tolist() == [0, 1, 2]
    assert np.array_equal(data.test.image(2), content["x_test"][2])
    x = data.train.batch(torch.tensor([4, 1]), CPU)
    expected = content["x_train"][[4, 1]].transpose(0, 3, 1, 2).astype(np.float32) / 255
    assert np.allclose(x.numpy(), expected, rtol=0, atol=2**-23)


def test_grey_images_have_one_channel_with_and_without_its_dimension(tmp_path):
    flat = arrays(shape=(5, 4))
    first = load(save(tmp_path, **flat), scaling="unit")
    deep = {n: a[..., None] if n.startswith("x") else a for n, a in flat.items()}
    second = load(save(tmp_path, **deep), scaling="unit")
    assert first.input_shape == second.input_shape == (1, 5, 4)
    assert torch.equal(first.train.images, second.train.images)


def test_labels_in_a_column_are_those_of_keras(tmp_path):
    content = arrays(y_train=np.arange(6, dtype=np.uint8)[:, None] % 3)
    assert load(save(tmp_path, **content)).train.labels.tolist() == [0, 1, 2] * 2


def test_names_of_the_classes(tmp_path):
    content = arrays(class_names=np.array(["ant", "bee", "fly", "gnat"]))
    data = load(save(tmp_path, **content))
    assert data.class_names == data.test.class_names == ("ant", "bee", "fly", "gnat")


def test_standard_scaling_takes_the_constants_of_the_training_images(tmp_path):
    content = arrays()
    data = load(save(tmp_path, **content), validation_fraction=0.5)
    pixels = content["x_train"].astype(np.float64) / 255
    assert data.normalisation.mean == pytest.approx(pixels.mean((0, 1, 2)), rel=1e-12)
    assert data.normalisation.std == pytest.approx(pixels.std((0, 1, 2)), rel=1e-12)
    assert all(type(value) is float for value in data.normalisation.mean)


def test_constants_of_a_checkpoint_are_used_instead(tmp_path):
    given = Normalisation((0.0,) * 3, (2.0,) * 3)
    path = save(tmp_path, **arrays())
    assert load(path, given).normalisation == given
    with pytest.raises(DatasetError, match=r"npz has images of 3 channel\(s\); .* of 1\. Use a"):
        load(path, Normalisation((0.0,), (1.0,)))


def test_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path, **arrays())
    assert len(load("~/images.npz").train) == 6


objects = np.array([{"a": 1}] * 6, dtype=object)
REFUSED = {
    "scaled": (
        arrays(x_train=np.zeros((6, 5, 4, 3), np.float32)),
        "x_train must be uint8, 0 … 255; got float32. Save the pixels, not scaled values.",
    ),
    "channels first": (
        arrays(shape=(3, 32, 32)),
        "x_train must be [n, height, width] or [n, height, width, channels] with 1 or 3 channels; "
        "got [6, 3, 32, 32].",
    ),
    "flat": (arrays(shape=(12,)), "with 1 or 3 channels; got [6, 12]."),
    "no pixels": (arrays(shape=(0, 4)), "with 1 or 3 channels; got [6, 0, 4, 1]."),
    "empty": (arrays(test=0), "x_test holds no images: both splits are needed."),
    "two shapes": (
        arrays(x_test=np.zeros((3, 5, 5, 3), np.uint8)),
        "images of x_train are [5, 4, 3], those of x_test [5, 5, 3] (height, width, channels): "
        "save both splits in one shape.",
    ),
    "labels that are no numbers": (
        arrays(y_test=np.zeros(3)),
        "y_test must be whole numbers [n], 0 … classes − 1; got float64 [3].",
    ),
    "one-hot": (arrays(y_test=np.eye(3, dtype=np.int64)), "0 … classes − 1; got int64 [3, 3]."),
    "too few labels": (
        arrays(y_train=np.zeros(5, np.int64)),
        "y_train holds 5 labels for 6 images: save one for each.",
    ),
    "negative label": (
        arrays(y_test=np.array([0, -1, 2])),
        "y_test holds the label -1: count from 0.",
    ),
    "missing": (
        arrays(y_train=None, x_test=None, extra=np.zeros(1)),
        "lacks y_train, x_test; it holds extra, x_train, y_test. Save it by numpy.savez(path, "
        "x_train=…, y_train=…, x_test=…, y_test=…).",
    ),
    "few names": (
        arrays(class_names=np.array(["a", "b"])),
        "class_names must be texts, one for each of 3 classes; got <U1 [2]. Leave them out, or "
        "give all.",
    ),
    "names that are numbers": (arrays(class_names=np.arange(3)), "3 classes; got int64 [3]."),
    "one colour": (
        arrays(x_train=np.full((6, 5, 4, 3), 7, np.uint8)),
        "channel 0 of x_train has one value everywhere, so there is no deviation to divide by: set "
        "data.scaling to unit.",
    ),
    "objects": (
        arrays(y_train=objects),
        "cannot be read: Object arrays cannot be loaded when allow_pickle=False. Copy it again, or "
        "save plain arrays by numpy.savez; Python objects are never read.",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_said_with_the_file(tmp_path, content, message):
    path = save(tmp_path, **content)
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value).startswith(f"npz: {path}")
    assert message in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DatasetError) as caught:
        load(tmp_path / "none.npz")
    assert f"npz: {tmp_path}/none.npz is missing. Set data.root to the .npz" in str(caught.value)
    with pytest.raises(DatasetError) as caught:
        load(tmp_path)
    assert f"npz: {tmp_path} is a folder. Set data.root to the .npz file" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_file_that_was_cut_short(tmp_path, keep):
    path = save(tmp_path, **arrays())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"is no \.npz file, or was cut short") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_changed_bytes_are_noticed(tmp_path):
    path = save(tmp_path, **arrays())
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="cannot be read: Bad CRC-32") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_single_array_is_no_npz(tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, np.zeros(3))
    with pytest.raises(DatasetError, match=r"images\.npy is no \.npz file"):
        load(path)


@pytest.mark.parametrize(
    ("label", "dtype"),
    [(10**5, np.int32), (10**9, np.int64), (2**62, np.int64), (2**63, np.uint64)],
)
def test_a_label_that_numbers_no_class_is_refused_before_memory_is_taken(tmp_path, label, dtype):
    path = save(tmp_path, **arrays(y_test=np.array([0, label, 2], dtype)))
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value) == (
        f"npz: {path}: y_test holds the label {label}; the largest that is read is 99999. Number "
        "the classes 0, 1, 2, …."
    )


def test_class_names_that_repeat_are_refused_with_the_file(tmp_path):
    path = save(tmp_path, **arrays(class_names=np.array(["ant", "bee", "ant"])))
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value) == (
        f"npz (train) in {path}: class names must differ from each other; got 'ant' twice. Rename "
        "one of the classes."
    )


def test_class_names_that_are_no_text_are_refused(tmp_path):
    path = save(tmp_path, **arrays(class_names=np.array(["ant", "b\ud800", "fly"])))
    with pytest.raises(DatasetError, match=r"class_names cannot be written as UTF-8: .*Rename the"):
        load(path)


def rewrite(path, name, content):
    """Replace one file of the archive; None leaves it out."""
    with zipfile.ZipFile(path) as old:
        files = {n: old.read(n) for n in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for other, kept in files.items():
            if other != f"{name}.npy":
                new.writestr(other, kept)
        for file, data in content.items():
            new.writestr(file, data)


def test_a_file_in_the_archive_that_is_no_array_is_named(tmp_path):
    path = save(tmp_path, **arrays())
    rewrite(path, "x_train", {"x_train": b"pixels"})
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value) == (
        f"npz: {path}: x_train is no NumPy array. Save arrays by numpy.savez; other files in the "
        "archive are not read."
    )


@pytest.mark.parametrize("shape", [(10**7, 1000, 1000), (10**30, 2, 2), (2**62, 8, 8)])
def test_a_header_that_claims_more_than_there_is(tmp_path, shape):
    path = save(tmp_path, **arrays())
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    rewrite(path, "x_train", {"x_train.npy": header.getvalue() + bytes(100)})
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value).startswith(f"npz: {path} ")
    assert "does not fit in memory: " in str(caught.value) or "cannot be read: " in str(
        caught.value
    )


def test_a_file_larger_than_memory_says_so(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise MemoryError("Unable to allocate 9.09 TiB")

    path = save(tmp_path, **arrays())
    monkeypatch.setattr(np, "load", full)
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert str(caught.value) == (
        f"npz: {path} does not fit in memory: Unable to allocate 9.09 TiB. Save fewer or smaller "
        "images; if they are not that many, the file is damaged: copy it again."
    )


ENCRYPTED, METHOD = 6, 8  # offsets in a local file header; two more in the central directory


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (ENCRYPTED, 1, "is encrypted, password required for extraction"),
        (METHOD, 99, "That compression method is not supported"),
        (METHOD, zipfile.ZIP_DEFLATED, "Error -3 while decompressing data"),
        (METHOD, zipfile.ZIP_BZIP2, "Invalid data stream"),
    ],
)
def test_archives_that_zipfile_cannot_unpack(tmp_path, offset, value, message):
    path = save(tmp_path, **arrays())
    content = bytearray(path.read_bytes())
    for start, extra in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        content[content.index(start) + offset + extra] = value
    data = content.index(b"\x93NUMPY")
    content[data : data + 8] = b"\xff" * 8  # no stream of any method starts so
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"npz: {path} cannot be read: ")
    assert message in text
    assert text.endswith("numpy.savez; Python objects are never read.")
    assert "\n" not in text
