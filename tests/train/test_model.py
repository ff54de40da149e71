"""Building the network: every setting reaches its layer, and the seed alone decides the weights."""

import pytest
import torch
from torch import nn

from bayes_dc import predict_with_uncertainty
from bayes_dc.nn import DropConnectLinear
from bayes_dc.train import ModelConfig, build_model

SHAPE = (1, 3, 3)


def layers(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def test_settings_reach_every_layer():
    settings = ModelConfig(p=0.37, hidden=(5, 4), scope="pass", scale="none")
    built = layers(build_model(settings, SHAPE, 2))
    assert [(m.in_features, m.out_features) for m in built] == [(9, 5), (5, 4), (4, 2)]
    assert all(isinstance(m, DropConnectLinear) for m in built)
    assert {(m.p, m.scope, m.scale) for m in built} == {(0.37, "pass", "none")}
    assert [m.mask_layer for m in built] == [0, 1, 2]


def test_last_layer_can_stay_plain():
    kinds = [type(m) for m in layers(build_model(ModelConfig(exclude_last=True), SHAPE, 2))]
    assert kinds == [DropConnectLinear, DropConnectLinear, nn.Linear]


@pytest.mark.parametrize("width", [2**50, 2**70])
def test_network_that_is_larger_than_memory(width):
    with pytest.raises(ValueError, match=rf"9 inputs and hidden layers \[{width}\] does not fit"):
        build_model(ModelConfig(hidden=(width,)), SHAPE, 2)


def test_last_pattern_that_fits_decides():
    def chosen(*select):
        settings = ModelConfig(hidden=(5, 4), select=select)
        model = build_model(settings, SHAPE, 2)
        return [n for n, m in model.named_modules() if isinstance(m, DropConnectLinear)]

    assert chosen("*") == ["1", "3", "5"]
    assert chosen("[13]") == ["1", "3"]
    assert chosen("*", "!3") == ["1", "5"]
    assert chosen("!3", "*") == ["1", "3", "5"]
    assert chosen("!3") == ["1", "5"]
    assert chosen("*", "!*", "5") == ["5"]


@pytest.mark.parametrize("pattern", ["fc", "!fc"])
def test_pattern_that_fits_no_layer(pattern):
    with pytest.raises(ValueError, match="select names 'fc', and no linear or"):
        build_model(ModelConfig(hidden=(5,), select=("*", pattern)), SHAPE, 2)


@pytest.mark.parametrize("name", ["lenet5", "cnn", "resnet18", "resnet20", "vgg16_bn"])
def test_every_network_has_its_name(name):
    settings = ModelConfig(name=name, p=0, dropout=0.25)
    with torch.device("meta"):
        model = build_model(settings, (3, 32, 32), 7)
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.25}


def test_perceptron_with_dropout():
    model = build_model(ModelConfig(p=0, dropout=0.25, hidden=(5,)), SHAPE, 2)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.25]


def test_images_that_a_network_does_not_take():
    with pytest.raises(ValueError, match="lenet5 takes images of 28"):
        build_model(ModelConfig(name="lenet5"), (1, 8, 8), 10)


def test_layers_have_their_own_default_scope():
    assert {m.scope for m in layers(build_model(ModelConfig(), SHAPE, 2))} == {"row"}


def test_p_zero_is_a_plain_network():
    assert {type(m) for m in layers(build_model(ModelConfig(p=0), SHAPE, 2))} == {nn.Linear}


def test_seed_decides_the_weights_and_nothing_else_does():
    def weights(seed, p=0.5):
        model = build_model(ModelConfig(hidden=(5,), p=p), SHAPE, 2, seed=seed)
        return torch.cat([value.flatten() for value in model.state_dict().values()])

    torch.manual_seed(11)
    first = weights(2**64 - 1, p=0)
    torch.manual_seed(12)
    assert torch.equal(weights(2**64 - 1, p=0), first)
    assert not torch.equal(weights(0, p=0), first)


def test_plain_and_dropconnect_networks_start_equal():
    plain, dropped = (
        build_model(ModelConfig(hidden=(5,), p=p), SHAPE, 2, seed=4) for p in (0, 0.5)
    )
    for a, b in zip(plain.parameters(), dropped.parameters(), strict=True):
        assert torch.equal(a, b)


def test_global_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    build_model(ModelConfig(), SHAPE, 2, seed=9)
    assert torch.equal(torch.rand(1), expected)


def test_p_that_no_mask_can_have_is_refused():
    with pytest.raises(ValueError, match="p"):
        build_model(ModelConfig(p=1e-9), SHAPE, 2)


SIZES = {"mlp": 4, "lenet5": 28, "cnn": 16, "resnet18": 8, "resnet20": 8, "vgg16_bn": 32}


@pytest.mark.parametrize("name", SIZES)
def test_every_network_predicts_with_uncertainty(name):
    """Passes that are folded into one forward are those run one by one."""
    hidden = (8,) if name == "mlp" else None
    settings = ModelConfig(name=name, p=0.5, dropout=0.5, hidden=hidden)
    model = build_model(settings, (1, SIZES[name], SIZES[name]), 3).double()
    x = torch.randn(2, 1, SIZES[name], SIZES[name], dtype=torch.float64)
    folded, single = (
        predict_with_uncertainty(model, x, 3, chunk=chunk, return_samples=True)
        for chunk in (None, 1)
    )
    assert (folded.samples.var(0) > 0).all()
    torch.testing.assert_close(folded.samples, single.samples)
