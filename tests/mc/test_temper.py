"""Tempered predictions: those of a network with scaled logits, and of the averaged distribution."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from bayes_dc import Prediction, convert, predict_with_uncertainty
from bayes_dc.mc import temper
from bayes_dc.models import mlp

FIELDS = (
    *("mean", "variance", "entropy", "expected_entropy", "mutual_information"),
    *("mutual_information_corrected", "variation_ratio", "mean_se", "entropy_se"),
    *("mutual_information_se", "samples"),
)


class Scaled(nn.Module):
    """A network whose logits are divided by τ, as a head would."""

    def __init__(self, network, temperature):
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, x):
        return self.network(x) / self.temperature


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = mlp(6, 4, hidden=(12,)).double()
    convert(model, 0.5)
    return model


@pytest.fixture(scope="module")
def x():
    return 3 * torch.randn(7, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def prediction(network, x):
    return predict_with_uncertainty(network, x, 31, return_samples=True)


@pytest.mark.parametrize("temperature", [0.25, 1.7, 9.0])
def test_logits_divided_by_the_temperature(network, x, prediction, temperature):
    """Probabilities hold all of the logits that matters: equal to rounding, in float64."""
    got = temper(prediction, temperature, "logits")
    want = predict_with_uncertainty(Scaled(network, temperature), x, 31, return_samples=True)
    for name in FIELDS:
        # the jackknife multiplies roundings by 2 T, logarithms by up to 1/τ
        bound = 2 * 31 * 31 * 4 * max(1, 1 / temperature) * 2.0**-52
        torch.testing.assert_close(
            getattr(got, name), getattr(want, name), rtol=0, atol=bound, msg=name
        )
    assert (got.T, got.seed, got.p_effective) == (31, 0, prediction.p_effective)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_mean_to_a_power(prediction, temperature):
    got = temper(prediction, temperature, "mean")
    power = prediction.mean ** (1 / temperature)
    want = power / power.sum(dim=1, keepdim=True)
    torch.testing.assert_close(got.mean, want, rtol=1e-14, atol=0)
    entropy = torch.special.entr(want).sum(dim=1)
    torch.testing.assert_close(got.entropy, entropy, rtol=1e-13, atol=0)
    assert torch.equal(got.predicted, prediction.predicted)
    for name in FIELDS:
        if name not in {"mean", "entropy", "mean_se", "entropy_se"}:
            assert torch.equal(getattr(got, name), getattr(prediction, name)), name


@pytest.mark.parametrize("kind", ["logits", "mean"])
def test_a_temperature_of_1_changes_nothing(prediction, kind):
    """But for the way in which the standard error of the mean is estimated."""
    got = temper(prediction, 1, kind)
    for name in FIELDS:
        if (name, kind) == ("mean_se", "mean"):
            continue
        bound = 2 * 31 * 31 * 4 * 2.0**-52
        torch.testing.assert_close(
            getattr(got, name), getattr(prediction, name), rtol=0, atol=bound, msg=name
        )


def test_standard_errors_of_a_tempered_mean_are_those_of_repeated_runs():
    """The slope of a power stretches them."""
    runs, T = 600, 60
    draws = torch.distributions.Dirichlet(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    torch.manual_seed(0)
    samples = draws.sample((T, runs))
    zero, one = torch.zeros(runs, dtype=torch.float64), torch.zeros(runs, 3, dtype=torch.float64)
    prediction = Prediction(
        *(samples.mean(0), one, zero, zero, zero, zero, zero, one, zero, zero, samples),
        T=T,
        seed=0,
        p_effective={},
        elapsed_seconds=0.0,
    )
    got = temper(prediction, 0.5, "mean")
    noise = 5 * math.sqrt(2 / runs)
    for value, error in ((got.mean[:, 0], got.mean_se[:, 0]), (got.entropy, got.entropy_se)):
        said = error.square().mean() / value.var()
        assert 1 - noise < said < 1 + noise + 5 / T


def test_one_pass_needs_no_samples(prediction):
    """As for a plain network: there is nothing but the mean."""
    plain = dataclasses.replace(prediction, samples=None, T=1)
    want = (prediction.mean.log() / 2).softmax(dim=1)
    for kind in ("logits", "mean"):
        got = temper(plain, 2.0, kind)
        torch.testing.assert_close(got.mean, want, rtol=1e-14, atol=0)
        assert torch.equal(got.mean_se, plain.mean_se) or not got.mean_se.any()


def test_arguments_are_refused(prediction):
    with pytest.raises(ValueError, match=r"kind must be one of \('logits', 'mean'\); got 'none'\."):
        temper(prediction, 2.0, "none")
    for wrong in (0, -1.0, math.inf, math.nan, True, "2"):
        text = rf"temperature must be a number above 0, 1 to change nothing; got {wrong!r}\."
        with pytest.raises(ValueError, match=text):
            temper(prediction, wrong, "mean")
    for kind in ("logits", "mean"):
        with pytest.raises(ValueError, match="holds no samples") as caught:
            temper(dataclasses.replace(prediction, samples=None), 2.0, kind)
        assert str(caught.value) == (
            "the prediction holds no samples, and a temperature needs the probabilities of every "
            "pass. Predict with return_samples=True."
        )
