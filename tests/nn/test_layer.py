"""DropConnectLinear: nn.Linear in everything but the masks."""

import inspect

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayes_dc import DropConnectLinear
from bayes_dc.nn import MaskKeys


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"dtype": torch.float64}], ids=str)
def test_parameters_are_those_of_nn_linear(options):
    """Names, bits, and the state torch's generator is left in."""
    torch.manual_seed(3)
    plain = nn.Linear(7, 5, **options)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    layer = DropConnectLinear(7, 5, **options)
    assert torch.equal(torch.get_rng_state(), state)
    ours, theirs = dict(layer.named_parameters()), dict(plain.named_parameters())
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert parameter.dtype == theirs[name].dtype
        assert torch.equal(parameter, theirs[name])


def test_the_signature_starts_as_that_of_nn_linear():
    ours = list(inspect.signature(DropConnectLinear).parameters.values())
    theirs = list(inspect.signature(nn.Linear).parameters.values())
    assert [(a.name, a.default, a.kind) for a in ours[:5]] == [
        (a.name, a.default, a.kind) for a in theirs
    ]
    assert {a.kind for a in ours[5:]} == {inspect.Parameter.KEYWORD_ONLY}


def test_state_dicts_load_both_ways():
    plain, layer = nn.Linear(4, 3), DropConnectLinear(4, 3)
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight)
    other = nn.Linear(4, 3)
    other.load_state_dict(DropConnectLinear(4, 3).state_dict(), strict=True)
    assert list(layer.state_dict()) == list(plain.state_dict()) == ["weight", "bias"]


def test_without_bias():
    layer = DropConnectLinear(4, 3, bias=False)
    assert layer.bias is None
    assert list(layer.state_dict()) == ["weight"]
    assert layer.to("meta").weight.is_meta
    assert DropConnectLinear(4, 3, bias=False)(torch.ones(2, 4)).shape == (2, 3)


def test_meta_device():
    """Shapes can be had without memory, forward and backward, as from nn.Linear."""
    layer = DropConnectLinear(4, 3, device="meta")
    assert layer.weight.is_meta
    assert layer.bias.is_meta
    y = layer(torch.empty(2, 4, device="meta"))
    y.sum().backward()
    assert y.shape == (2, 3)
    assert layer.weight.grad.shape == (3, 4)


def test_loading_into_a_layer_made_on_the_meta_device():
    layer = DropConnectLinear(4, 3, device="meta")
    real = DropConnectLinear(4, 3)
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(layer.eval()(torch.eye(4)), real.eval()(torch.eye(4)))


@pytest.mark.parametrize(
    ("p", "shown"), [(0.5, "p=0.5"), (0.1, "p=0.1 (0.0996094)"), (0.37, "p=0.37 (0.367188)")]
)
def test_repr_shows_the_drop_probability_and_the_realised_one(p, shown):
    layer = DropConnectLinear(4, 3, p=p, scope="pass", scale="none")
    assert repr(layer) == (
        f"DropConnectLinear(in_features=4, out_features=3, bias=True, {shown}, "
        "scope='pass', scale='none')"
    )


@pytest.mark.parametrize("bias", [True, False])
def test_evaluation_is_exactly_nn_linear(bias):
    layer = DropConnectLinear(33, 17, bias).eval()
    x = torch.randn(2, 5, 33)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert torch.equal(layer(x), layer(x))


def test_evaluation_without_scaling_uses_the_mean_of_the_masked_weight():
    layer = DropConnectLinear(8, 3, p=0.1, scale="none").eval()
    x = torch.randn(4, 8)
    assert torch.equal(layer(x), F.linear(x, layer.weight * (461 / 512), layer.bias))


def test_each_training_forward_has_fresh_masks_that_the_seed_repeats():
    layer, x = DropConnectLinear(16, 8), torch.ones(4, 16)
    torch.manual_seed(1)
    first = layer(x), layer(x)
    assert not torch.equal(*first)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first[0])
    assert torch.equal(layer(x), first[1])


def test_every_row_has_its_own_mask():
    layer = DropConnectLinear(64, 16)
    rows = layer(torch.randn(64).expand(8, 64))
    assert len(rows.unique(dim=0)) == 8
    tokens = layer(torch.randn(64).expand(2, 3, 64))
    assert len(tokens.view(6, 16).unique(dim=0)) == 6


def test_no_sample_is_dropped_whole():
    """p = 0.5, weights and inputs 1: every output counts its kept weights, binomial(64, 0.5)."""
    layer = DropConnectLinear(64, 4, bias=False)
    nn.init.ones_(layer.weight)
    torch.manual_seed(0)
    counts = layer(torch.ones(32, 64)) / 2
    assert (counts > 0).all()
    assert torch.equal(counts, counts.round())
    assert len(counts.unique(dim=0)) == 32
    # Of 128 counts: mean 32 ± 4 · 4/√128, variance 16 ± 4 · 16 √(2/127).
    assert abs(counts.mean() - 32) < 4 * 4 / 128**0.5
    assert abs(counts.var() - 16) < 4 * 16 * (2 / 127) ** 0.5


def test_the_share_of_weights_dropped_is_p():
    """p = 0.1 drops a tenth, not nine."""
    layer = DropConnectLinear(1000, 100, bias=False, p=0.1, scale="none")
    nn.init.ones_(layer.weight)
    torch.manual_seed(0)
    kept = layer(torch.ones(10, 1000)).sum() / 1e6
    assert abs(kept - 0.9) < 4 * (0.09 / 1e6) ** 0.5


def test_the_mean_is_that_of_the_whole_weight():
    """x = 1, W = 1, K = 100, 4000 masks: 100 ± 4 standard errors of 10 / √4000."""
    layer = DropConnectLinear(100, 1, bias=False)
    nn.init.ones_(layer.weight)
    torch.manual_seed(0)
    outputs = layer(torch.ones(4000, 100))
    assert abs(outputs.mean() - 100) < 4 * 10 / 4000**0.5
    # A kept weight counts 1 / keep = 2.
    assert torch.equal(outputs / 2, (outputs / 2).round())


def test_weights_are_not_touched_by_forwards():
    layer = DropConnectLinear(16, 8)
    before = layer.weight.detach().clone()
    for _ in range(100):
        layer(torch.ones(2, 16))
    assert torch.equal(layer.weight, before)


def test_the_weight_stays_one_leaf_parameter_through_modes():
    """eval, train, backward, step: the optimizer moves what the layer uses."""
    layer = DropConnectLinear(16, 8)
    weight, before = layer.weight, layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.eval()(torch.ones(2, 16))
    layer.train()(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert layer.weight is weight
    assert weight.is_leaf
    assert not torch.equal(weight, before)


def test_p_zero_is_nn_linear_in_training():
    layer = DropConnectLinear(64, 32, p=0.0)
    x = torch.randn(5, 64)
    for _ in range(10):
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_a_new_p_holds_from_the_next_forward_on():
    layer = DropConnectLinear(1000, 10, bias=False, p=0.1, scale="none")
    nn.init.ones_(layer.weight)
    layer.p = 0.75
    torch.manual_seed(0)
    kept = layer(torch.ones(50, 1000)).mean() / 1000
    assert abs(kept - 0.25) < 4 * (0.1875 / 5e5) ** 0.5
    assert layer.p_effective == 0.75
    assert "p=0.75," in repr(layer)
    assert layer.eval()(torch.ones(1, 1000)).tolist() == [[250.0] * 10]
    layer.p = 1.5
    with pytest.raises(ValueError, match=r"p must be a drop probability in \[0, 1\); got 1\.5"):
        layer.train()(torch.ones(1, 1000))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_p_is_refused_at_construction(p):
    with pytest.raises(ValueError, match=r"p must be a drop probability in \[0, 1\); got"):
        DropConnectLinear(2, 2, p=p)


@pytest.mark.parametrize("p", ["0.5", True, None])
def test_p_that_is_no_number_is_refused_at_construction(p):
    with pytest.raises(TypeError, match="p must be a real number"):
        DropConnectLinear(2, 2, p=p)


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("scope", "('row', 'sample', 'pass')"),
        ("scale", "('inverted', 'none')"),
        ("sampler", "('bernoulli', 'gaussian')"),
    ],
)
def test_unknown_options_are_refused(option, allowed):
    with pytest.raises(ValueError, match="must be one of") as error:
        DropConnectLinear(2, 2, **{option: "rows"})
    assert str(error.value) == f"{option} must be one of {allowed}; got 'rows'."


def test_wrong_inputs_are_refused():
    layer = DropConnectLinear(4, 3)
    with pytest.raises(ValueError, match="x must have 4 features in its last dimension"):
        layer(torch.ones(2, 5))
    with pytest.raises(TypeError, match=r"x must be a floating point tensor; got torch\.int64"):
        layer(torch.ones(2, 4, dtype=torch.int64))
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(ValueError, match="x, weight and bias must have one dtype; got"):
            layer(torch.ones(2, 4, dtype=dtype))
    keys = MaskKeys(0)
    keys.attach(layer)
    keys.set(pass_ids=0, sample_ids=torch.arange(3))
    with pytest.raises(
        ValueError, match=r"x must have one row for each \(pass, sample\), 1 × 3 = 3"
    ):
        layer(torch.ones(2, 4))


def test_empty_batch():
    layer = DropConnectLinear(8, 3)
    x = torch.zeros(0, 8, requires_grad=True)
    y = layer(x)
    assert y.shape == (0, 3)
    y.sum().backward()
    assert torch.equal(layer.weight.grad, torch.zeros(3, 8))
    assert torch.equal(layer.bias.grad, torch.zeros(3))
    assert x.grad.shape == (0, 8)


@pytest.mark.parametrize(("K", "N"), [(0, 4), (4, 0)])
def test_empty_features(K, N):
    """As nn.Linear: only the bias, or nothing at all; torch warns at initialisation."""
    with pytest.warns(UserWarning, match="zero-element"):
        layer = DropConnectLinear(K, N)
    assert torch.equal(layer(torch.ones(2, K)), layer.bias.expand(2, N))


def test_vmap_has_the_right_shape_and_masks_of_its_own():
    layer = DropConnectLinear(64, 16)
    x = torch.ones(3, 64)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(layer)(x)
    rows = torch.vmap(layer, randomness="different")(x)
    assert rows.shape == (3, 16)
    assert len(rows.unique(dim=0)) == 3
    shared = torch.vmap(layer, randomness="same")(x)
    assert len(shared.unique(dim=0)) == 1


def test_numpy_and_torch_numbers_are_p():
    for p in (np.float32(0.25), torch.tensor(0.25)):
        layer = DropConnectLinear(2, 2, p=p)
        assert type(layer.p) is float
        assert layer.p == 0.25
