"""Random layers: a conversion keeps every argument of the constructor, and every bit of eval."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear, convert, restore

SMALL = st.integers(1, 3)
PAIRS = st.tuples(SMALL, SMALL)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


@st.composite
def linear_layers(draw):
    layer = nn.Linear(
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        bias=draw(st.booleans()),
        dtype=draw(DTYPES),
    )
    lead = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    return layer, torch.randn(*lead, layer.in_features, dtype=layer.weight.dtype)


@st.composite
def convolutions(draw):
    groups = draw(SMALL)
    inside, outside = (groups * draw(SMALL) for _ in range(2))
    stride, same = draw(PAIRS), draw(st.booleans())
    padding = "same" if same else draw(st.one_of(st.just("valid"), PAIRS))
    layer = nn.Conv2d(
        inside,
        outside,
        draw(PAIRS),
        stride=1 if same else stride,
        padding=padding,
        dilation=draw(PAIRS),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        dtype=draw(DTYPES),
    )
    # Wide enough for the kernel without padding, and for padding by reflection.
    x = torch.randn(draw(SMALL), inside, 9, 8, dtype=layer.weight.dtype)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    return layer, x


def _formats(y):
    """Memory formats that fit; a dimension of one fits any."""
    formats = (torch.contiguous_format, torch.channels_last)[: 1 + (y.ndim == 4)]
    return [y.is_contiguous(memory_format=memory_format) for memory_format in formats]


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(linear_layers(), convolutions()),
    st.sampled_from([0.0, 0.25, 0.9]),
    st.sampled_from(["inverted", "none"]),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_evaluation_is_as_before_to_the_bit(drawn, p, scale, frozen):
    layer, x = drawn
    layer.weight.requires_grad_(not frozen)
    plain, attributes = copy.deepcopy(layer), dict(layer.__dict__)
    model = nn.Sequential(layer).eval()
    want = model(x)
    report = convert(model, p=p, scale=scale)
    assert isinstance(layer, (DropConnectLinear, DropConnectConv2d))
    assert report.converted["0"].startswith(repr(plain))
    assert report.masked_weights == plain.weight.numel()
    if scale == "inverted" or p == 0:
        assert torch.equal(model(x), want)
    plain.load_state_dict(layer.state_dict(), strict=True)
    layer.load_state_dict(plain.state_dict(), strict=True)
    y = model.train()(x)
    assert (y.shape, y.dtype) == (want.shape, want.dtype)
    assert y.numel() == 0 or _formats(y) == _formats(want)
    if p == 0:
        # No mask: torch's own kernels, in training as in evaluation.
        assert torch.equal(y, want)
    if y.requires_grad:
        y.sum().backward()
        gradients = {
            name: parameter.grad is not None for name, parameter in layer.named_parameters()
        }
        assert gradients == {name: q.requires_grad for name, q in layer.named_parameters()}
    assert restore(model) == ("0",)
    assert type(layer) is type(plain)
    assert list(layer.__dict__) == list(attributes)
    assert torch.equal(model.eval()(x), want)
