"""Folders of images, and decoding one image."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc.datasets import DataConfig, DatasetError, load_dataset
from bayes_dc.datasets import images as module
from bayes_dc.datasets.images import read_image

CPU = torch.device("cpu")
RED, BLUE = (250, 10, 20), (10, 20, 250)


def paint(path, colour, size=(6, 4), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)


@pytest.fixture
def root(tmp_path):
    for part in ("train", "test"):
        for name, colour in (("red", RED), ("blue", BLUE)):
            for i in range(3):
                paint(tmp_path / part / name / f"{i}.png", colour)
    (tmp_path / "train" / "red" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    return tmp_path


def load(root, **settings):
    return load_dataset(DataConfig(name="imagefolder", root=str(root), image_size=5, **settings))


def test_classes_are_the_sorted_folder_names(root):
    data = load(root)
    assert data.class_names == ("blue", "red")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.input_shape == (3, 5, 5)
    assert [tuple(data.train.image(i)[2, 2]) for i in (0, 5)] == [BLUE, RED]


@pytest.mark.parametrize("cache_bytes", [0, 2**20], ids=["decoded-each-time", "kept-decoded"])
def test_batches_are_the_normalised_pictures(root, monkeypatch, cache_bytes):
    monkeypatch.setattr(module, "CACHE_BYTES", cache_bytes)
    data = load(root)
    order = torch.tensor([5, 0, 3])
    for _ in range(2):
        x = data.train.batch(order, CPU)
        pictures = np.stack([data.train.image(i) for i in order.tolist()])
        assert x.shape == (3, 3, 5, 5)
        pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2)
        assert torch.equal(x, module.to_float(pixels, data.normalisation))


def test_files_are_read_once_if_they_fit_in_memory(root):
    data = load(root)
    x = data.train.batch(torch.arange(6), CPU)
    for path in data.train.files:
        path.unlink()
    assert torch.equal(data.train.batch(torch.arange(6), CPU), x)


def test_validation_is_carved_from_training(root):
    data = load(root, validation_fraction=0.5)
    assert sorted(data.train.files + data.validation.files) == sorted(load(root).train.files)
    for split in (data.train, data.validation):
        colours = [RED if label else BLUE for label in split.labels.tolist()]
        assert [tuple(split.image(i)[0, 0]) for i in range(len(split))] == colours


def test_missing_folders_are_named(root, tmp_path):
    with pytest.raises(DatasetError, match=r"missing folder .*nowhere/train\. Images must lie at"):
        load(tmp_path / "nowhere")


def test_class_folders_without_images_are_refused(root):
    (root / "train" / "green").mkdir()
    (root / "test" / "green").mkdir()
    with pytest.raises(DatasetError, match=r"train/green holds no images \(\.bmp, .*: add some or"):
        load(root)


def test_folder_without_classes_is_refused(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    with pytest.raises(DatasetError, match="train holds no class folders: put images at"):
        load(tmp_path)


def test_class_names_that_cannot_be_written_down_are_refused(root):
    for part in ("train", "test"):
        paint(root / part / os.fsdecode(b"a\xff") / "0.png", RED)
    with pytest.raises(DatasetError, match=r"class folder 'a.*' is not UTF-8\. Rename it"):
        load(root)


def test_unknown_home_folder_is_a_folder_that_is_missing():
    with pytest.raises(DatasetError, match="missing folder ~nobody-of-this-name/train"):
        load("~nobody-of-this-name")


def test_classes_must_agree(root):
    paint(root / "test" / "green" / "0.png", RED)
    with pytest.raises(DatasetError, match=r"only in train: \[\], only in test: \['green'\]"):
        load(root)


@pytest.mark.parametrize("content", [b"", b"no image", None], ids=["empty", "text", "truncated"])
def test_unreadable_image_is_named_when_it_is_needed(root, content):
    path = root / "train" / "red" / "0.png"
    paint(path, RED, size=(200, 200))
    path.write_bytes(path.read_bytes()[:150] if content is None else content)
    data = load(root)
    with pytest.raises(DatasetError, match=r"cannot read image .*train/red/0\.png: .*Replace it"):
        data.train.batch(torch.arange(6), CPU)


def test_missing_image_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"cannot read image .*none\.png: .*No such file"):
        read_image(tmp_path / "none.png", 3, 4, 4)


def test_deep_pixels_are_refused_rather_than_clipped(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(path)
    with pytest.raises(DatasetError, match=r"mode I;16 has more than 8 bits per channel\. Replace"):
        read_image(path, 1, 4, 4)


def test_pictures_are_turned_upright(tmp_path):
    path = tmp_path / "turned.jpg"
    pixels = np.zeros((4, 8, 3), dtype=np.uint8)
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: show turned clockwise by 90°
    Image.fromarray(pixels).save(path, exif=exif, quality=100, subsampling=0)
    upright = read_image(path, 1, 8, 4)[:, :, 0]
    assert upright.shape == (8, 4)
    assert upright[:3].min() > 200
    assert upright[5:].max() < 50


def test_grey_and_colour(tmp_path):
    path = tmp_path / "red.png"
    paint(path, (255, 0, 0))
    assert read_image(path, 1, 2, 3).shape == (2, 3, 1)
    assert read_image(path, 1, 2, 3)[0, 0, 0] == 76  # ITU-R 601: 0.299 · 255
    assert read_image(path, 3, 2, 3)[0, 0].tolist() == [255, 0, 0]
