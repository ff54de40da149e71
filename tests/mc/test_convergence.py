"""Scores against the number of passes: those of a prediction, batches, errors, the closed form."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.special import digamma

from bayes_dc import convert, predict_with_uncertainty
from bayes_dc.mc import Convergence, convergence
from bayes_dc.mc.convergence import convergence_steps
from bayes_dc.models import mlp


def dirichlet(alpha, T, B, seed=0):
    draws = np.random.default_rng(seed).dirichlet(alpha, size=(T, B))
    return torch.from_numpy(draws)


def classes(B, C, seed=1):
    return torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))


def test_steps():
    assert convergence_steps(1) == [1]
    assert convergence_steps(2) == [1, 2]
    assert convergence_steps(7) == [1, 2, 5, 7]
    assert convergence_steps(100) == [1, 2, 5, 10, 20, 50, 100]
    assert convergence_steps(1001) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1001]


def test_a_row_is_the_prediction_with_that_many_passes():
    torch.manual_seed(0)
    model, x = mlp(6, 3, hidden=(8,)), 2 * torch.randn(5, 6)
    convert(model, 0.5)
    labels = torch.tensor([0, 1, 2, 0, 1])
    prediction = predict_with_uncertainty(model, x, 23, return_samples=True)
    rows = convergence(prediction.samples, labels)
    assert [row.T for row in rows] == [1, 2, 5, 10, 20, 23]
    for row in rows:
        want = predict_with_uncertainty(model, x, row.T)
        assert row.n == 5
        mean = -want.mean[torch.arange(5), labels].log()
        assert row.nll == pytest.approx(mean.mean().item(), rel=1e-14)
        for name in ("entropy", "mutual_information", "mutual_information_corrected"):
            value = getattr(want, name).mean().item()
            assert getattr(row, name) == pytest.approx(value, rel=1e-13, abs=1e-16), name
        if row.T > 2:
            said = want.mean_se.amax(dim=1).mean().item()
            assert row.input_mean_se == pytest.approx(said, rel=1e-13)
            for name in ("entropy", "mutual_information"):
                said = getattr(want, f"{name}_se").mean().item()
                assert getattr(row, f"input_{name}_se") == pytest.approx(said, rel=1e-13), name


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("size", [1, 4, 13])
def test_batches_give_the_bits_of_one_call(size, labelled):
    samples, labels = dirichlet([0.5] * 4, 27, 30), classes(30, 4)
    curve = Convergence()
    for part, own in zip(samples.split(size, dim=1), labels.split(size), strict=True):
        curve.update(part, own if labelled else None)
    assert curve.compute() == convergence(samples, labels if labelled else None)


def test_what_cannot_be_estimated_is_none():
    one, two, five = convergence(dirichlet([1.0] * 3, 5, 4))
    assert [one.T, two.T, five.T] == [1, 2, 5]
    errors = [f.name for f in dataclasses.fields(one) if f.name.endswith("_se")]
    assert len(errors) == 6
    assert all(getattr(one, name) is None for name in errors)
    assert (two.mutual_information_se, two.input_mutual_information_se) == (None, None)
    assert two.entropy_se > 0
    assert (five.nll, five.nll_se) == (None, None)
    assert five.mutual_information_se > 0
    # a label that no pass thinks possible
    samples = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[1.0, 0.0]]], dtype=torch.float64)
    last = convergence(samples, torch.tensor([1]))[-1]
    assert (last.nll, last.nll_se) == (math.inf, None)


def test_inputs_with_nan_are_left_out():
    samples, labels = dirichlet([1.0] * 3, 12, 6), classes(6, 3)
    want = convergence(samples[:, [0, 1, 3, 4, 5]], labels[[0, 1, 3, 4, 5]])
    samples[7, 2, 0] = torch.nan
    assert convergence(samples, labels) == want


@pytest.mark.parametrize("shared", [False, True], ids=["masks per input", "shared masks"])
def test_standard_errors_are_those_of_repeated_runs(shared):
    """Also where all inputs meet the same masks, so that their errors add up."""
    runs, T, B, labels = 120, 20, 6, classes(6, 4)
    rows = []
    for seed in range(runs):
        if shared:
            samples = dirichlet([2.0, 1.0, 0.5, 0.5], T, 1, seed).expand(T, B, 4).contiguous()
        else:
            samples = dirichlet([2.0, 1.0, 0.5, 0.5], T, B, seed)
        rows.append(convergence(samples, labels)[-1])
    for name in ("nll", "entropy", "mutual_information_corrected"):
        spread = np.var([getattr(row, name) for row in rows], ddof=1)
        error = name.removesuffix("_corrected") + "_se"
        said = np.mean([getattr(row, error) ** 2 for row in rows])
        noise = 5 * math.sqrt(2 / runs)  # of a variance of that many values
        assert 1 - noise < said / spread < 1 + noise + 5 / T, name


@pytest.mark.parametrize(
    "alpha", [[1.0] * 10, [0.1] * 10, [9.0, *[0.1] * 9], [50.0, 5.0, *[1.0] * 8]], ids=str
)
def test_the_closed_form_of_dirichlet_passes(alpha):
    """I = H(α/α₀) − [ψ(α₀ + 1) − Σ_k α_k/α₀ ψ(α_k + 1)]: within 2 % at T = 20 once corrected."""
    a = np.array(alpha)
    p = a / a.sum()
    exact = -(p * np.log(p)).sum() - digamma(a.sum() + 1) + (p * digamma(a + 1)).sum()
    rows = {row.T: row for row in convergence(dirichlet(alpha, 20, 20_000, seed=3))}
    assert rows[20].mutual_information_se < 0.0025 * exact
    assert abs(rows[20].mutual_information_corrected - exact) < 0.02 * exact
    plugged_in = [rows[T].mutual_information for T in (2, 5, 10, 20)]
    assert plugged_in == sorted(plugged_in)
    assert plugged_in[-1] < rows[20].mutual_information_corrected


SAMPLES = torch.full((4, 3, 2), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("samples", "labels", "text"),
    [
        (SAMPLES.float(), None, "return_samples=True); got torch.float32 [4, 3, 2]."),
        (SAMPLES[0], None, "samples must be a float64 tensor [T, B, C] of class probabilities"),
        (SAMPLES[:0], None, "got torch.float64 [0, 3, 2]."),
        (None, None, "return_samples=True); got NoneType."),
        (SAMPLES, torch.zeros(2, dtype=torch.int64), "int64 tensor [3] of classes 0 … 1, or None"),
        (SAMPLES, torch.zeros(3), "or None; got torch.float32 [3]."),
        (SAMPLES, torch.tensor([0, 1, 2]), "of classes 0 … 1, or None; got 0 … 2."),
        (SAMPLES, [0, 1, 1], "or None; got list."),
    ],
)
def test_arguments_are_refused(samples, labels, text):
    with pytest.raises(ValueError, match="must be") as caught:
        convergence(samples, labels)
    assert text in str(caught.value)


def test_batches_that_do_not_belong_together_are_refused():
    curve = Convergence()
    with pytest.raises(ValueError, match=r"no samples: update was never called with an input\."):
        curve.compute()
    curve.update(SAMPLES[:, :0])
    with pytest.raises(ValueError, match=r"no samples: update was never called with an input\."):
        curve.compute()
    curve.update(SAMPLES)
    with pytest.raises(ValueError, match="every batch must have") as caught:
        curve.update(SAMPLES[:2], torch.tensor([0, 1, 1]))
    assert str(caught.value) == (
        "every batch must have the passes, classes and labels of the first: T = 4, C = 2, without "
        "labels; got T = 2, C = 2, with labels. Predict all batches with one T, and give labels "
        "with every batch or with none."
    )
    assert curve.compute()[-1].n == 3
