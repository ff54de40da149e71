"""What is kept of a prefix that writes in place, and where it has to be computed again."""

import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from fold_models import Apply, B, C, K, layers
from torch import nn

from bayes_dc import predict_with_uncertainty
from bayes_dc.nn import MaskKeys

T = 7
calls = []


@torch.library.custom_op("bayes_dc_tests::watched", mutates_args=())
def watched(x: torch.Tensor) -> torch.Tensor:
    """A deterministic part of a model, which notes every call."""
    calls.append(x.shape[0])
    return x * 0.5


@pytest.fixture(autouse=True)
def fresh_calls():
    calls.clear()


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


def by_hand(model, x):
    """Probabilities of T single passes, each from an input of its own."""
    keys = MaskKeys(0)
    outputs = []
    with keys.attached(model), torch.no_grad():
        for step in range(T):
            keys.set(pass_ids=step, sample_ids=torch.arange(len(x)))
            outputs.append(model(x.clone()).double().softmax(dim=1))
    return torch.stack(outputs)


def traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Hardtanh(-0.5, 0.5), torch.zeros(1, 1))


def residual(x, layer):
    """A block as torchvision writes it: += on what the last call made, and a read in between."""
    h = F.relu(watched(x), inplace=True)
    way = h.sin()
    h += way
    h = F.hardtanh_(h)
    return layer(h.relu_())


def through_a_view(x, layer):
    h = watched(x)
    h[:, :2] = 0
    h.view(-1).mul_(3)
    return layer(h)


def read_by_a_mask(x, layer):
    """The mask's layer reads h before it is written: every chunk has to see it as it was."""
    h = watched(x)
    y = layer(h)
    return y + h.add_(1)[:, :C] * layer(h)


def read_by_folded(x, layer):
    h = watched(x)
    y = layer(x) * h[:, :C]
    z = y + h[:, :C].contiguous()
    h.mul_(2)
    return z + layer(h)


def read_by_folded_as_it_is(x, layer):
    h = watched(x)[:, :C].contiguous()
    y = layer(x) + h
    return y + h.mul_(2)


def the_input(x, layer):
    h = watched(x)
    x.mul_(2)
    return layer(x + h)


def a_view_of_the_input(x, layer):
    h = watched(x)
    x.view(-1).mul_(2)
    return layer(x + h)


def read_by_torchscript(x, layer, part):
    h = watched(x)
    clipped = part(h)
    h.mul_(3)
    return layer(clipped + h)


def an_outer_tensor(x, layer):
    h = watched(x)
    state = torch.zeros_like(layer.weight[0])
    state += h.sum(dim=0)
    return layer(h + state)


KEPT = [residual, through_a_view]
AGAIN = [read_by_a_mask, read_by_folded_as_it_is, the_input, a_view_of_the_input, an_outer_tensor]
EITHER = [read_by_folded]


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("forward", [*KEPT, *AGAIN, *EITHER], ids=lambda f: f.__name__)
def test_values_are_those_of_single_passes(forward, chunk, x):
    model = Apply(forward, *layers((K, C)))
    want = by_hand(model, x)
    calls.clear()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, want)
    if forward not in EITHER:
        assert len(calls) == (1 if forward in KEPT else -(-T // chunk))


@pytest.mark.parametrize("chunk", [1, 3])
def test_what_was_not_seen_reading_is_computed_again(chunk, x):
    model = Apply(read_by_torchscript, *layers((K, C)), traced())
    want = by_hand(model, x)
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, want)


@pytest.mark.parametrize("chunk", [2, 3])
def test_a_chunk_of_one_pass_after_larger_ones(chunk, x):
    """Folded values written into the only pass's memory: the last chunk ends with the record."""

    def forward(x, layer):
        h = F.relu(watched(x)[:, :C].contiguous(), inplace=True)
        h += layer(x)
        return h + F.relu(watched(x), inplace=True)[:, :C]

    model = Apply(forward, *layers((K, C)))
    want = by_hand(model, x)
    calls.clear()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, want)
    assert len(calls) == 2


@pytest.mark.parametrize("chunk", [1, 3])
def test_only_what_is_read_again_stays_in_memory(chunk, x):
    """A large prefix would fill the memory: its results go when the model lets go of them."""
    gone = []

    def forward(x, layer):
        first = watched(x)
        second = first.sin()
        seen = weakref.ref(first)
        del first
        gone.append(seen() is None)
        third, _ = second.relu_().max(dim=1, keepdim=True)
        return layer(second + third)

    model = Apply(forward, *layers((K, C)))
    want = by_hand(model, x)
    calls.clear()
    gone.clear()
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, want)
    assert len(calls) == 1
    assert all(gone)


@pytest.mark.parametrize(
    "middle",
    [
        lambda x, norm: norm(x),
        lambda x, norm: torch.cat([norm.weight.view(1, B).expand(len(x), -1), x]).view(2, B, B)[1],
        lambda x, norm: x + torch.zeros(B, 1).add_(1),
        lambda x, norm: x + x.new_zeros(B, 1).add_(x[:, :1]),
    ],
    ids=["statistics", "token", "zeros", "factory"],
)
def test_tensors_of_as_many_rows_as_inputs(middle, x):
    """A BatchNorm of B channels, a token for each input, a start of zeros: all were seen."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(B).eval()
    model = Apply(lambda x, norm, layer: layer(middle(watched(x[:, :B]), norm)), norm)
    model.parts.append(*layers((B, C)))
    want = by_hand(model, x)
    calls.clear()
    got = predict_with_uncertainty(model, x, T=T, chunk=3, return_samples=True)
    assert torch.equal(got.samples, want)
    assert len(calls) in {1, 3}
