"""Faults of statistics over Monte Carlo passes, in every path: folded, planned, and the metrics."""

import math

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear, MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc import metrics as m
from bayes_dc.mc.engine_statistics import RunStatistics
from bayes_dc.mc.statistics import PassStatistics
from bayes_dc.models import mlp

CPU = torch.device("cpu")


def folded_summary(outputs, link="identity"):
    """Statistics as predict_with_uncertainty collects them; outputs [T, B, C]."""
    statistics = PassStatistics(*outputs.shape, CPU, link)
    for one in outputs.split(2):
        statistics.update(one)
    return statistics.summary()


def planned_summary(outputs, link="identity"):
    """The same as MonteCarloEngine collects them."""
    T, B, C = outputs.shape
    statistics = RunStatistics(T, B, C, link, CPU, T * B)
    calls = []
    for first in range(0, T, 2):
        calls += statistics.add(outputs[first : first + 2], first, keep_samples=False)
    for function, arguments, options in calls + statistics.end(B):
        function(*arguments, **options)
    return statistics.fields(statistics.results(B), B)


SUMMARIES = [folded_summary, planned_summary]


def two_valued(T, seed):
    """A prediction whose logits are [4, 0] in a pass that keeps the one weight, else [−1, 0]."""
    layer = DropConnectLinear(1, 2, p=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.5], [0.0]]))  # a kept weight is doubled
        layer.bias.copy_(torch.tensor([-1.0, 0.0]))
    model, x = nn.Sequential(layer), torch.ones(1, 1)
    folded = predict_with_uncertainty(model, x, T, seed=seed, return_samples=True, engine="folded")
    return folded, MonteCarloEngine(model, x, T)(x, seed=seed, return_samples=True)


@pytest.fixture(scope="module")
def one_of_each():
    """Predictions of two passes, one of each kind."""
    for seed in range(64):
        found = two_valued(2, seed)
        if found[0].variance.any():
            return found
    raise AssertionError("64 pairs of fair bits were equal")


@pytest.mark.parametrize("path", [0, 1], ids=["folded", "planned"])
def test_probabilities_are_averaged_not_logits(one_of_each, path):
    # source: ruqizhang/csgmcmc#2
    got = one_of_each[path]
    logits = sorted((s[0, 0] / s[0, 1]).log().item() for s in got.samples)
    assert logits == pytest.approx([-1.0, 4.0], abs=1e-12)
    # of averaged logits the mean would be 0.817574
    assert got.mean[0, 0].item() == pytest.approx(0.625478, abs=5e-7)
    assert got.entropy.item() == pytest.approx(0.661319, abs=5e-7)
    assert got.expected_entropy.item() == pytest.approx(0.336149, abs=5e-7)
    assert got.mutual_information.item() == pytest.approx(0.325170, abs=5e-7)
    assert got.variance[0, 0].item() == pytest.approx(0.254236, abs=5e-7)  # unbiased
    split = m.uncertainty_split(got.samples)
    assert split.total.item() == pytest.approx(0.661319, abs=5e-7)
    assert split.aleatoric.item() == pytest.approx(0.336149, abs=5e-7)
    assert split.epistemic.item() == pytest.approx(0.325170, abs=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_pass_has_no_spread(dtype):
    # source: Riashat/Active-Learning-Bayesian-Convolutional-Neural-Networks#3
    torch.manual_seed(0)
    model = mlp(5, 3, hidden=(8,))
    convert(model, 0.5)
    model, x = model.to(dtype), torch.randn(4, 5, dtype=dtype)
    both = predict_with_uncertainty(model, x, T=1), MonteCarloEngine(model, x, T=1)(x)
    for got in both:
        for name in ("mutual_information", "variance", "mean_se", "entropy_se", "variation_ratio"):
            assert not getattr(got, name).any(), name  # NaN would be true
        assert torch.equal(got.entropy, got.expected_entropy)
    probs = model(x).detach().softmax(1)[None]
    for measure in (m.mutual_information, m.mutual_information_jackknife, m.variation_ratio):
        assert not measure(probs).any(), measure.__name__


@pytest.mark.parametrize("summary", SUMMARIES, ids=["folded", "planned"])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_a_large_mean_hides_no_spread(summary, offset):
    """Mean of squares less square of mean gives 0.0 in float32 for 10000, 10001, 10002."""
    # source: berceanu/openPMD-resampler#3
    outputs = torch.tensor([0.0, 1.0, 2.0]).add(offset).view(3, 1, 1)
    got = summary(outputs)
    assert got.mean.item() == offset + 1
    assert got.variance.item() == pytest.approx(1.0, rel=1e-9)
    assert got.mean_se.item() == pytest.approx(math.sqrt(1 / 3), rel=1e-9)


@pytest.mark.parametrize("summary", SUMMARIES, ids=["folded", "planned"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, 1.0])
def test_equal_passes_have_no_negative_spread(summary, value):
    # source: deepmodeling/deepmd-kit#5321
    outputs = torch.tensor([value, 1 - value], dtype=torch.float32).expand(7, 1, 2).contiguous()
    got = summary(outputs)
    assert got.variance.tolist() == [[0.0, 0.0]]
    assert got.variance.sqrt().tolist() == [[0.0, 0.0]]
    assert got.mean_se.tolist() == [[0.0, 0.0]]
    assert got.mean[0, 0].item() == outputs[0, 0, 0].item()
    for name in ("entropy_se", "mutual_information_se", "mutual_information_corrected"):
        assert getattr(got, name).abs().item() < 1e-6, name
    assert got.mutual_information.item() >= 0.0
    samples = outputs.double()
    assert m.mutual_information(samples).item() >= 0.0
    assert m.mutual_information_jackknife(samples).isfinite().all()


def test_a_network_that_drops_nothing_has_no_spread():
    # source: deepmodeling/deepmd-kit#5321
    torch.manual_seed(0)
    model = mlp(5, 3, hidden=(8,))
    convert(model, 0.0)
    with pytest.warns(UserWarning, match="All 7 passes gave the same probabilities"):
        got = predict_with_uncertainty(model, torch.randn(4, 5), T=7)
    assert not got.variance.any()
    assert not got.variation_ratio.any()
    assert got.mutual_information.max() <= 4 * 2.0**-52


@pytest.mark.parametrize("summary", SUMMARIES, ids=["folded", "planned"])
@pytest.mark.parametrize(
    ("logits", "entropy"),
    [
        ([200.0, 0.0, 0.0], 0.0),
        ([0.0, 0.0, -math.inf], math.log(2)),
        ([0.0, -math.inf, -math.inf], 0.0),
        ([6e4, -6e4, -6e4], 0.0),
    ],
    ids=["saturated", "a class that cannot be", "the only class", "far apart"],
)
def test_classes_of_probability_zero_leave_finite_statistics(logits, entropy, summary):
    """A row of NaN beside it stays by itself."""
    # source: huggingface/trl#7221
    # source: kkirchheim/pytorch-ood#84
    outputs = torch.tensor([logits, [0.0, 1.0, math.nan]], dtype=torch.float32).expand(4, 2, 3)
    got = summary(outputs.contiguous(), link="softmax")
    # 200 apart: exp(−200) of the probability is left, whose term is below a rounding of 1
    assert got.entropy[0].item() == pytest.approx(entropy, abs=2.0**-52)
    assert got.expected_entropy[0].item() == pytest.approx(entropy, abs=2.0**-52)
    assert got.mutual_information[0].item() == 0.0
    assert got.mean[0].isfinite().all()
    assert not got.variance[0].any()
    for name in ("mutual_information_corrected", "entropy_se", "mutual_information_se"):
        assert abs(getattr(got, name)[0].item()) < 1e-7, name
    assert got.entropy[1].isnan()
