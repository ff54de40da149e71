"""DropConnectLinear under MaskKeys: the masks of the specification, in values and gradients."""

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear
from bayes_dc.nn import MaskKeys
from bayes_dc.ops.linear.reference import explicit_masks, forward
from bayes_dc.rng import keep_digits, layer_key

SEED = 9


def integer_layer(*, K=6, N=5, x_shape=(4,), **options):
    """A layer and an input of small integers: no sum rounds, so equal means equal bits."""
    generator = torch.Generator().manual_seed(0)
    layer = DropConnectLinear(K, N, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))
    return layer, torch.randint(-4, 5, (*x_shape, K), generator=generator).float()


def keyed(layer, *, samples, passes=0):
    """Keys attached to the layer, with coordinates."""
    keys = MaskKeys(SEED)
    keys.attach(layer)
    keys.set(pass_ids=passes, sample_ids=torch.as_tensor(samples))
    return keys


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("scale", "p"), [("inverted", 0.5), ("none", 0.3)])
@pytest.mark.parametrize(
    ("scope", "x_shape", "ids"),
    [
        ("row", (4,), [7, 2**32 - 1, 40_000, 7]),
        ("row", (2, 3), [21, 22, 23, 15, 16, 17]),  # sample · L + position
        ("sample", (2, 3), [7, 5]),
        ("pass", (4,), [0]),
    ],
    ids=["row", "row-positions", "sample", "pass"],
)
def test_keyed_masks_are_those_of_the_specification(scope, x_shape, ids, scale, p, training):
    """Forward and gradients against explicit masks, with sums that cannot round."""
    layer, x = integer_layer(x_shape=x_shape, scope=scope, scale=scale, p=p)
    layer.train(training)
    samples = [7, 5] if len(x_shape) == 2 else [7, 2**32 - 1, 40_000, 7]
    keyed(layer, samples=samples, passes=3)
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    digits = keep_digits(p)
    key = layer_key(SEED, 0)
    mask = explicit_masks(key, torch.tensor(ids), torch.tensor([3]), 5, 6, digits)
    rows = x.detach().double().view(1, len(ids), -1, 6).requires_grad_()
    weight = layer.weight.detach().double().requires_grad_()
    factor = 1 / digits.keep_probability if scale == "inverted" else 1.0
    want = forward(rows, weight, layer.bias.detach().double(), mask, factor)
    want.sum().backward()
    assert torch.equal(y.detach().double().flatten(), want.detach().flatten())
    assert torch.equal(x.grad.double().flatten(), rows.grad.flatten())
    assert torch.equal(layer.weight.grad.double(), weight.grad)
    assert torch.equal(layer.bias.grad, torch.full((5,), float(rows[..., 0].numel())))


def test_folded_passes_are_the_single_passes_in_a_row():
    layer = DropConnectLinear(16, 8)
    x = torch.randn(3, 16)
    keys = keyed(layer, samples=[4, 5, 6])
    singles = []
    for step in (9, 2):
        keys.set(pass_ids=step, sample_ids=torch.tensor([4, 5, 6]))
        singles.append(layer(x))
    keys.set(pass_ids=torch.tensor([9, 2]), sample_ids=torch.tensor([4, 5, 6]))
    assert torch.equal(layer(x), torch.cat(singles))
    assert torch.equal(layer(x.repeat(2, 1)), torch.cat(singles))


def test_equal_layers_draw_different_masks():
    """Two layers of one model, one seed: their masks agree in half of the weights."""
    model = nn.Sequential(*(DropConnectLinear(16, 16, bias=False) for _ in range(2)))
    for layer in model:
        nn.init.ones_(layer.weight)
    keys = MaskKeys(0)
    with keys.attached(model):
        # Every row carries one input, of one mask: its outputs are a column of the mask.
        keys.set(pass_ids=0, sample_ids=torch.zeros(16, dtype=torch.int64))
        first, second = (layer(torch.eye(16)) > 0 for layer in model)
    agree = (first == second).float().mean()
    assert abs(agree - 0.5) < 4 * 0.5 / 16
    # Without keys too: each forward of a layer draws a key.
    torch.manual_seed(0)
    assert not torch.equal(model[0](torch.eye(16)), model[1](torch.eye(16)))


def test_a_dropped_weight_is_selected_away_not_multiplied_by_zero():
    """W = [inf, 1], x = [1, 1]: 2.0 where the mask drops the first weight, never NaN."""
    layer = DropConnectLinear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[torch.inf, 1.0]]))
    samples = torch.arange(32)
    digits = keep_digits(0.5)
    mask = explicit_masks(layer_key(SEED, 0), samples, torch.tensor([0]), 1, 2, digits)[0, :, 0]
    keyed(layer, samples=samples)
    y = layer(torch.ones(32, 2))[:, 0]
    want = torch.where(mask[:, 0], torch.inf, 2.0 * mask[:, 1])
    assert torch.equal(y, want)
    assert {0.0, 2.0, torch.inf} == set(y.tolist())


def test_memory_layout_does_not_change_masks():
    """Transposed, sliced and expanded inputs, a transposed weight."""
    layer, _ = integer_layer(K=8, N=5)
    keyed(layer, samples=[3, 1, 4, 1])
    big = torch.randint(-4, 5, (4, 16), generator=torch.Generator().manual_seed(1)).float()
    for x in (big[:, ::2], big[:, :8].t().contiguous().t(), big[:1, :8].expand(4, 8)):
        assert not x.is_contiguous()
        assert torch.equal(layer(x), layer(x.contiguous()))
    want = layer(big[:, 8:])
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    assert torch.equal(layer(big[:, 8:]), want)


def test_the_expanded_gradient_of_a_sum():
    """y.sum().backward() hands on one element with strides 0."""
    layer, x = integer_layer()
    keyed(layer, samples=[0, 1, 2, 3])
    x.requires_grad_()
    gradients = [
        torch.autograd.grad(run(layer(x)), [x, *layer.parameters()])
        for run in (torch.sum, lambda y: (y * torch.ones(4, 5)).sum())
    ]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
def test_first_and_second_derivatives(scope):
    layer = DropConnectLinear(4, 3, dtype=torch.float64, scope=scope)
    keyed(layer, samples=[2, 9])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 4, dtype=torch.float64, generator=generator, requires_grad=True)

    def run(x, weight, bias):
        parameters = {"weight": weight, "bias": bias}
        return torch.func.functional_call(layer, parameters, (x,)).square()

    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
