"""The sampler of a layer, of a conversion and of a configuration."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayes_dc import DropConnectLinear, convert, dropconnect_linear, restore
from bayes_dc.nn import MaskKeys, dropconnect_layers
from bayes_dc.train import ModelConfig, build_model


def test_the_layer_draws_what_the_function_draws():
    torch.manual_seed(0)
    layer = DropConnectLinear(6, 5, p=0.25, sampler="gaussian", scale="none")
    x, ids = torch.randn(4, 6), torch.tensor([9, 2, 7, 4])
    keys = MaskKeys(3)
    with keys.attached(layer):
        keys.set(pass_ids=5, sample_ids=ids)
        got = layer(x)
        words = layer.masks.key
    want = dropconnect_linear(
        x,
        layer.weight,
        layer.bias,
        p=0.25,
        key=words,
        sample_ids=ids,
        pass_ids=torch.tensor([5]),
        scale="none",
        sampler="gaussian",
    )
    assert torch.equal(got, want)


def test_evaluation_is_the_mean_and_training_draws():
    torch.manual_seed(0)
    layer = DropConnectLinear(6, 5, sampler="gaussian")
    x = torch.randn(4, 6)
    assert torch.equal(layer.eval()(x), F.linear(x, layer.weight, layer.bias))
    layer.train()
    torch.manual_seed(1)
    first = layer(x)
    assert not torch.equal(layer(x), first)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    layer(x).sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_print_shows_the_sampler():
    assert repr(DropConnectLinear(2, 1, sampler="gaussian")).endswith(", sampler='gaussian')")
    assert "sampler" not in repr(DropConnectLinear(2, 1))


def test_convert_takes_the_sampler_and_restore_forgets_it():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    convert(model, p=0.25, sampler="gaussian")
    assert {m.sampler for m in dropconnect_layers(model).values()} == {"gaussian"}
    restore(model)
    assert set(model[0].__dict__) == set(nn.Linear(1, 1).__dict__)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": "normal"}, "sampler must be one of ('bernoulli', 'gaussian'); got 'normal'"),
        (
            {"sampler": "gaussian", "scope": "pass"},
            "sampler='gaussian' needs scope='row'; got scope='pass'. It draws every row on its own",
        ),
    ],
)
def test_options_that_no_layer_takes(options, text):
    model = nn.Sequential(nn.Linear(4, 3))
    for call in (lambda: DropConnectLinear(2, 1, **options), lambda: convert(model, **options)):
        with pytest.raises(ValueError, match="sampler") as caught:
            call()
        assert text in str(caught.value)
    assert type(model[0]) is nn.Linear


def test_a_configured_network_has_the_sampler():
    model = build_model(ModelConfig(hidden=(4,), sampler="gaussian"), (1, 3, 3), 2)
    assert {m.sampler for m in dropconnect_layers(model).values()} == {"gaussian"}
