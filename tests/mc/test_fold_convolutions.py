"""Whole networks of convolutions: folded passes equal those made one by one."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as zoo
from fold_models import Apply, by_hand
from torch import nn

import bayes_dc.mc.predict as predict_module
from bayes_dc import DropConnectConv2d, DropConnectLinear, convert, predict_with_uncertainty

B, C, T, SIDE = 3, 4, 7, 8
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def images(*, channels=3, side=SIDE, rows=B):
    return torch.randn(rows, channels, side, side, generator=torch.Generator().manual_seed(1))


def rounded(model):
    """Integer weights: sums are exact, whatever their order and the number of rows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(2)
            module.running_var.fill_(4 - module.eps)
            nn.init.constant_(module.weight, 2)
    return model


class Block(nn.Module):
    """Two convolutions and a way around them; ``plain`` ones draw nothing."""

    def __init__(self, channels, *, plain):
        super().__init__()
        kind = nn.Conv2d if plain else DropConnectConv2d
        self.first = kind(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = kind(channels, channels, 3, padding=1, groups=2)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + x, inplace=True)


def network(*middle):
    torch.manual_seed(0)
    flat = Apply(lambda x: x.contiguous().view(x.size(0), -1))
    head = (nn.AdaptiveAvgPool2d((2, 1)), flat)
    return rounded(nn.Sequential(nn.Conv2d(3, 4, 3), *middle, *head, DropConnectLinear(8, C)))


MIDDLES = {
    "conv": lambda: [DropConnectConv2d(4, 4, 3, stride=2, padding=1), nn.ReLU()],
    "pass": lambda: [DropConnectConv2d(4, 4, (3, 1), scope="pass", dilation=(1, 2))],
    "same": lambda: [DropConnectConv2d(4, 4, 2, padding="same", padding_mode="circular")],
    "residual": lambda: [Block(4, plain=True), Block(4, plain=False), Block(4, plain=True)],
    "pool": lambda: [DropConnectConv2d(4, 4, 3), nn.MaxPool2d(2), nn.BatchNorm2d(4)],
    "skip": lambda: [Apply(lambda x, conv: torch.cat([x, conv(x)], 1)[:, ::2], nn.Conv2d(4, 4, 1))],
    "dropout": lambda: [nn.Dropout2d(0.5), DropConnectConv2d(4, 4, 3), nn.Dropout(0.5)],
}


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
def test_folded_passes_are_those_made_one_by_one(middle, chunk, last):
    """Bit for bit, on integers."""
    model, x = network(*MIDDLES[middle]()), images().mul(2).round()
    if last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
    assert (got.variance.sum(dim=1) > 0).any()


def test_what_comes_before_the_first_mask_runs_once():
    rows = []
    watch = Apply(lambda x: rows.append(len(x)) or x)
    model = network(watch, nn.BatchNorm2d(4), DropConnectConv2d(4, 4, 3), watch)
    predict_with_uncertainty(model, images(), T=T)
    assert rows == [B, B * T]


@pytest.mark.parametrize(
    ("padding", "stride"),
    [*itertools.product([0, 1, (1, 0), "valid"], [1, (2, 1)]), ("same", 1)],
)
def test_elements_of_a_convolution_limit_the_passes(padding, stride, monkeypatch):
    """The larger of input and output: exactly as many passes as fit."""
    torch.manual_seed(0)
    conv = DropConnectConv2d(3, 8, (3, 2), stride=stride, padding=padding, dilation=(1, 2))
    rows = []
    watch = Apply(lambda x: rows.append(len(x)) or x)
    model = nn.Sequential(conv, watch, nn.Flatten(), Apply(lambda x: x[:, :C]))
    most = max(conv(images()).numel(), images().numel())
    for limit, sizes in ((3 * most, [3, 3, 1]), (3 * most - 1, [2, 2, 2, 1]), (1, [1] * T)):
        monkeypatch.setattr(predict_module, "ELEMENTS_PER_LAYER", limit)
        rows.clear()
        predict_with_uncertainty(model, images(), T=T)
        assert rows == [B * size for size in sizes]


def test_layers_without_masks_limit_the_passes_too(monkeypatch):
    """A wide convolution after a dropout layer; an expanded tensor takes no memory."""
    rows = []
    watch = Apply(lambda x: rows.append(len(x)) or x)
    wide = nn.Conv2d(3, 64, 1)
    tail = Apply(lambda x: x[:, :C, 0, 0].unsqueeze(2).expand(-1, -1, 10**6)[..., 0])
    model = nn.Sequential(nn.Dropout2d(0.5), watch, wide, tail)
    monkeypatch.setattr(predict_module, "ELEMENTS_PER_LAYER", 2 * B * 64 * SIDE**2)
    predict_with_uncertainty(model, images(), T=T)
    assert rows == [B * T, *[B * 2] * 3, B]


def zoo_model(name):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = {"image_size": 32} if name == "vit_b_16" else {}
        model = getattr(zoo, name)(num_classes=C, **size)
    nn.init.normal_([m for m in model.modules() if isinstance(m, nn.Linear)][-1].weight)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("resnet18", 33),
        ("mobilenet_v3_small", 33),
        ("vit_b_16", 32),
        pytest.param("vgg11", 32, marks=pytest.mark.slow),
        pytest.param("convnext_tiny", 32, marks=pytest.mark.slow),
    ],
)
def test_networks_of_torchvision(name, side, device):
    """The last layers converted: folded, in chunks and by hand, to rounding."""
    model = zoo_model(name).eval().to(device)
    names = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    chosen = [n for n in names if not n.endswith("out_proj")][-3:]
    convert(model, p=0.1, select=lambda name, _: name in chosen)
    x = images(side=side, rows=2).to(device)
    got = predict_with_uncertainty(model, x, T=4, return_samples=True)
    assert (got.variance > 0).any()
    assert set(got.p_effective) == set(chosen)
    dropout = [m.p for m in model.modules() if isinstance(m, nn.Dropout) and m.p]
    assert list(got.dropout.values()) == pytest.approx(dropout, rel=0.02)
    for chunk in (1, 3):
        other = predict_with_uncertainty(model, x, T=4, chunk=chunk, return_samples=True)
        torch.testing.assert_close(other.samples, got.samples, rtol=0, atol=2**-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vit_b_16", "convnext_tiny"])
def test_networks_of_torchvision_with_every_layer(name):
    model = zoo_model(name).eval()
    convert(model, p=0.1)
    x = images(side=32, rows=2)
    got = predict_with_uncertainty(model, x, T=3, return_samples=True)
    other = predict_with_uncertainty(model, x, T=3, chunk=1, return_samples=True)
    assert (got.variance > 0).any()
    torch.testing.assert_close(other.samples, got.samples, rtol=0, atol=2**-12)


def test_a_model_that_counts_its_rows_before_the_first_mask():
    """As torchvision's vision transformer does: the input is repeated, once, for all chunks."""
    rows = []

    def forward(x, conv):
        n = x.shape[0]
        rows.append(n)
        return conv(x).reshape(n, C, -1).mean(dim=2)

    torch.manual_seed(0)
    model, x = rounded(Apply(forward, DropConnectConv2d(3, C, 3))), images().round()
    for chunk, sizes in ((None, [B, B * T]), (3, [B, 3 * B, 3 * B, B]), (1, [B] * T)):
        rows.clear()
        got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
        assert rows == sizes
        assert torch.equal(got.samples, by_hand(model, x))


def test_a_class_token_is_expanded_to_the_passes():
    """As vision transformers do: before the first mask to the batch, after it to all rows."""

    class Tokens(nn.Module):
        def __init__(self, embed):
            super().__init__()
            self.embed, self.token = embed, nn.Parameter(torch.ones(1, 1, 4))
            self.mix = DropConnectLinear(4, C)

        def forward(self, x):
            x = self.embed(x).flatten(2).transpose(1, 2)
            token = self.token.expand(x.shape[0], -1, -1)
            return self.mix(torch.cat([token, x], dim=1))[:, 0] + self.mix(x).mean(dim=1)

    for embed in (nn.Conv2d(3, 4, 2, stride=2), DropConnectConv2d(3, 4, 2, stride=2)):
        torch.manual_seed(0)
        model, x = rounded(Tokens(embed)), images().round()
        for chunk in (None, 3):
            got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
            assert torch.equal(got.samples, by_hand(model, x))
