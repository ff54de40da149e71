"""Numbers at their limits: every dtype, drop probabilities, saturation, constants, sizes."""

import copy

import pytest
import torch
from limit_cases import (
    DTYPES,
    C,
    K,
    T,
    assert_sound,
    every_layer,
    folded,
    inputs,
    network,
    planned,
)

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    MonteCarloEngine,
    predict_with_uncertainty,
)
from bayes_dc.mc.plan_errors import PlanError

BOTH = ("folded", "engine")


def by(path, model, x, **options):
    if path == "folded":
        return folded(model, x, **options)
    return planned(model, max(len(x), 1), **options)(x, return_samples=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layer_in_every_dtype(dtype):
    """Both paths: sound, near float64 with the same weights, and the engine as near as folded."""
    model, x = every_layer(dtype), inputs(5, dtype)
    exact = folded(copy.deepcopy(model).double(), x.double()).samples
    errors = {}
    for path in BOTH:
        got = by(path, model, x)
        assert_sound(got)
        errors[path] = (got.samples - exact).abs().max().item()
    eps = torch.finfo(dtype).eps
    assert errors["engine"] <= 2 * errors["folded"] + 16 * eps
    assert errors["folded"] <= rounding(model, x)


def rounding(model, x):
    """Largest error of a probability where every operation of every layer is off by a rounding.

    The change that one unit of rounding in one layer's output makes, measured in float64, summed
    over layers; three roundings each (a mask's scale, a sum in float32 or better, the result).
    """
    eps, total = torch.finfo(x.dtype).eps, 0.0
    exact = copy.deepcopy(model).double()
    want = folded(exact, x.double()).samples
    for layer in exact:
        noise = torch.Generator().manual_seed(0)

        def off(_module, _inputs, y, noise=noise):
            signs = torch.randint(0, 2, y.shape, generator=noise) * 2 - 1
            return y + 3 * eps * signs * y.abs().amax(dim=-1, keepdim=True)

        handle = layer.register_forward_hook(off)
        total += (folded(exact, x.double()).samples - want).abs().max().item()
        handle.remove()
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.001, 0.1, 0.5, 0.75, 0.9, 0.99])
def test_mean_and_variance_for_every_p(p, dtype):
    """E[y] = W x + b, Var[y] = p / (1 − p) Σ (w x)², within 5 standard errors."""
    rows = 4096
    torch.manual_seed(0)
    layer = DropConnectLinear(K, C, p=p).to(dtype)
    x = inputs(1, dtype)
    with torch.no_grad():
        y = layer(x.expand(rows, K)).double()
    assert y.isfinite().all()
    terms = layer.weight.detach().double() * x.double()
    mean, squares = terms.sum(1) + layer.bias.detach().double(), terms.square().sum(1)
    drop = layer.p_effective
    assert abs(drop - p) <= 0.01 * p
    variance = drop / (1 - drop) * squares
    # A sum of 4096 numbers by halves is off by 12 roundings, each number by one.
    rounded = (torch.finfo(dtype).eps + 12 * 2.0**-53) * y.abs().amax(0)
    assert ((y.mean(0) - mean).abs() <= 5 * (variance / rows).sqrt() + rounded).all()
    # The fourth cumulant of a kept-or-dropped term is its square squared times this.
    ratio = drop / (1 - drop)
    fourth = 0.0 if p == 0 else terms.pow(4).sum(1) * ratio**2 * (ratio + 1 / ratio - 4)
    spread = ((fourth + 2 * variance.square()) / rows).sqrt()
    assert ((y.var(0) - variance).abs() <= 5 * spread + rounded * y.abs().amax(0)).all()


@pytest.mark.parametrize("make", [DropConnectLinear, DropConnectConv2d])
@pytest.mark.parametrize("p", [1.0, 1.5, -0.01, float("nan"), float("inf")])
def test_a_drop_probability_out_of_range_is_refused(make, p):
    with pytest.raises(ValueError, match="p must be") as error:
        make(3, 4, 2, p=p) if make is DropConnectConv2d else make(3, 4, p=p)
    assert repr(p) in str(error.value)


def test_almost_every_weight_dropped():
    model, x = network(p=0.99, hidden=(512,)), inputs(5)
    for path in BOTH:
        got = by(path, model, x)
        assert_sound(got)
        assert (got.mutual_information > 0).all()


def test_an_engine_without_anything_to_draw_is_refused():
    """p = 0 everywhere; the folded path says that the uncertainty has no meaning."""
    model, x = every_layer(p=0.0), inputs(3)
    with pytest.raises(PlanError, match="so every pass would be equal") as error:
        planned(model, 3)
    assert "Convert the model with p > 0 (bayes_dc.convert)" in str(error.value)
    with pytest.warns(UserWarning, match="the uncertainty is 0 without meaning"):
        got = folded(model, x)
    assert not got.variance.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_logits_and_constant_inputs(dtype):
    """From denormal to nearly infinite logits: probabilities of 0 and 1 have entropy 0, not NaN."""
    model = network(dtype)
    engine = planned(model, 6)
    largest = torch.finfo(dtype).max
    for scale in (0.0, torch.finfo(dtype).tiny, 1e-3, 30.0, 1e3, largest / 256):
        for x in (inputs(6, dtype).clamp(-2, 2) * scale, torch.full((6, K), scale, dtype=dtype)):
            for got in (folded(model, x), engine(x, return_samples=True)):
                assert_sound(got)
                sure = (got.samples == 1).any(2).double().mean()
                if scale == largest / 256 and dtype != torch.float16:
                    assert sure > 0.5  # else a mask has left no weight


@pytest.mark.parametrize("path", BOTH)
def test_numbers_that_outgrow_their_dtype_are_said(path):
    """Finite inputs, NaN predictions."""
    model, x = network(torch.float16), inputs(4, torch.float16)
    with torch.no_grad():
        model[5].weight.mul_(60000)
        x[2] *= 100
        x[1] *= 0
    with pytest.warns(UserWarning, match="predictions are NaN although their inputs") as said:
        got = predict_with_uncertainty(model, x, T, engine=path)
    bad = got.mean.isnan().any(1)
    assert bad[2]
    assert not bad[1]
    text = str(said[0].message)
    first, count = int(bad.nonzero()[0]), int(bad.sum())
    assert text.startswith(f"{count} of 4 predictions are NaN although their inputs are finite (fi")
    assert f"(first row: {first}): weights are not finite, or numbers in the model outgrow" in text
    assert "predict in float32 (model.float(), x.float())." in text
    assert said[0].filename == __file__


@pytest.mark.parametrize(("classes", "passes"), [(1, 21), (133, 1)])
def test_sizes(classes, passes):
    """No, one, a prime number of inputs; one class; one pass."""
    model = network(classes=classes)
    engine = MonteCarloEngine(model, inputs(1), passes, capacity=31)
    whole = engine(inputs(31), return_samples=True)
    for rows in (0, 1, 2, 13, 31):
        got = engine(inputs(31)[:rows], return_samples=True)
        assert got.mean.shape == got.variance.shape == got.mean_se.shape == (rows, classes)
        assert got.samples.shape == (passes, rows, classes)
        assert got.entropy.shape == got.variation_ratio.shape == (rows,)
        if rows:
            assert_sound(got)
        assert torch.equal(got.samples, whole.samples[:, :rows])
        assert torch.equal(got.mutual_information_se, whole.mutual_information_se[:rows])
    if classes == 1:
        assert torch.equal(whole.mean, torch.ones(31, 1, dtype=torch.float64))
    if passes == 1:
        assert not whole.variance.any()
        assert not whole.entropy_se.any()
