"""Layers whose weight is computed: parametrizations, old weight norm, pruning."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    convert,
    predict_with_uncertainty,
    restore,
)
from bayes_dc.nn import MaskKeys

NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old weight_norm": old_weight_norm,
    "old spectral_norm": old_spectral_norm,
    "pruning": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("make", [lambda: nn.Linear(8, 4), lambda: nn.Conv2d(8, 4, 1)])
def test_computed_weights_are_masked(norm, make):
    """The mask applies to the weight that the parametrization computes."""
    torch.manual_seed(0)
    layer, ones = make(), make()
    nn.init.ones_(ones.weight)
    nn.init.zeros_(ones.bias)
    convert(ones, p=0.5)
    shape = (8, 8) if isinstance(layer, nn.Linear) else (8, 8, 1, 1)
    x = torch.eye(8).reshape(shape)  # unit inputs show the masked weights
    NORMS[norm](layer)
    names, kind = [n for n, _ in layer.named_parameters()], type(layer)
    for _ in range(3):
        layer(x)  # moves the estimate of spectral_norm
    want = layer.eval()(x)
    state = {k: v.clone() for k, v in layer.state_dict().items()}
    report = convert(layer, p=0.5)
    assert (tuple(report.converted), report.masked_weights) == (("",), 32)
    assert isinstance(layer, (DropConnectLinear, DropConnectConv2d))
    assert [n for n, _ in layer.named_parameters()] == names
    assert all(torch.equal(v, state[k]) for k, v in layer.state_dict().items())
    assert torch.equal(layer(x), want)
    keys = MaskKeys(0)
    keys.set(pass_ids=0, sample_ids=torch.arange(8))
    with keys.attached(layer), keys.attached(ones):
        mask = ones(x) > 0
        bias = layer.bias.reshape(-1, *[1] * (x.ndim - 2))
        masked, whole = layer(x) - bias, 2 * (want - bias)
    assert mask.any()
    assert not mask.all()
    # A product, a sum with the bias and its difference: three roundings of the largest of them.
    band = 1.5 * torch.finfo(torch.float32).eps * torch.maximum(whole.abs(), bias.abs())
    assert (masked - torch.where(mask, whole, 0)).abs().le(band).all()
    layer.train()(x).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    # An orthogonal matrix of one element is 1 or -1 whatever its parameter.
    assert norm == "orthogonal" or all(p.grad.any() for p in layer.parameters())
    layer.eval().load_state_dict(state)
    restore(layer)
    assert (type(layer).__name__, type(layer).__bases__) == (kind.__name__, kind.__bases__)
    assert torch.equal(layer(x), want)


def test_a_parametrization_can_be_removed_and_added_while_converted():
    layer = parametrizations.weight_norm(nn.Linear(4, 4)).eval()
    x = torch.ones(2, 4)
    want = layer(x)
    convert(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is DropConnectLinear
    assert torch.equal(layer(x), want)
    parametrizations.weight_norm(layer)
    parametrizations.weight_norm(layer, "bias", dim=None)
    restore(layer)
    assert type(layer).__bases__ == (nn.Linear,)
    torch.testing.assert_close(layer(x), want)
    parametrize.remove_parametrizations(layer, "bias")
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear


def test_deep_copies_of_parametrized_layers_are_on_their_own():
    """They share a class, made by torch, before the conversion."""
    layer = parametrizations.weight_norm(nn.Linear(4, 4)).eval()
    twin = copy.deepcopy(layer)
    assert type(twin) is type(layer)
    convert(layer)
    converted = copy.deepcopy(layer)
    assert not isinstance(twin, DropConnectLinear)
    restore(layer)
    x = torch.ones(2, 4)
    assert isinstance(converted, DropConnectLinear)
    assert torch.equal(converted(x), twin(x))
    assert torch.equal(layer(x), twin(x))


def test_computed_weights_in_a_prediction():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 3)).train()
    convert(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(5, 4)
    prediction = predict_with_uncertainty(model, x, T=4)
    assert torch.equal(prediction.mean, predict_with_uncertainty(model, x, T=4, chunk=1).mean)
    assert prediction.variance.any()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
