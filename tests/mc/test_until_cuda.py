"""T="auto", convergence and temperature on a GPU: the same promises."""

import pytest
import torch

from bayes_dc import convert, predict_with_uncertainty
from bayes_dc import metrics as m
from bayes_dc.mc import convergence, temper
from bayes_dc.models import mlp

pytestmark = pytest.mark.gpu

K, C = 50, 10


@pytest.fixture
def model():
    torch.manual_seed(0)
    network = mlp(K, C, hidden=(64, 40))
    convert(network)
    return network.cuda()


@pytest.fixture
def x():
    return 2 * torch.randn(37, K, generator=torch.Generator().manual_seed(1)).cuda()


@pytest.mark.parametrize("of", ["mean", "entropy", "mutual_information"])
def test_it_is_the_folded_prediction_of_that_many_passes(model, x, of):
    options = {"return_samples": True, "seed": 4}
    got = predict_with_uncertainty(
        model, x, "auto", standard_error=0.02, standard_error_of=of, **options
    )
    want = predict_with_uncertainty(model, x, got.T, engine="folded", **options)
    for name in ("mean", "samples", "entropy_se", "mutual_information_corrected"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    errors = got.mean_se.amax(dim=1) if of == "mean" else getattr(got, f"{of}_se")
    assert errors.is_cuda
    assert errors.max() <= 0.02
    assert got.T > 20


def test_what_is_made_of_samples_equals_the_cpu(model, x):
    prediction = predict_with_uncertainty(model, x, 60, return_samples=True)
    samples, labels = prediction.samples, prediction.predicted.cpu()
    labels[:9] = (labels[:9] + 1) % C  # a quarter is wrong
    rows = zip(convergence(samples, labels), convergence(samples.cpu(), labels), strict=True)
    for got, want in rows:
        for name, value in vars(want).items():
            # sums of float64 in another order; the jackknife multiplies roundings by 2 T
            bound = 2 * 60 * 60 * C * 2.0**-52
            assert getattr(got, name) == (value and pytest.approx(value, abs=bound)), name
    for kind in ("logits", "mean"):
        got, want = temper(prediction, 1.7, kind), temper(on_cpu(prediction), 1.7, kind)
        for name in ("mean", "entropy", "mean_se", "entropy_se", "mutual_information"):
            bound = 2 * 60 * 60 * C * 2.0**-52
            difference = (getattr(got, name).cpu() - getattr(want, name)).abs().max()
            assert difference < bound, name
        fit = m.fit_temperature(samples, labels, kind)
        other = m.fit_temperature(samples.cpu(), labels, kind)
        assert fit.nll_after == pytest.approx(other.nll_after, rel=1e-12)


def on_cpu(prediction):
    from dataclasses import replace

    tensors = {k: v.cpu() for k, v in vars(prediction).items() if isinstance(v, torch.Tensor)}
    return replace(prediction, **tensors)


def test_policies_equal_the_cpu():
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(500, generator=generator)
    wrong = torch.rand(500, generator=generator) < 0.3 * u**2
    on_gpu = u.cuda(), wrong.cuda()
    assert m.risk_bounds(*on_gpu) == m.risk_bounds(u, wrong)
    for choose, target in ((m.policy_for_risk, 0.1), (m.policy_for_coverage, 0.8)):
        policy = choose(u, wrong, target, score="entropy")
        assert choose(*on_gpu, target, score="entropy") == policy
        assert policy.outcome(*on_gpu) == policy.outcome(u, wrong)
    curve = m.certainty_area(*on_gpu, classes=3)
    assert curve.is_cuda
    # trapezoids of 101 numbers of at most 1, added in another order
    want = m.certainty_area(u, wrong, classes=3).item()
    assert curve.item() == pytest.approx(want, abs=101 * 2.0**-53)
