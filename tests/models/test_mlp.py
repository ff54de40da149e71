"""The multilayer perceptron: plain torch, from the sizes asked for."""

import pytest
import torch
from torch import nn

from bayes_dc.models import mlp


def test_layers_and_sizes():
    model = mlp(12, 3, hidden=(7, 5))
    kinds = [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in model] == kinds
    assert [tuple(layer.weight.shape) for layer in model[1::2]] == [(7, 12), (5, 7), (3, 5)]


def test_the_default_has_two_hidden_layers_of_800():
    shapes = [tuple(layer.weight.shape) for layer in mlp(784, 10)[1::2]]
    assert shapes == [(800, 784), (800, 800), (10, 800)]


def test_without_hidden_layers_it_is_linear():
    model = mlp(4, 2, hidden=())
    assert [type(layer) for layer in model] == [nn.Flatten, nn.Linear]
    # Two images of 4 pixels: logits of the flattened pixels.
    images = torch.randn(2, 1, 2, 2)
    assert torch.equal(model(images), model[1](images.view(2, 4)))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_images_of_any_shape_give_logits(rows):
    model = mlp(12, 3, hidden=(7,))
    x = torch.randn(rows, 3, 2, 2)
    assert model(x).shape == (rows, 3)
    assert torch.equal(model(x), model(x.flatten(1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), "in_features must be positive; got 0."),
        ((4, 0), "classes must be positive; got 0."),
        ((4, 3, (8, -1)), "hidden must be positive; got -1."),
    ],
    ids=["in_features", "classes", "hidden"],
)
def test_sizes_that_are_not_positive_are_refused(arguments, message):
    with pytest.raises(ValueError, match="must be positive") as error:
        mlp(*arguments)
    assert str(error.value) == message


def test_dropout_follows_every_relu():
    kinds = [type(layer) for layer in mlp(4, 3, hidden=(5, 6), dropout=0.5)]
    hidden = [nn.Linear, nn.ReLU, nn.Dropout]
    assert kinds == [nn.Flatten, *hidden, *hidden, nn.Linear]
    assert [type(layer) for layer in mlp(4, 3, hidden=(), dropout=0.5)] == [nn.Flatten, nn.Linear]


def test_dropout_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"^dropout must be in \[0, 1\); got 1\.5\.$"):
        mlp(4, 3, dropout=1.5)
