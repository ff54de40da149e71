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
    mutual_information_jackknife,
    predictive_entropy,
    uncertainty_split,
    variation_ratio,
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


@pytest.mark.parametrize("passes", [2, 3, 7, 20])
def test_the_jackknife_equals_leaving_out_every_pass(passes):
    samples = np.random.default_rng(0).dirichlet(np.full(4, 0.3), size=(passes, 6))

    def plug_in(values):
        return stats.entropy(values.mean(0), axis=-1) - stats.entropy(values, axis=-1).mean(0)

    without = [plug_in(np.delete(samples, t, axis=0)) for t in range(passes)]
    want = passes * plug_in(samples) - (passes - 1) * np.mean(without, axis=0)
    got = mutual_information_jackknife(torch.from_numpy(samples)).numpy()
    # T and T − 1 times entropies below log 4, each of about T · C roundings
    room = 2 * passes * math.log(4) * passes * 4 * 2.0**-52
    np.testing.assert_allclose(got, want, rtol=0, atol=room)


@pytest.mark.parametrize(
    "a",
    [[1.0] * 10, [0.1] * 10, [50.0, 5.0] + [1.0] * 8],
    ids=["flat", "spiky", "confident"],
)
def test_the_jackknife_is_within_2_percent_at_20_passes(a):
    a = np.array(a)
    mean, total = a / a.sum(), a.sum()
    exact = stats.entropy(mean) - (
        special.digamma(total + 1) - (mean * special.digamma(a + 1)).sum()
    )
    samples = torch.from_numpy(np.random.default_rng(0).dirichlet(a, size=(20, 20_000)))
    corrected = mutual_information_jackknife(samples)
    error = 4 * corrected.std().item() / math.sqrt(20_000)
    assert error < 0.01 * exact
    assert corrected.mean().item() == pytest.approx(exact, abs=0.01 * exact + error)
    assert mutual_information(samples).mean().item() < 0.96 * exact


def test_two_passes_double_the_mutual_information_to_first_order():
    """At T = 2 the entropies of single passes are the expected entropy: the factor is exactly 2."""
    samples = torch.randn(2, 30, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    got, plain = mutual_information_jackknife(samples), mutual_information(samples)
    # six entropies below log 5 are added
    assert torch.allclose(got, 2 * plain, rtol=0, atol=60 * 2.0**-52)


def test_one_or_identical_passes_leave_nothing_to_correct():
    probs = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    assert mutual_information_jackknife(probs[None]).tolist() == [0.0, 0.0]
    for passes in (2, 5, 8):
        got = mutual_information_jackknife(probs.expand(passes, 2, 3))
        # T entropies less T entropies
        assert got.abs().max().item() <= passes * passes * 2.0**-50
        assert got.isfinite().all()


def test_the_split_names_the_parts():
    samples = torch.randn(6, 20, 4, generator=torch.Generator().manual_seed(1)).mul(3).softmax(-1)
    plain, better = uncertainty_split(samples), uncertainty_split(samples, corrected=True)
    assert torch.equal(plain.total, predictive_entropy(samples))
    assert torch.equal(plain.aleatoric, expected_entropy(samples))
    assert torch.equal(plain.epistemic, mutual_information(samples))
    assert torch.equal(better.aleatoric, plain.aleatoric)
    assert torch.equal(better.epistemic, mutual_information_jackknife(samples))
    assert torch.equal(better.total, better.aleatoric + better.epistemic)
    assert (better.total > plain.total).all()


def test_variation_ratio_counts_votes():
    """[T, B, C]: votes (0, 0, 1, 2) leave half, (1, 1, 1, 1) none, a tie of two goes to half."""
    votes = torch.tensor([[0, 1, 0], [0, 1, 1], [1, 1, 1], [2, 1, 0]])
    samples = torch.eye(3)[votes]
    assert variation_ratio(samples).tolist() == [0.5, 0.0, 0.5]
    assert variation_ratio(samples[:1]).tolist() == [0.0] * 3
    assert variation_ratio(torch.randn(5, 3, 4).softmax(-1)).shape == (3,)


@pytest.mark.parametrize("passes", [1, 2, 7, 33])
@pytest.mark.parametrize(
    "measure",
    [
        predictive_entropy,
        expected_entropy,
        mutual_information,
        mutual_information_jackknife,
        variation_ratio,
    ],
    ids=lambda f: f.__name__,
)
def test_an_input_has_the_same_bits_in_every_batch(measure, passes):
    for classes in (1, 2, 3, 8, 10, 33):
        samples = torch.randn(
            passes, 9, classes, generator=torch.Generator().manual_seed(classes)
        ).softmax(-1)
        whole = measure(samples)
        for size in (1, 2, 4):
            parts = [measure(part) for part in samples.split(size, dim=1)]
            assert torch.equal(torch.cat(parts), whole)
