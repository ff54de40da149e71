"""Faults of memory layouts and empty batches elsewhere, in values, masks and gradients.

Inputs are small integers, so that no sum rounds: equal means equal bits.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    MonteCarloEngine,
    convert,
    predict_with_uncertainty,
)
from bayes_dc import metrics as m
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys


def integers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).float()


def with_integers(layer):
    """The layer with integer weights."""
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=number))
    return layer


def run(layer, x):
    """y, and the gradients of a loss that weighs all outputs differently, under fixed masks."""
    x = x.detach().requires_grad_()
    keys = MaskKeys(5)
    with keys.attached(layer):
        keys.set(pass_ids=2, sample_ids=torch.arange(len(x)) + 3)
        y = layer(x)
        weights = integers(*y.shape, seed=9)
        grads = torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])
    return [y.detach(), *grads]


def assert_equal_bits(got, want):
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


LINEAR_INPUTS = {
    "every second column": integers(4, 16)[:, ::2],
    "transposed": integers(8, 4).t(),
    "expanded rows": integers(1, 8).expand(4, 8),
    "expanded columns": integers(4, 1).expand(4, 8),
    "part of wider rows": integers(4, 32)[:, 5:13],
    "rows upside down": integers(4, 8).flip(0)[::1],
    "every second row": integers(8, 8)[::2],
}
IMAGES = {
    "every second column": integers(3, 2, 6, 12)[..., ::2],
    "channels last": integers(3, 2, 6, 6).to(memory_format=torch.channels_last),
    "cut out": integers(3, 2, 9, 9)[:, :, 1:7, 2:8],
    "one image for all": integers(1, 2, 6, 6).expand(3, 2, 6, 6),
    "transposed": integers(3, 2, 6, 6).transpose(2, 3),
    "every second channel": integers(3, 4, 6, 6)[:, ::2],
}


@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
@pytest.mark.parametrize("layout", LINEAR_INPUTS)
def test_inputs_of_any_layout_are_read_as_they_are(layout, scope):
    # source: unslothai/unsloth#10675
    # source: csarofeen/pytorch#1888
    x = LINEAR_INPUTS[layout]
    layer = with_integers(DropConnectLinear(8, 5, p=0.5, scope=scope))
    assert_equal_bits(run(layer, x), run(layer, x.contiguous().clone()))


@pytest.mark.parametrize("scope", ["sample", "pass"])
@pytest.mark.parametrize("layout", IMAGES)
def test_images_of_any_layout_are_read_as_they_are(layout, scope):
    # source: unslothai/unsloth#10675
    # source: csarofeen/pytorch#1888
    x = IMAGES[layout]
    layer = with_integers(DropConnectConv2d(2, 4, 3, padding=1, p=0.5, scope=scope))
    want = run(layer, x.contiguous().clone(memory_format=torch.contiguous_format))
    assert_equal_bits(run(layer, x), want)


def test_the_layout_of_a_weight_changes_no_mask():
    # source: csarofeen/pytorch#1888
    layer, x = with_integers(DropConnectLinear(8, 5, p=0.5)), integers(4, 8)
    want = run(layer, x)
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    assert not layer.weight.is_contiguous()
    assert_equal_bits(run(layer, x), want)
    layer, x = with_integers(DropConnectConv2d(2, 4, 3, p=0.5)), integers(3, 2, 6, 6)
    want = run(layer, x)
    assert_equal_bits(run(layer.to(memory_format=torch.channels_last), x), want)


@pytest.mark.parametrize("path", ["folded", "engine"])
def test_a_prediction_does_not_see_the_layout(path):
    # source: csarofeen/pytorch#1888
    torch.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    for model, x in (
        (mlp(6, 3, hidden=(8,)), torch.randn(4, 12)[:, ::2]),
        (images, torch.randn(4, 1, 6, 12)[..., ::2]),
    ):
        convert(model, 0.5)
        if path == "engine":
            engine = MonteCarloEngine(model, x.contiguous(), 4, mode="workspace")
            got, want = engine(x), engine(x.contiguous())
        else:
            got, want = (predict_with_uncertainty(model, t, 4) for t in (x, x.contiguous()))
        assert torch.equal(got.mean, want.mean)
        assert torch.equal(got.variance, want.variance)


@pytest.mark.parametrize("kind", ["row", "sample", "pass", "convolution", "gaussian"])
def test_the_gradient_of_a_sum_is_one_element_with_strides_of_zero(kind):
    # source: ROCm/TransformerEngine#623
    if kind == "convolution":
        layer, x = with_integers(DropConnectConv2d(2, 4, 3, p=0.5)), integers(3, 2, 6, 6)
    elif kind == "gaussian":
        layer, x = with_integers(DropConnectLinear(8, 5, sampler="gaussian")), integers(4, 8)
    else:
        layer, x = with_integers(DropConnectLinear(8, 5, p=0.5, scope=kind)), integers(4, 8)
    found = []
    for gradient in (None, "ones"):
        rows = x.clone().requires_grad_()
        torch.manual_seed(1)
        y = layer.train()(rows)
        layer.zero_grad()
        if gradient is None:
            y.sum().backward()
        else:
            y.backward(torch.ones_like(y))
        found.append([rows.grad, layer.weight.grad.clone(), layer.bias.grad.clone()])
    assert_equal_bits(*found)


@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_of_rows(scope, training):
    # source: triton-lang/triton-ascend#984
    for shape in ((0, 8), (0, 3, 8), (2, 0, 8)):
        layer = DropConnectLinear(8, 5, p=0.5, scope=scope).train(training)
        x = torch.zeros(shape, requires_grad=True)
        y = layer(x)
        assert y.shape == (*shape[:-1], 5)
        y.sum().backward()
        assert x.grad.shape == shape
        assert torch.equal(layer.weight.grad, torch.zeros(5, 8))
        assert torch.equal(layer.bias.grad, torch.zeros(5))


@pytest.mark.parametrize("scope", ["sample", "pass"])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_of_images(scope, training):
    # source: triton-lang/triton-ascend#984
    layer = DropConnectConv2d(3, 4, 3, p=0.5, scope=scope).train(training)
    x = torch.zeros(0, 3, 8, 8, requires_grad=True)
    y = layer(x)
    assert y.shape == F.conv2d(x, layer.weight).shape == (0, 4, 6, 6)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(layer.weight.grad, torch.zeros(4, 3, 3, 3))
    assert torch.equal(layer.bias.grad, torch.zeros(4))


def test_an_empty_batch_has_an_empty_prediction_and_no_metric():
    # source: triton-lang/triton-ascend#984
    torch.manual_seed(0)
    model = mlp(8, 3, hidden=(8,))
    convert(model, 0.5)
    x = torch.zeros(0, 8)
    engine = MonteCarloEngine(model, torch.zeros(2, 8), T=3)
    for got in (predict_with_uncertainty(model, x, T=3), engine(x)):
        assert got.mean.shape == got.variance.shape == (0, 3)
        assert got.entropy.shape == got.mutual_information.shape == (0,)
    labels = torch.zeros(0, dtype=torch.long)
    for measure in (m.accuracy, m.nll, m.brier, m.ece, m.adaptive_ece, m.classwise_ece):
        with pytest.raises(ValueError, match="no samples: probs has shape"):
            measure(got.mean, labels)
    for measure in (m.aurc, m.excess_aurc):
        with pytest.raises(ValueError, match="no samples: uncertainty has shape"):
            measure(got.entropy, labels.double())
    with pytest.raises(ValueError, match="no samples: the bootstrap needs"):
        m.bootstrap_mean(got.entropy)
