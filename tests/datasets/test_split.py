"""Splits: float batches, pictures, subsets, validation carved from training."""

import subprocess
import sys
from math import inf

import numpy as np
import pytest
import torch

from bayes_dc.datasets import ArraySplit, DataConfig, DatasetError, Normalisation, load_dataset
from bayes_dc.datasets import split as split_module
from bayes_dc.datasets.split import check_labels, to_float

CPU = torch.device("cpu")
COLOUR = Normalisation((0.1, 0.5, 0.9), (0.2, 0.3, 0.4))


def split_of(n=6, channels=3, classes=3):
    pixels = torch.arange(n * channels * 4) % 256
    return ArraySplit(
        pixels.to(torch.uint8).reshape(n, channels, 2, 2),
        torch.arange(n) % classes,
        tuple(f"c{i}" for i in range(classes)),
        COLOUR if channels == 3 else Normalisation((0.5,), (0.25,)),
        "toy (train)",
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_batch_is_the_formula(channels):
    split = split_of(channels=channels)
    indices = torch.tensor([4, 0, 4])
    x = split.batch(indices, CPU)
    mean, std = (
        torch.tensor(v, dtype=torch.float64).reshape(-1, 1, 1)
        for v in (split.normalisation.mean, split.normalisation.std)
    )
    exact = (split.images[indices].double() / 255 - mean) / std
    assert x.dtype == torch.float32
    # A product and a difference round once each; operands are below 255 / (255 · 0.2) + 0.9 / 0.2.
    assert (x.double() - exact).abs().max() <= 3 * 2**-24 * 10


def test_batch_leaves_the_pixels_alone():
    split = split_of()
    before = split.images.clone()
    split.batch(torch.arange(6), CPU).fill_(7)
    assert torch.equal(split.images, before)


def test_unit_scaling_keeps_black_at_exactly_zero():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2)
    assert to_float(pixels, Normalisation((0.0,), (1.0,))).flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("mean", "std"), [((0.5,), (0.0,)), ((0.5,), (-1.0,)), ((0.5, 0.5), (1.0,)), ((inf,), (1.0,))]
)
def test_constants_that_cannot_be_used_are_refused(mean, std):
    with pytest.raises(ValueError, match=r"mean and std must be one finite .* std above 0; got \["):
        Normalisation(mean, std)


def test_image_is_the_picture():
    split = split_of()
    picture = split.image(2)
    assert picture.shape == (2, 2, 3)
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, split.images[2].numpy().transpose(1, 2, 0))


def test_subset_keeps_samples_and_labels_together():
    split = split_of()
    part = split.subset(torch.tensor([5, 1]))
    assert len(part) == 2
    assert part.labels.tolist() == [2, 1]
    assert torch.equal(part.batch(torch.arange(2), CPU), split.batch(torch.tensor([5, 1]), CPU))


def test_empty_split_is_refused():
    with pytest.raises(DatasetError, match=r"toy \(train\) holds no samples: nothing to train on"):
        split_of(n=0)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_range_are_refused(label):
    split = split_of()
    with pytest.raises(
        DatasetError, match=r"labels must be 0 … 2 for 3 classes; got .*another data"
    ):
        ArraySplit(split.images[:1], torch.tensor([label]), ("a", "b", "c"), COLOUR, "toy")


def digits(**settings):
    return load_dataset(DataConfig(name="digits", **settings))


def test_validation_is_carved_from_training():
    whole, parts = digits(), digits(validation_fraction=0.25)
    assert parts.validation is not None
    assert len(parts.validation) == round(0.25 * len(whole.train))
    assert len(parts.train) + len(parts.validation) == len(whole.train)
    rejoined = torch.cat([parts.train.images, parts.validation.images]).flatten(1).tolist()
    assert sorted(rejoined) == sorted(whole.train.images.flatten(1).tolist())
    assert torch.equal(parts.test.images, whole.test.images)


def test_validation_follows_its_own_seed():
    first, again, other = (digits(validation_fraction=0.2, validation_seed=s) for s in (1, 1, 2))
    assert torch.equal(first.validation.images, again.validation.images)
    assert not torch.equal(first.validation.images, other.validation.images)


@pytest.mark.parametrize("fraction", [1e-5, 1 - 1e-5])
def test_validation_that_leaves_a_side_empty_is_refused(fraction):
    with pytest.raises(
        DatasetError, match=r"must leave at least one sample on each side\. Set 0 for"
    ):
        digits(validation_fraction=fraction)


def test_scaling_unit():
    data = load_dataset(DataConfig(name="digits", scaling="unit"))
    x = data.train.batch(torch.arange(len(data.train)), CPU)
    assert data.normalisation == Normalisation((0.0,), (1.0,))
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)


def test_constants_of_a_checkpoint_replace_the_own_ones():
    wanted = Normalisation((0.25,), (0.5,))
    data = load_dataset(DataConfig(name="digits"), wanted)
    assert data.normalisation == wanted
    black = to_float(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), wanted)
    assert data.test.batch(torch.arange(9), CPU).min() == black == -0.5


def test_constants_for_another_number_of_channels_are_refused():
    with pytest.raises(
        DatasetError,
        match=r"digits has images of 1 channel\(s\); the network was trained on images of 3",
    ):
        load_dataset(DataConfig(name="digits"), COLOUR)


def test_import_is_light():
    """torchvision and scikit-learn cost seconds; they are loaded with the data that needs them."""
    heavy = ("torchvision", "sklearn", "scipy", "matplotlib")
    code = f"import sys, bayes_dc.datasets; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_split_that_does_not_fit_on_the_device_is_copied_batch_by_batch(monkeypatch):
    indices = torch.tensor([4, 0, 4])
    expected = split_of().batch(indices, CPU)
    monkeypatch.setattr(split_module, "room_bytes", lambda device: 71)
    small = split_of()
    assert small.images.nbytes == 72
    assert torch.equal(small.batch(indices, CPU), expected)
    assert list(small._resident.values()) == [None]
    monkeypatch.setattr(split_module, "room_bytes", lambda device: 72)
    resident = split_of()
    assert torch.equal(resident.batch(indices, CPU), expected)
    assert resident._resident[CPU] is resident.images


@pytest.mark.gpu
def test_split_goes_to_a_gpu_that_has_room():
    device = torch.device("cuda", torch.cuda.current_device())
    data = split_of()
    assert torch.equal(
        data.batch(torch.tensor([3, 1]), device).cpu(), data.batch(torch.tensor([3, 1]), CPU)
    )
    assert data._resident[device].is_cuda


def test_class_names_that_repeat_are_refused_for_every_data_set():
    with pytest.raises(DatasetError) as caught:
        check_labels(torch.tensor([0, 1]), ("cat", "dog", "cat"), "set (train) in folder")
    assert str(caught.value) == (
        "set (train) in folder: class names must differ from each other; got 'cat' twice. Rename "
        "one of the classes."
    )
