"""What draws from torch's generator beside masks: seeded, a draw for every pass, and said."""

import pytest
import torch
import torch.nn.functional as F
from fold_models import Apply, B, C, K, T
from torch import nn

from bayes_dc import DropConnectLinear, predict_with_uncertainty
from bayes_dc.mc.generators import may_draw
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.rng import dropout_key
from bayes_dc.rng.spec import FUNCTIONAL_DROPOUT


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


def before(draw):
    return Apply(lambda x, layer: layer(draw(x)), DropConnectLinear(K, C, scope="pass"))


def after(draw):
    return Apply(lambda x, layer: draw(layer(x)), DropConnectLinear(K, C, scope="pass"))


DRAWS = {
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": F.gumbel_softmax,
    "randn_like": lambda x: x + torch.randn_like(x),
    "randn": lambda x: x + torch.randn(x.shape),
    "rand": lambda x: x + torch.rand(x.shape[1]),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
}


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("place", [before, after])
@pytest.mark.parametrize("name", DRAWS)
def test_other_draws_repeat_and_are_said(name, place, chunk, x):
    model = place(DRAWS[name])
    results = []
    for start in (3, 4):
        torch.manual_seed(start)
        state = torch.get_rng_state()
        with pytest.warns(UserWarning, match=f"{name} drew from torch's generator") as told:
            got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
        assert torch.equal(torch.get_rng_state(), state)
        results.append(got.samples)
    assert len(told) == 1
    assert str(told[0].message) == (
        f"{name} drew from torch's generator, which takes no masks: it was seeded from the seed "
        "and the first pass of each forward, so results repeat, but they depend on batch and chunk."
    )
    assert torch.equal(*results)
    with pytest.warns(UserWarning, match="drew from"):
        other = predict_with_uncertainty(model, x, T=T, chunk=chunk, seed=1, return_samples=True)
    assert not torch.equal(other.samples, results[0])


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("name", ["randn_like", "randn", "rand", "normal_"])
def test_every_pass_has_a_draw_of_its_own(name, chunk, x):
    """Also before the first mask, where one forward has a row for each input only."""
    layer = DropConnectLinear(K, C, p=0.0)
    model = Apply(lambda x, layer: layer(DRAWS[name](x)), layer)
    with pytest.warns(UserWarning, match="drew from"):
        got = predict_with_uncertainty(model, x, T=T, chunk=chunk, return_samples=True)
    assert len(got.samples[:, 0].unique(dim=0)) == T


def test_one_draw_for_several_passes_is_refused(x):
    with pytest.raises(ValueError, match="randn_like draws") as error:
        predict_with_uncertainty(before(DRAWS["randn_like"]), x, T=4, chunk=2)
    assert str(error.value) == (
        "randn_like draws from torch's generator, once for all 2 folded passes. Pass chunk=1, "
        "which runs one pass at a time."
    )
    assert not hasattr(error.value, "__notes__")


def test_what_may_draw_and_does_not_is_not_said(x):
    """In evaluation mode, and from a generator that the model brings along."""
    own = torch.Generator().manual_seed(0)
    for draw in (F.rrelu, lambda x: x + torch.randn(x.shape[1], generator=own)):
        predict_with_uncertainty(before(draw), x, T=2)
    assert not may_draw(torch.relu)
    assert not may_draw(F.scaled_dot_product_attention)


NATIVE = {
    "native": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "mask": lambda x: x * torch.native_dropout(x, 0.5, True)[1] * 2,
    "packet": lambda x: torch.ops.aten.dropout(x, 0.5, True),
    "overload": lambda x: torch.ops.aten.dropout.default(x, 0.5, True),
    "native-overload": lambda x: torch.ops.aten.native_dropout.default(x, 0.5, True)[0],
    "in-place": lambda x: torch.ops.aten.dropout_(x, 0.5, True),
}


@pytest.mark.parametrize("name", NATIVE)
def test_dropout_by_the_names_of_operators_is_keyed(name, x):
    model = Apply(lambda x: NATIVE[name](x)[:, :C])
    got = predict_with_uncertainty(model, x, T=2, return_samples=True)
    ids = {"pass_ids": torch.arange(2), "sample_ids": torch.arange(B)}
    key = torch.tensor(dropout_key(0, FUNCTIONAL_DROPOUT))
    want = keyed_dropout(x, p=0.5, key=key, **ids)[:, :C]
    assert torch.equal(got.samples, want.double().softmax(dim=1).view(2, B, C))
    assert got.dropout == {"F.dropout call 0": 0.5}


@pytest.mark.parametrize("name", ["native", "mask"])
def test_and_off_with_dropout_false(name, x):
    model = nn.Sequential(Apply(NATIVE[name]), DropConnectLinear(K, C))
    state = torch.get_rng_state()
    got = predict_with_uncertainty(model, x, T=T, dropout=False)
    factor = 1 if name == "native" else 2
    assert torch.equal(got.mean, predict_with_uncertainty(model[1], x * factor, T=T).mean)
    assert torch.equal(torch.get_rng_state(), state)


def attention(x):
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], None, 0.5)[:, 0]


def multi_head(x):
    eye, zero = torch.eye(K), torch.zeros(3 * K)
    weights = eye.repeat(3, 1), zero, None, None, False, 0.5, eye, zero[:K]
    return F.multi_head_attention_forward(*[x[None]] * 3, K, 2, *weights)[0][0]


@pytest.mark.parametrize("function", [attention, multi_head])
def test_always_on_attention_is_off_with_dropout_false(function, x):
    model = Apply(lambda x, layer: function(layer(x)), DropConnectLinear(K, K))
    state = torch.get_rng_state()
    got = [predict_with_uncertainty(model, x, T=T, dropout=False, chunk=1) for _ in range(2)]
    assert torch.equal(got[0].mean, got[1].mean)
    assert torch.equal(torch.get_rng_state(), state)
