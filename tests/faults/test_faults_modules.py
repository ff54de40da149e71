"""Faults that users of such tools have met: layers as modules, conversion, dtypes."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    convert,
    dropconnect_conv2d,
    dropconnect_linear,
)
from bayes_dc.ops.conv2d.reference import Geometry, explicit_masks
from bayes_dc.ops.conv2d.reference import forward as convolve
from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.types import MaskKey

ROOT = Path(__file__).parents[2]
KEY = MaskKey(5, 1)


def draw(*size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=generator).to(dtype)


def linear(**options):
    torch.manual_seed(0)
    return DropConnectLinear(12, 5, **options), draw(6, 12)


def conv(**options):
    torch.manual_seed(0)
    return DropConnectConv2d(2, 4, 3, **options), draw(3, 2, 8, 8)


LAYERS = pytest.mark.parametrize("make", [linear, conv])


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian", "conv2d"])
def test_gradients_under_bfloat16_autocast_are_not_float16(kind):
    """source: pytorch/pytorch#87979: 1e5 is infinite in float16."""
    if kind == "conv2d":
        function, options = dropconnect_conv2d, {}
        shapes = (2, 3, 6, 6), (4, 3, 3, 3), (4,)
    else:
        function, options = dropconnect_linear, {"sampler": kind}
        shapes = (8, 16), (4, 16), (4,)
    x, *parameters = (draw(*size).requires_grad_() for size in shapes)

    def gradients(enabled):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = function(x, *parameters, key=KEY, **options)
        upstream = torch.full(y.shape, 1e5, dtype=y.dtype)
        return y.dtype, torch.autograd.grad(y, parameters, upstream)

    half, got = gradients(True)
    _, want = gradients(False)
    assert half == torch.bfloat16
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float32
        assert a.isfinite().all()
        assert (a - b).abs().max() <= 2e-2 * b.abs().max()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d])
def test_inputs_of_another_dtype_than_the_weights(kind, dtype, autocast):
    """source: linkedin/Liger-Kernel#305: the rule is that of torch's layer, the error says more."""
    torch.manual_seed(0)
    plain = kind(6, 4) if kind is nn.Linear else kind(2, 4, 3)
    x = draw(3, 6) if kind is nn.Linear else draw(3, 2, 5, 5)
    x = x.to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        try:
            want = plain(x)
        except (RuntimeError, ValueError):
            want = None
        model = nn.Sequential(plain)
        convert(model, p=0.5)
        if want is None:
            with pytest.raises(ValueError, match=r"must have one dtype; got torch\..*autocast"):
                model(x)
        else:
            assert model(x).dtype == want.dtype


GEOMETRIES = {
    # source: IntelLabs/bayesian-torch#32: only the first size of a kernel is kept
    "a kernel of 1 × 3": ((2, 3, 9, 9), 3, 4, (1, 3), Geometry((2, 1), (0, 1), (1, 2), 1)),
    # source: IntelLabs/bayesian-torch#21: groups and dilation are exchanged
    "two groups": ((2, 4, 7, 7), 4, 4, (3, 3), Geometry((1, 1), (0, 0), (1, 1), 2)),
    "dilation of two": ((2, 4, 7, 7), 4, 4, (3, 3), Geometry((1, 1), (0, 0), (2, 2), 1)),
    # source: KarenUllrich/Tutorial_BayesianCompressionForDL#9: evaluation forgets the geometry
    "stride and padding": ((1, 3, 8, 8), 3, 5, (3, 3), Geometry((2, 2), (1, 1), (1, 1), 1)),
}


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES)
def geometry(request):
    """An input, a plain convolution, and how it moves."""
    size, channels, outputs, kernel, at = request.param
    torch.manual_seed(0)
    return draw(*size), nn.Conv2d(channels, outputs, kernel, **at._asdict()), at


@pytest.mark.parametrize("mode", ["evaluation", "p = 0"])
def test_a_converted_convolution_moves_as_before(geometry, mode):
    x, plain, _ = geometry
    x.requires_grad_()
    wanted = plain(x)
    upstream = draw(*wanted.shape)
    want = torch.autograd.grad(wanted, (x, *plain.parameters()), upstream)
    model = nn.Sequential(plain)
    convert(model, p=0.0 if mode == "p = 0" else 0.5)
    assert isinstance(model[0], DropConnectConv2d)
    model.train(mode == "p = 0")
    y = model(x)
    got = torch.autograd.grad(y, (x, *model.parameters()), upstream)
    assert torch.equal(y, wanted)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_a_masked_convolution_moves_as_the_plain_one(geometry):
    """The weights that the mask leaves, in torch's convolution: the masks are of kernel taps."""
    x, plain, at = geometry
    w = plain.weight.detach()
    N, K = w.shape[0], w[0].numel()
    none = torch.zeros(1, dtype=torch.int64)
    mask = explicit_masks(layer_key(5, 1), none, none, N, K, keep_digits(0.5))
    options = at._asdict()
    got = dropconnect_conv2d(
        x, w, plain.bias, *options.values(), key=KEY, scope="pass", scale="none"
    ).detach()
    by_taps = mask.view(N, *w.shape[2:], w.shape[1]).permute(0, 3, 1, 2)
    want = F.conv2d(x.double(), w.double() * by_taps, plain.bias.detach().double(), **options)
    last = x.permute(0, 2, 3, 1)[None].double()
    again = convolve(last, w.permute(0, 2, 3, 1).double(), None, mask, 1.0, at)
    assert torch.allclose(again[0].permute(0, 3, 1, 2) + plain.bias.view(-1, 1, 1), want)
    assert (got - want).abs().max() <= 2.0**-24 * (K + 1) * want.abs().max().clamp(1)


@LAYERS
def test_evaluation_is_the_plain_layer_and_repeats(make):
    """source: salesforce/awd-lstm-lm#72: weights are dropped in evaluation, too."""
    layer, x = make(p=0.5)
    layer.eval()
    y = layer(x)
    want = F.linear(x, layer.weight, layer.bias) if x.ndim == 2 else None
    want = F.conv2d(x, layer.weight, layer.bias) if want is None else want
    assert torch.equal(y, want)
    assert torch.equal(layer(x), y)


@LAYERS
def test_without_bias(make):
    """source: piEsposito/blitz-bayesian-deep-learning#71: a zero bias is made on the CPU."""
    layer, x = make(p=0.5, bias=False)
    assert layer.bias is None
    assert list(layer.state_dict()) == ["weight"]
    shape = layer(x).shape
    assert layer.to("meta")(x.to("meta")).shape == shape
    assert layer.bias is None


@pytest.mark.gpu
@LAYERS
def test_without_bias_on_a_gpu(make):
    """source: piEsposito/blitz-bayesian-deep-learning#71."""
    layer, x = make(p=0.5, bias=False)
    y = layer.cuda()(x.cuda())
    y.sum().backward()
    assert y.is_cuda
    assert layer.weight.grad.is_cuda


@LAYERS
def test_a_hundred_forwards_leave_the_weight(make):
    """source: keitakurita/Better_LSTM_PyTorch#7: dropped weights overwrite the stored ones."""
    layer, x = make(p=0.5)
    before = layer.weight.detach().clone()
    for _ in range(100):
        layer(x)
    assert torch.equal(layer.weight, before)


@LAYERS
def test_an_optimizer_reaches_the_weight_after_changes_of_mode(make):
    """source: fastai/fastai#2591: after a change of mode the weight is another tensor."""
    layer, x = make(p=0.5)
    weight, before = layer.weight, layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.eval()(x)
    layer.train()(x).square().sum().backward()
    optimizer.step()
    assert layer.weight is weight
    assert weight.is_leaf
    assert isinstance(weight, nn.Parameter)
    assert not torch.equal(weight, before)


def test_weights_are_dropped_and_not_samples():
    """source: tensorflow/tpu#494: what is named drop-connect drops whole samples."""
    torch.manual_seed(0)
    layer = DropConnectLinear(64, 4, bias=False, p=0.5)
    nn.init.ones_(layer.weight)
    kept = layer(torch.ones(32, 64)).detach() / 2  # of 64 weights
    assert (kept > 0).all()
    assert len(set(map(tuple, kept.tolist()))) == 32
    n = kept.numel()  # sums of 64 bits: mean 32, variance 16
    assert abs(kept.mean() - 32) <= 4 * (16 / n) ** 0.5
    assert abs(kept.var() - 16) <= 4 * 16 * (2 / (n - 1)) ** 0.5


@pytest.mark.parametrize("sampler", ["bernoulli", "gaussian"])
def test_equal_rows_of_a_batch_differ(sampler):
    """source: JavierAntoran/Bayesian-Neural-Networks#20: a batch shares one mask."""
    layer = DropConnectLinear(64, 16, p=0.5, sampler=sampler)
    y = layer(draw(64).expand(8, 64))
    assert len({tuple(row) for row in y.tolist()}) == 8


def test_the_mean_over_masks_is_kept():
    """source: pytorch/pytorch#5752: kept values are scaled, and the documents say so."""
    y = dropconnect_linear(torch.ones(4000, 100), torch.ones(1, 100), p=0.5, key=KEY)
    assert abs(y.mean() - 100) <= 0.64  # four standard errors of 10 / √4000
    assert np.isin(y.numpy() % 2, 0).all()
    readme = (ROOT / "README.md").read_text()
    assert "## What is drawn" in readme
    assert "s = 1 / keep" in readme


def test_triton_is_required_where_it_has_wheels_only():
    """source: DavidDinkevich/Story2Board#7: no wheel, no installation (import: see COVERED.md)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (triton,) = [text for text in project["dependencies"] if text.startswith("triton")]
    assert "platform_system == 'Linux'" in triton.partition(";")[2]
    assert "platform_machine == 'x86_64'" in triton.partition(";")[2]
