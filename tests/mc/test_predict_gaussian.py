"""Prediction by the Gaussian sampler: folding, chunks and statistics as with masks."""

import pytest
import torch
from fold_models import Apply, B, C, K, T, by_hand
from torch import nn

from bayes_dc import DropConnectLinear, predict_with_uncertainty


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


def network():
    torch.manual_seed(0)
    layers = [DropConnectLinear(a, b, sampler="gaussian") for a, b in ((K, 40), (40, 33), (33, C))]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_equals_single_passes_bit_for_bit(chunk, x):
    """Whatever the chunk: also where a row is drawn among others than by hand."""
    model = network()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    assert (got.variance > 0).all()


def test_an_input_does_not_know_its_batch(x):
    model = network()
    ids = torch.arange(B)
    whole = predict_with_uncertainty(model, x, T=T, sample_ids=ids, return_samples=True)
    alone = predict_with_uncertainty(model, x[2:4], T=T, sample_ids=ids[2:4], return_samples=True)
    assert torch.equal(alone.samples, whole.samples[:, 2:4])


def test_a_skip_around_the_first_layer(x):
    torch.manual_seed(0)
    first, head = (DropConnectLinear(K, n, sampler="gaussian") for n in (K, C))
    model = nn.Sequential(Apply(lambda x, layer: layer(x) + x, first), nn.ReLU(), head)
    got = predict_with_uncertainty(model, x, T=T, chunk=2, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


def test_agrees_with_masks_where_inputs_are_many():
    """One wide layer: mean probabilities of 4000 passes within 6 standard errors."""
    torch.manual_seed(0)
    x = torch.randn(3, 256)
    layer = DropConnectLinear(256, C, p=0.5)
    masks = predict_with_uncertainty(nn.Sequential(layer), x, T=4000)
    layer.sampler = "gaussian"
    draws = predict_with_uncertainty(nn.Sequential(layer), x, T=4000)
    error = ((masks.variance + draws.variance) / 4000).sqrt()
    assert ((masks.mean - draws.mean).abs() <= 6 * error).all()
