"""Entropy and mutual information: SciPy, worked numbers, zeros, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bayes_dc.metrics import (
    entropy,
    entropy_from_logits,
    expected_entropy,
    mutual_information,
    predictive_entropy,
)

INF = math.inf


@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
def test_entropy_equals_scipy(classes):
    probs = np.random.default_rng(0).dirichlet(np.full(classes, 0.1), size=(5, 4))
    got = entropy(torch.from_numpy(probs)).numpy()
    assert got.shape == (5, 4)
    # SciPy normalises rows again, one rounding per term more.
    np.testing.assert_allclose(got, stats.entropy(probs, axis=-1), rtol=0, atol=classes * 2.0**-50)


def test_entropy_ends_of_the_range():
    assert entropy(torch.tensor([1.0, 0.0, 0.0])).item() == 0.0
    # float32 0.25 is exact and log 4 = 2 log 2.
    assert entropy(torch.full((4,), 0.25)).item() == pytest.approx(math.log(4), rel=2.0**-51)


@pytest.mark.parametrize(
    ("logits", "want"),
    [
        (torch.tensor([[0.0, -INF]]), 0.0),
        (torch.tensor([[0.0, 0.0, -INF]]), math.log(2)),
        (torch.tensor([[60000.0, -60000.0]], dtype=torch.float16), 0.0),
        (torch.tensor([[200.0, 0.0, 0.0]]), 0.0),
    ],
    ids=["one-class", "two-classes", "float16", "underflow"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_probabilities_give_finite_entropy(logits, want, dtype):
    logits = logits.to(dtype) if dtype != torch.float16 or logits.abs().max() < 65504 else logits
    # exp(−200) is not 0 in float64: the entropy there is about 400 e⁻²⁰⁰.
    assert entropy_from_logits(logits).item() == pytest.approx(
        want, rel=2.0**-51, abs=500 * math.exp(-200)
    )
    assert entropy(logits.double().softmax(-1)).isfinite().all()


def test_the_gradient_at_zero_probability_is_finite():
    logits = torch.tensor([0.0, 0.0, -INF], requires_grad=True)
    value = entropy_from_logits(logits)
    value.backward()
    assert value.item() == pytest.approx(math.log(2), rel=2.0**-51)
    assert logits.grad.tolist() == [0.0, 0.0, 0.0]


def test_entropy_gradients_by_finite_differences():
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(entropy_from_logits, logits.requires_grad_())


def test_two_passes_worked_by_hand():
    """Averaging logits instead of probabilities would give 0.817574 for class 0."""
    samples = torch.tensor([[[4.0, 0.0]], [[-1.0, 0.0]]], dtype=torch.float64).softmax(-1)
    assert samples.mean(0)[0, 0].item() == pytest.approx(0.625478, abs=5e-7)
    # The expected numbers are printed to six digits.
    assert predictive_entropy(samples).item() == pytest.approx(0.661319, abs=5e-7)
    assert expected_entropy(samples).item() == pytest.approx(0.336149, abs=5e-7)
    assert mutual_information(samples).item() == pytest.approx(0.325170, abs=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_pass_has_no_mutual_information(dtype):
    probs = torch.randn(1, 50, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert mutual_information(probs.to(dtype)).tolist() == [0.0] * 50


def test_identical_saturated_passes():
    samples = torch.tensor([[200.0, 0.0, 0.0]]).softmax(-1).expand(4, 1, 3)
    assert predictive_entropy(samples).tolist() == [0.0]
    assert mutual_information(samples).tolist() == [0.0]


def test_identical_passes_have_no_negative_mutual_information():
    """The mean of 7 equal numbers is often not that number; the difference may have any sign."""
    probs = torch.rand(200, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    samples = (probs / probs.sum(1, keepdim=True)).expand(7, 200, 10)
    raw = predictive_entropy(samples) - expected_entropy(samples)
    assert (raw < 0).any()
    mi = mutual_information(samples)
    assert (mi >= 0).all()
    assert (mi <= 7 * 10 * 2.0**-50).all()


def test_mutual_information_of_dirichlet_passes():
    """E[H(p)] and H(E[p]) are known for p ~ Dir(a); 4000 passes estimate them."""
    a = np.array([2.0, 1.0, 0.5])
    samples = np.random.default_rng(0).dirichlet(a, size=(4000, 8))
    mean = a / a.sum()
    want = special.digamma(a.sum() + 1) - (mean * special.digamma(a + 1)).sum()
    values = stats.entropy(samples, axis=-1)
    got = expected_entropy(torch.from_numpy(samples)).numpy()
    assert np.abs(got - want).max() < 4 * values.std() / math.sqrt(4000)
    exact = stats.entropy(mean) - want
    mi = mutual_information(torch.from_numpy(samples)).numpy()
    # The log-ratio log p/p̄ averaged over classes is the summand of MI; its spread gives the error.
    spread = (samples * np.log(np.maximum(samples, 1e-300) / mean)).sum(-1).std()
    assert np.abs(mi - exact).max() < 4 * spread / math.sqrt(4000)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32))
def test_the_split_adds_up(passes, rows, classes, seed):
    samples = torch.randn(
        passes, rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    samples = (5 * samples).softmax(-1)
    total, expected = predictive_entropy(samples), expected_entropy(samples)
    mi = mutual_information(samples)
    assert (mi >= 0).all()
    assert (total <= math.log(classes) + classes * 2.0**-50).all()
    # MI is cut at 0 where rounding left less: a difference of passes · classes roundings at most.
    assert torch.allclose(expected + mi, total, rtol=0, atol=passes * classes * 2.0**-50)
