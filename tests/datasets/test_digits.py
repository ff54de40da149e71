"""The embedded data set: real numbers, and a split that no library version can move."""

from hashlib import sha256

import torch
from sklearn.datasets import load_digits

from bayes_dc.datasets import DataConfig, Normalisation, load_dataset
from bayes_dc.datasets.digits import STANDARD, load

UNIT = Normalisation((0.0,), (1.0,))


def test_every_digit_is_in_exactly_one_split():
    train, test = load(UNIT)
    assert (len(train), len(test)) == (1438, 359)
    both = torch.cat([train.images, test.images]).flatten(1)
    source = torch.from_numpy(load_digits().images).flatten(1) * (255 / 16)
    ours = sorted(map(tuple, both.tolist()))
    theirs = sorted(map(tuple, source.round().to(torch.uint8).tolist()))
    assert ours == theirs


def test_test_set_is_a_fifth_of_every_class():
    train, test = load(UNIT)
    for label in range(10):
        inside, outside = int((test.labels == label).sum()), int((train.labels == label).sum())
        assert inside == round(0.2 * (inside + outside))


def test_test_set_never_moves():
    """Numbers measured on this split are comparable only while it holds the same images."""
    _, test = load(UNIT)
    digest = sha256(test.images.numpy().tobytes() + test.labels.numpy().tobytes()).hexdigest()
    assert digest == "541f25e1de27353a947cd3c5a1af281df43a6f3dae6f3d0ae3bca56c08efd7d3"


def test_constants_are_those_of_the_training_set():
    train, _ = load(UNIT)
    pixels = train.images.double() / 255
    assert round(float(pixels.mean()), 4) == STANDARD.mean[0]
    assert round(float(pixels.std(correction=0)), 4) == STANDARD.std[0]


def test_bundle():
    data = load_dataset(DataConfig(name="digits"))
    assert data.input_shape == (1, 8, 8)
    assert data.class_names == tuple("0123456789")
    assert data.validation is None
    assert data.normalisation == STANDARD
