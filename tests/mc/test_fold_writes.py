"""T passes in one forward of a model that writes in place, casts, and keeps what it made."""

import pytest
import torch
from fold_models import Apply, B, C, K, T, by_hand, layers
from torch import nn

from bayes_dc import predict_with_uncertainty


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


def add_statement(x, layer):
    total = torch.zeros_like(x)
    total.add_(layer(x))
    return total


def fill_part(x, layer):
    parts = torch.zeros_like(x)
    parts[:, :4] = layer(x)[:, :4]
    return parts


def fill_new(x, layer):
    y = layer(x)
    parts = x.new_zeros(y.shape)
    parts[:, 1:] = y[:, 1:]
    return parts


def copy_into(x, layer):
    result = x.new_empty(x.shape)
    result.copy_(layer(x))
    return result


def augmented(x, layer):
    x += layer(x)
    return x


def augmented_view(x, layer):
    y = x.sin().t().contiguous().t()
    y += layer(x)
    return y


def augmented_alias(x, layer):
    y = x.sin()
    alias = y
    y += layer(x)
    return y * alias


def out_argument(x, layer):
    result = torch.empty_like(x)
    torch.mul(layer(x), x, out=result)
    return result


WRITERS = [
    add_statement,
    fill_part,
    fill_new,
    copy_into,
    augmented,
    augmented_view,
    augmented_alias,
    out_argument,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_passes_written_into_what_no_mask_has_touched(chunk, last, write, x):
    """The tensor takes the values of every pass, and neither later chunks nor the user see them."""
    first, second = layers((K, K), (K, C))
    parts = [Apply(write, first)] if last else [Apply(write, first), second]
    model, before = nn.Sequential(nn.Tanh(), *parts), x.clone()
    want = by_hand(model, before.clone())
    for _ in range(2):
        got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
        assert torch.equal(got.samples, want)
    assert torch.equal(x, before)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_an_empty_batch_is_written_into(write, x):
    model = nn.Sequential(nn.Tanh(), Apply(write, *layers((K, K))))
    assert predict_with_uncertainty(model, x[:0], T=T).mean.shape == (0, K)


def through_a_view(x, layer):
    result = torch.zeros_like(x)
    result[:, :4].copy_(layer(x)[:, :4])
    return result


@pytest.mark.parametrize("last", [True, False])
def test_passes_written_through_a_view_are_refused_with_the_remedy(last, x):
    """The memory behind the view has B rows; chunk=1 needs no more."""
    first, second = layers((K, K), (K, C))
    model = nn.Sequential(Apply(through_a_view, first), *([] if last else [second]))
    with pytest.raises(ValueError, match="overwritten with the values of 7 folded") as error:
        predict_with_uncertainty(model, x, T=T)
    text = str(error.value)
    assert "read again through another view, which has no room for them. Pass chunk=1" in text
    assert "or write into a new tensor (y = x + h rather than x += h)" in text
    got = predict_with_uncertainty(model, x, T=T, chunk=1, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


CONSTANTS = {
    "cast": lambda x: torch.arange(K).to(x),
    "type_as": lambda x: torch.arange(K).type_as(x),
    "full": lambda x: x.new_full((1, K), 0.5),
    "zeros": lambda x: x.new_zeros(()).expand(1, K) + 2,
    "rows": lambda x: x.new_ones(x.shape[0], 1),
    "cast rows": lambda x: torch.ones(x.shape[0], 1).to(x),
}


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_constants_of_the_type_of_the_input(chunk, constant, x):
    first, second = layers((K, K), (K, C))
    join = Apply(lambda x, layer: layer(x) * constant(x), first)
    model = nn.Sequential(join, second)
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))


class Tracked(nn.Module):
    """Casts a parameter, and writes into a buffer in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers((K, K), (K, C))
        self.scale = nn.Parameter(torch.linspace(0.5, 2, K))
        self.register_buffer("kept", torch.ones(K))

    def forward(self, x):
        x = x * self.scale.type_as(x) * self.kept
        y = self.first(x) * self.scale.to(x)
        self.kept.copy_(y[0].mul(0).add(1))
        return self.second(y * self.kept)


@pytest.mark.parametrize("chunk", [None, 3])
def test_parameters_and_buffers_are_not_taken_for_results(chunk, x):
    """Also not in the next call, nor by anything left on them."""
    model = Tracked()
    want = by_hand(model, x)
    for _ in range(2):
        got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
        assert torch.equal(got.samples, want)
    assert [t.__dict__ for t in (model.scale, model.kept, x)] == [{}, {}, {}]


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_inputs_along_another_dimension(chunk, x):
    """Such a tensor cannot be repeated for the passes; the input can, or one pass is run alone."""
    first, second = layers((K, K), (K, C))
    join = Apply(lambda x, layer: torch.stack([x, 2 * x]).mul(layer(x)).sum(dim=0), first)
    model = nn.Sequential(join, second)
    got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert torch.equal(got.samples, by_hand(model, x))
