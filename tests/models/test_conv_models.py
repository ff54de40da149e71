"""Convolutional networks: the published sizes, any batch, dropout that leaves the rest alone."""

import re

import pytest
import torch
from torch import nn

from bayes_dc.models import cnn, lenet5, resnet18, resnet20, vgg16_bn

MODELS = {
    "lenet5": (lenet5, (1, 28, 28)),
    "cnn": (cnn, (1, 28, 28)),
    "resnet18": (resnet18, (3, 32, 32)),
    "resnet20": (resnet20, (3, 32, 32)),
    "vgg16_bn": (vgg16_bn, (3, 32, 32)),
}


def label(value):
    """Id of a case, the same in every process."""
    return getattr(value, "__name__", None) or str(value)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


# LeCun's 61 706; (25 + 1) 32 + (25·32 + 1) 64 + 1025·500 + 5010; the others as published.
COUNTS = [
    (lenet5, (1, 28, 28), 61_706),
    (lenet5, (1, 32, 32), 61_706),
    (lenet5, (3, 32, 32), 62_006),
    (cnn, (1, 28, 28), 569_606),
    (resnet18, (3, 32, 32), 11_173_962),
    (resnet20, (3, 32, 32), 269_722),
    (vgg16_bn, (3, 32, 32), 14_728_266),
]


@pytest.mark.parametrize(("make", "shape", "count"), COUNTS, ids=label)
def test_number_of_parameters(make, shape, count):
    with torch.device("meta"):
        assert parameters(make(shape, 10)) == count


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_any_number_of_images_gives_as_many_logits(make, shape):
    if make is resnet18:
        shape = (3, 8, 8)
    model = make(shape, 4).double().eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    with torch.no_grad():
        all_three = model(x)
        assert all_three.shape == (3, 4)
        assert model(x[:0]).shape == (0, 4)
        torch.testing.assert_close(model(x[1:2]), all_three[1:2])


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_dropout_adds_modules_and_changes_nothing_else(make, shape):
    torch.manual_seed(0)
    plain = make(shape, 4)
    torch.manual_seed(0)
    dropped = make(shape, 4, dropout=0.25)
    assert not any(isinstance(m, nn.Dropout) for m in plain.modules())
    rates = [m.p for m in dropped.modules() if isinstance(m, nn.Dropout)]
    assert rates
    assert set(rates) == {0.25}
    states = plain.state_dict(), dropped.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


DROPOUTS = {"lenet5": 4, "cnn": 3, "resnet18": 9, "resnet20": 10, "vgg16_bn": 5}


@pytest.mark.parametrize("name", DROPOUTS)
def test_places_of_dropout(name):
    make, shape = MODELS[name]
    with torch.device("meta"):
        model = make(shape, 10, dropout=0.1)
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == DROPOUTS[name]


def test_layers_are_named_as_in_torchvision():
    names = {n for n, m in resnet18((3, 32, 32), 10).named_modules() if isinstance(m, nn.Conv2d)}
    assert {"conv1", "layer1.0.conv1", "layer2.0.downsample.0", "layer4.1.conv2"} <= names
    assert len(names) == 20


def test_shortcut_without_weights_subsamples_and_pads_channels():
    block = resnet20((3, 32, 32), 10).layer2[0].downsample
    x = torch.arange(2 * 16 * 4 * 4.0).reshape(2, 16, 4, 4)
    y = block(x)
    assert y.shape == (2, 32, 2, 2)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


REFUSED = [
    (lenet5, (1, 30, 30), {}, "lenet5 takes images of 28 × 28 or 32 × 32 pixels; input_shape is"),
    (lenet5, (1, 28, 32), {}, "(1, 28, 32). Resize them, or use cnn."),
    (cnn, (1, 15, 28), {}, "cnn takes images of at least 16 × 16 pixels; input_shape is"),
    (resnet18, (3, 7, 8), {}, "resnet18 takes images of at least 8 × 8 pixels; input_shape is"),
    (resnet20, (3, 8, 7), {}, "resnet20 takes images of at least 8 × 8 pixels; input_shape is"),
    (vgg16_bn, (3, 28, 28), {}, "vgg16_bn takes images of at least 32 × 32 pixels; input_shape is"),
    (cnn, (28, 28), {}, "input_shape must be (channels, height, width); got (28, 28)."),
    (cnn, (0, 28, 28), {}, "channels must be positive; got 0."),
    (cnn, (1, 28, 28), {"classes": 0}, "classes must be positive; got 0."),
    (cnn, (1, 28, 28), {"dropout": 1.0}, "dropout must be in [0, 1); got 1.0."),
    (resnet18, (3, 32, 32), {"dropout": -0.1}, "dropout must be in [0, 1); got -0.1."),
]


@pytest.mark.parametrize(("make", "shape", "options", "message"), REFUSED, ids=label)
def test_what_does_not_fit_is_refused(make, shape, options, message):
    options = {"classes": 10, **options}
    with torch.device("meta"), pytest.raises(ValueError, match=re.escape(message)):
        make(shape, options.pop("classes"), **options)
