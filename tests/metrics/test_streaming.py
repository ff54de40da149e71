"""Batches give the bits of one call, for every metric; intervals, refusals, state."""

import dataclasses
import inspect
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc import metrics as m
from bayes_dc.metrics import Streaming

OPTIONS = {
    m.coverage_at_risk: {"risk": 0.3},
    m.risk_at_coverage: {"coverage": 0.7},
    m.certainty_curves: {"classes": 3, "normalisation": "test_set"},
    m.certainty_area: {"classes": 3, "of": "r_cc"},
}
LABELLED = [
    m.accuracy,
    m.nll,
    m.nll_from_logits,
    m.brier,
    m.ece,
    m.mce,
    m.debiased_ece,
    m.reliability_curve,
    m.adaptive_ece,
    m.debiased_squared_error,
    m.classwise_ece,
    m.brier_decomposition,
    m.brier_reliability,
    m.brier_resolution,
    m.brier_uncertainty,
]
RANKED = [m.risk_coverage_curve, m.aurc, m.excess_aurc, m.coverage_at_risk, m.risk_at_coverage]
CERTAINTY = [m.certainty_curves, m.certainty_area]
OOD = [m.auroc, m.aupr_in, m.aupr_out, m.fpr_at_tpr]
CURVES = [
    m.reliability_curve,
    m.brier_decomposition,
    m.risk_coverage_curve,
    m.certainty_curves,
]
UNCERTAINTIES = [
    m.entropy,
    m.entropy_from_logits,
    m.predictive_entropy,
    m.expected_entropy,
    m.mutual_information,
    m.mutual_information_jackknife,
    m.variation_ratio,
    m.max_probability_score,
    m.energy,
    m.vote_entropy,
]
ALL = LABELLED + RANKED + CERTAINTY + OOD


def inputs(metric, rows, seed):
    """Two tensors [rows, ...] for the metric, with many ties."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(rows, 3, generator=generator).mul_(2).round_().softmax(1)
    if metric in LABELLED:
        return probs, torch.randint(3, (rows,), generator=generator)
    if metric in RANKED:
        return m.entropy(probs), torch.rand(rows, generator=generator)
    if metric in CERTAINTY:
        return m.entropy(probs), torch.rand(rows, generator=generator) < 0.6
    return probs[:, 0], probs[:, 1] ** 2


def assert_equal_bits(got, want):
    if dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            assert_equal_bits(getattr(got, field.name), getattr(want, field.name))
    elif isinstance(want, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("metric", ALL, ids=lambda f: f.__name__)
@settings(max_examples=15, deadline=None)
@given(st.integers(30, 70), st.lists(st.integers(0, 70), max_size=6), st.integers(0, 2**32))
def test_any_batching_gives_the_bits_of_one_call(metric, rows, cuts, seed):
    first, second = inputs(metric, rows, seed)
    options = OPTIONS.get(metric, {})
    stream = Streaming(metric, **options)
    edges = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            stream.update(first[start:stop], second[start:stop])
    assert stream.n == rows * (1 + (metric in OOD))
    assert_equal_bits(stream.compute(), metric(first, second, **options))


@pytest.mark.parametrize("metric", [m.accuracy, m.nll, m.brier, m.ece, m.classwise_ece, m.aurc])
def test_many_small_batches_of_many_samples(metric):
    """Long sums are cut into blocks inside torch, by the same rule in both forms."""
    first, second = inputs(metric, 20_000, seed=5)
    stream = Streaming(metric)
    for a, b in zip(first.split(77), second.split(77), strict=True):
        stream.update(a, b)
    assert_equal_bits(stream.compute(), metric(first, second))


@pytest.mark.parametrize("metric", [m.accuracy, m.ece], ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_small_last_batch_weighs_as_much_as_it_holds(metric, size):
    probs = torch.tensor([[0.75, 0.25]]).expand(8, 2)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    stream = Streaming(metric)
    for a, b in zip(probs.split(size), labels.split(size), strict=True):
        stream.update(a, b)
    assert stream.n == 8
    assert stream.compute().item() == {m.accuracy: 0.75, m.ece: 0.0}[metric]


def test_ood_scores_may_come_one_data_set_after_the_other():
    stream = Streaming(m.auroc)
    nothing = torch.empty(0)
    for score in (0.7, 2.3, 1.7):
        stream.update(nothing, torch.tensor([score]))
    stream.update(torch.tensor([0.4]), nothing)
    assert stream.n == 4
    assert stream.compute().item() == 1.0


@pytest.mark.parametrize("metric", [f for f in ALL if f not in CURVES], ids=lambda f: f.__name__)
def test_intervals_of_streams_equal_those_of_one_call(metric):
    first, second = inputs(metric, 40, seed=1)
    options = OPTIONS.get(metric, {})
    stream = Streaming(metric, **options)
    stream.update(first[:13], second[:13])
    stream.update(first[13:], second[13:])
    want = m.bootstrap_metric(metric, first, second, resamples=30, seed=2, **options)
    assert stream.interval(resamples=30, seed=2) == want


def test_nothing_of_the_graph_or_the_batch_is_kept():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]], requires_grad=True)
    stream = Streaming(m.nll)
    stream.update(probs, torch.tensor([0, 1]))
    want = stream.compute()
    assert not want.requires_grad
    with torch.no_grad():
        probs.zero_()
    assert stream.compute().item() == want.item()


def test_reset_forgets(batch):
    probs, labels = batch(rows=20)
    stream = Streaming(m.ece, n_bins=5)
    stream.update(probs[:7], labels[:7])
    stream.reset()
    assert stream.n == 0
    stream.update(probs, labels)
    assert stream.compute().item() == m.ece(probs, labels, 5).item()


def test_a_refused_batch_changes_nothing(batch):
    probs, labels = batch(rows=20)
    stream = Streaming(m.accuracy)
    stream.update(probs, labels)
    with pytest.raises(ValueError, match="labels must have shape"):
        stream.update(probs, labels[:3])
    assert stream.n == 20
    assert stream.compute().item() == m.accuracy(probs, labels).item()


def test_streams_refuse():
    probs, labels = torch.tensor([[0.75, 0.25]]), torch.tensor([0])
    with pytest.raises(ValueError, match=r"no samples: update was never .* before compute\."):
        Streaming(m.nll).compute()
    with pytest.raises(ValueError, match=r"Call it for every batch before interval\."):
        Streaming(m.nll).interval()
    stream = Streaming(m.classwise_ece)
    stream.update(probs, labels)
    with pytest.raises(
        ValueError, match=r"has \[\[3\], \[\]\] .* after batches of \[\[2\], \[\]\]"
    ):
        stream.update(torch.eye(3)[:1], labels)
    stream = Streaming(m.auroc)
    stream.update(torch.rand(3), torch.empty(0))
    with pytest.raises(ValueError, match=r"no samples: scores_out is empty"):
        stream.compute()
    with pytest.raises(ValueError, match=r"no samples: scores_out is empty"):
        stream.interval()


@pytest.mark.parametrize("make", [Streaming, lambda f, **o: m.bootstrap_metric(f, None, None, **o)])
def test_metrics_and_options_must_be_known(make):
    with pytest.raises(ValueError, match=r"metric must be one of accuracy, nll, .*; got correct"):
        make(m.correct)
    with pytest.raises(TypeError, match=r"ece takes the options n_bins; got \['bins'\]"):
        make(m.ece, bins=3)
    with pytest.raises(TypeError, match=r"nll takes the options none; got \['n_bins'\]"):
        make(m.nll, n_bins=3)
    with pytest.raises(TypeError, match=r"coverage_at_risk takes the options risk; got none"):
        make(m.coverage_at_risk)
    with pytest.raises(ValueError, match=r"n_bins must be a positive integer"):
        make(m.ece, n_bins=0)
    with pytest.raises(ValueError, match=r"risk must be a number of at least 0"):
        make(m.coverage_at_risk, risk=-1)
    with pytest.raises(ValueError, match=r"coverage must be a number above 0 and at most 1"):
        make(m.risk_at_coverage, coverage=0)
    with pytest.raises(TypeError, match=r"certainty_area takes the options classes, of, norm"):
        make(m.certainty_area)
    with pytest.raises(ValueError, match=r"classes must be an integer of at least 2"):
        make(m.certainty_area, classes=1)
    with pytest.raises(ValueError, match=r"of must be one of \('r_cc', 'r_iu', 'ua'\), .* 'uc'\."):
        make(m.certainty_area, classes=3, of="uc")
    with pytest.raises(ValueError, match=r"thresholds must be two or more numbers"):
        make(m.certainty_curves, classes=3, thresholds=[1])
    with pytest.raises(ValueError, match=r"normalisation must be one of"):
        make(m.certainty_curves, classes=3, normalisation="max")
    with pytest.raises(ValueError, match=r"tpr must be a number above 0 and at most 1"):
        make(m.fpr_at_tpr, tpr=95)


def uncertain(measure, rows, seed):
    """What it takes: samples [T, rows, C], or rows of logits, votes or probabilities."""
    logits = torch.randn(6, rows, 3, generator=torch.Generator().manual_seed(seed))
    taken = next(iter(inspect.signature(measure).parameters))
    given = {"samples": logits.softmax(2), "logits": logits[0], "votes": logits[0].abs().ceil()}
    return given.get(taken, logits[0].softmax(1))


@pytest.mark.parametrize("measure", UNCERTAINTIES, ids=lambda f: f.__name__)
def test_uncertainties_stream_and_their_means_have_intervals(measure):
    given = uncertain(measure, 40, seed=1)
    at = given.ndim - 2  # the inputs
    stream = Streaming(measure)
    for start, stop in itertools.pairwise((0, 1, 25, 40)):
        stream.update(given.narrow(at, start, stop - start))
    assert stream.n == 40
    values = measure(given)
    assert_equal_bits(stream.compute(), values.double())
    want = m.bootstrap_mean(values, level=0.9, resamples=50, seed=3)
    options = {"level": 0.9, "resamples": 50, "seed": 3}
    assert stream.interval(**options) == want
    assert m.bootstrap_metric(measure, given, **options) == want
    other = uncertain(measure, 40, seed=2)
    difference = m.bootstrap_difference(measure, (given,), (other,), **options)
    gaps = m.bootstrap_mean(measure(other) - values, **options)
    assert difference.low == pytest.approx(gaps.low, rel=2.0**-40, abs=2.0**-50)


def test_metrics_take_as_many_tensors_as_they_name():
    samples = uncertain(m.predictive_entropy, 4, seed=0)
    stream = Streaming(m.predictive_entropy)
    with pytest.raises(TypeError, match=r"predictive_entropy takes one tensor, samples; got 2\."):
        stream.update(samples, samples)
    with pytest.raises(TypeError, match=r"nll takes two tensors, probs and labels; got 1\."):
        m.bootstrap_metric(m.nll, samples[0])
    with pytest.raises(TypeError, match=r"nll takes two tensors, probs and labels; got 3\."):
        m.bootstrap_difference(m.nll, (samples[0],) * 3, (samples[0],) * 3)
    with pytest.raises(TypeError, match=r"energy takes the options none; got \['temperature'\]"):
        Streaming(m.energy, temperature=2.0)
    text = r"entropy must give one number per sample, \[n\]; got shape \[6, 4\]\. Flatten what"
    with pytest.raises(ValueError, match=text):
        m.bootstrap_metric(m.entropy, samples)


@pytest.mark.parametrize("metric", CURVES, ids=lambda f: f.__name__)
def test_curves_have_no_interval(metric):
    first, second = inputs(metric, 40, seed=1)
    options = OPTIONS.get(metric, {})
    stream = Streaming(metric, **options)
    stream.update(first, second)
    text = rf"{metric.__name__} is no single number, so it has no interval\. Take it of "
    with pytest.raises(ValueError, match=text):
        stream.interval()
    with pytest.raises(ValueError, match=text):
        m.bootstrap_metric(metric, first, second, **options)
