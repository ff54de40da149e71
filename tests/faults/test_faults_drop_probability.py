"""Faults of drop probabilities elsewhere: 0 that drops, 1 that divides by 0, and no numbers."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    MaskKey,
    MonteCarloEngine,
    convert,
    dropconnect_conv2d,
    dropconnect_linear,
    predict_with_uncertainty,
)
from bayes_dc.config import ConfigError, load_config
from bayes_dc.nn import MaskKeys
from bayes_dc.rng import keep_digits

KEY = MaskKey(0)
MAKE = {
    "linear layer": lambda p: DropConnectLinear(2, 2, p=p),
    "convolution": lambda p: DropConnectConv2d(1, 1, 1, p=p),
    "conversion": lambda p: convert(nn.Sequential(nn.Linear(2, 2)), p),
    "linear function": lambda p: dropconnect_linear(
        torch.ones(1, 2), torch.ones(2, 2), p=p, key=KEY
    ),
    "convolution function": lambda p: dropconnect_conv2d(
        torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1), p=p, key=KEY
    ),
    "digits": keep_digits,
}


@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
def test_p_zero_drops_nothing(scope):
    # source: csarofeen/pytorch#1799
    size = 1024
    torch.manual_seed(0)
    layer = DropConnectLinear(size, size, p=0.0, scope=scope).train()
    x = torch.randn(4, size)
    want = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    # sums of 1024 products of float32: at most 1024 roundings of half a unit
    slack = size * 2.0**-24 * F.linear(x.abs(), layer.weight.abs(), layer.bias.abs()).max()
    for _ in range(10):
        assert (layer(x) - want).abs().max() < slack
    probe = dropconnect_linear(torch.eye(size), torch.ones(size, size), p=0.0, key=KEY, scope=scope)
    assert bool((probe == 1).all())
    digits = keep_digits(0.0)
    assert (digits.keep, digits.bits, digits.p_effective) == (1, 0, 0.0)
    image = torch.randn(2, 3, 5, 5)
    convolution = DropConnectConv2d(3, 4, 3, p=0.0).train()
    plain = F.conv2d(image, convolution.weight, convolution.bias)
    torch.testing.assert_close(convolution(image), plain, rtol=0, atol=27 * 2.0**-23)


@pytest.mark.parametrize("what", MAKE)
@pytest.mark.parametrize("p", [1.0, 1, 1 - 2.0**-30])
def test_p_one_is_refused(what, p):
    """Nothing would be left, and the scale 1 / (1 − p) would be infinite."""
    # source: NeuraLegion/shainet#106
    text = r"p must be a drop probability in \[0, 1\)" if p == 1 else "is too close to 1 for a mask"
    with pytest.raises(ValueError, match=text):
        MAKE[what](p)


def test_the_largest_p_is_scaled_and_finite():
    # source: NeuraLegion/shainet#106
    layer = DropConnectLinear(64, 8, p=1 - 2.0**-16).train()
    x = torch.ones(512, 64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    for t in (y, x.grad, layer.weight.grad):
        assert t.isfinite().all()
    # what is kept is multiplied by 2¹⁶
    kept = dropconnect_linear(torch.ones(4096, 1), torch.ones(64, 1), p=layer.p, key=KEY)
    assert set(kept.unique().tolist()) == {0.0, 2.0**16}


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout1d, nn.AlphaDropout])
def test_dropout_of_everything_is_finite(dropout):
    """torch's dropout takes p = 1, so keyed masks must."""
    # source: NeuraLegion/shainet#106
    layer = dropout(1.0)
    x = torch.randn(3, 4, 5, requires_grad=True)
    keys = MaskKeys(0)
    with keys.attached(layer):
        keys.set(pass_ids=0, sample_ids=torch.arange(3))
        y = layer(x)
    y.sum().backward()
    assert torch.equal(y, dropout(1.0)(x))
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("path", ["folded", "engine"])
def test_dropout_of_everything_in_a_prediction(path):
    # source: NeuraLegion/shainet#106
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(1.0),
                          nn.Linear(8, 3)).eval()  # fmt: skip
    x = torch.randn(5, 4)
    want = model[4].bias.detach().double().softmax(0).expand(5, 3)
    if path == "engine":
        got = MonteCarloEngine(model, x, T=3)(x)
    else:
        with pytest.warns(UserWarning, match="All 3 passes gave the same"):
            got = predict_with_uncertainty(model, x, T=3, engine="folded")
    torch.testing.assert_close(got.mean, want, rtol=0, atol=2.0**-50)
    assert not got.variance.any()


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan, math.inf, -math.inf, "0.5", True])
@pytest.mark.parametrize("what", MAKE)
def test_what_is_no_probability_is_refused(what, p):
    # source: tracel-ai/burn#2694
    error = ValueError if type(p) is float else TypeError
    with pytest.raises(error, match=r"\bp must be a (drop probability|real number) in \[0, 1\)"):
        MAKE[what](p)


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_an_option_that_is_changed_later_is_checked_too(p):
    # source: tracel-ai/burn#2694
    for layer, x in (
        (DropConnectLinear(2, 2), torch.ones(1, 2)),
        (DropConnectConv2d(1, 1, 1), torch.ones(1, 1, 2, 2)),
    ):
        layer.p = p
        with pytest.raises(ValueError, match=r"p must be a drop probability in \[0, 1\)"):
            layer.train()(x)


@pytest.mark.parametrize("key", ["p", "dropout"])
@pytest.mark.parametrize("value", ["-0.1", "1.5", "1.0", ".nan", ".inf", "'0.5'", "true", "[0.5]"])
def test_a_configuration_holds_only_probabilities(tmp_path, key, value):
    # source: tracel-ai/burn#2694
    path = tmp_path / "config.yaml"
    path.write_text(f"output_dir: x\ndata: {{name: digits}}\nmodel: {{{key}: {value}}}\n", "utf-8")
    with pytest.raises(ConfigError, match=rf"model\.{key}") as caught:
        load_config(path)
    assert "config.yaml" in str(caught.value)
