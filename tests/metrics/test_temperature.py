"""The temperature: recovered where it is known, compared with another search, refused in words."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from bayes_dc.metrics import fit_temperature


def passes(n=1000, T=8, classes=5, seed=0):
    """Logits [T, n, C] and labels drawn from the mean of their softmax: τ = 1 is right."""
    generator = torch.Generator().manual_seed(seed)
    base = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits = base + torch.randn(T, n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1).mean(0), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_a_known_temperature_is_found(factor):
    """Logits that are too large by a factor need it as their temperature."""
    logits, labels = passes()
    fit = fit_temperature((factor * logits).softmax(-1), labels)
    assert abs(fit.temperature - factor) < 4 * fit.standard_error
    assert (fit.kind, fit.n) == ("logits", 1000)
    once = fit_temperature(logits.softmax(-1), labels)
    # all factors meet the same optimum: the digits that the search promises
    assert fit.temperature == pytest.approx(factor * once.temperature, rel=1e-5)
    assert fit.nll_after == pytest.approx(once.nll_after, rel=1e-9)
    assert fit.nll_after <= fit.nll_before


@pytest.mark.parametrize("kind", ["logits", "mean"])
def test_another_search_finds_the_same(kind):
    logits, labels = passes(n=400)
    samples = (2.5 * logits).softmax(-1)
    fit = fit_temperature(samples, labels, kind)
    logs = np.log(samples.numpy() if kind == "logits" else samples.mean(0, keepdim=True).numpy())
    rows, y = np.arange(400), labels.numpy()

    def nll(u):
        own = log_softmax(logs / math.exp(u), axis=2)[:, rows, y]
        return -(logsumexp(own, axis=0) - math.log(len(logs))).mean()

    want = minimize_scalar(nll, bounds=(-2, 3), method="bounded", options={"xatol": 1e-9})
    assert math.log(fit.temperature) == pytest.approx(want.x, abs=2e-6)
    assert fit.nll_after == pytest.approx(want.fun, rel=1e-12)
    assert fit.nll_before == pytest.approx(nll(0.0), rel=1e-12)


def test_the_kinds_differ_where_passes_do_and_agree_for_one():
    logits, labels = passes()
    samples = (3 * logits).softmax(-1)
    many = [fit_temperature(samples, labels, kind).temperature for kind in ("logits", "mean")]
    assert many[0] > 1.2 * many[1]
    one = [fit_temperature(samples[:1], labels, kind).temperature for kind in ("logits", "mean")]
    assert one[0] == pytest.approx(one[1], rel=1e-12)


def test_the_standard_error_is_that_of_repeated_fits():
    fits = [
        fit_temperature((2 * z).softmax(-1), y)
        for z, y in (passes(500, 4, 3, s) for s in range(40))
    ]
    spread = np.std([fit.temperature for fit in fits], ddof=1)
    said = np.mean([fit.standard_error for fit in fits])
    # a deviation of 40 values is known to 1/√(2 · 39)
    assert abs(said / spread - 1) < 4 / math.sqrt(78)


def test_many_inputs_are_worked_through_in_parts(monkeypatch):
    from bayes_dc.metrics import temperature

    logits, labels = passes(n=300)
    want = fit_temperature(logits.softmax(-1), labels)
    monkeypatch.setattr(temperature, "_ELEMENTS", 1000)
    got = fit_temperature(logits.softmax(-1), labels)
    assert got.temperature == pytest.approx(want.temperature, rel=1e-5)  # the digits promised
    assert got.nll_after == pytest.approx(want.nll_after, rel=1e-12)


def test_zeros_are_probabilities():
    """A class that some passes exclude; every label is given something by some pass."""
    logits, labels = passes(n=500)
    logits[: len(logits) // 2, :, 0] = -torch.inf
    fit = fit_temperature(logits.softmax(-1), labels)
    assert all(map(math.isfinite, (fit.temperature, fit.nll_after, fit.standard_error)))


@pytest.mark.parametrize("kind", ["logits", "mean"])
def test_impossible_labels_are_named(kind):
    samples = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]])
    with pytest.raises(ValueError, match="NLL is infinite") as caught:
        fit_temperature(samples, torch.tensor([0, 1, 1]), kind)
    assert str(caught.value) == (
        "1 of 3 labels were given probability 0 (first: input 1), so the NLL is infinite at every "
        "temperature. Look at these inputs: a label may be wrong."
    )


def test_inputs_that_say_too_little_are_refused():
    """Without a mistake the surest prediction is best; without a hit the least sure."""
    samples = torch.tensor([[[0.8, 0.2]] * 40])
    with pytest.raises(ValueError, match="falls down") as caught:
        fit_temperature(samples, torch.zeros(40, dtype=torch.int64))
    assert str(caught.value) == (
        "the NLL of these 40 inputs falls down to the least temperature, 0.05: 0 of them are "
        "wrong, too few to say how sure the network may be. Fit on more inputs, or use no "
        "temperature."
    )
    with pytest.raises(ValueError, match="falls up") as caught:
        fit_temperature(samples, torch.ones(40, dtype=torch.int64))
    assert str(caught.value) == (
        "the NLL of these 40 inputs falls up to the largest temperature, 20.0: the predictions say "
        "nothing about the labels. Check that labels and inputs belong together."
    )


def test_arguments_are_refused():
    samples, labels = torch.full((2, 3, 4), 0.25), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"kind must be one of \('logits', 'mean'\); got 'max'\."):
        fit_temperature(samples, labels, "max")
    with pytest.raises(ValueError, match=r"samples must have shape \[T, B, C\]; got \[3, 4\]"):
        fit_temperature(samples[0], labels)
    with pytest.raises(ValueError, match="labels must have shape"):
        fit_temperature(samples, labels[:2])


def test_a_single_input_and_flat_predictions_are_refused():
    with pytest.raises(ValueError, match="at least 2 inputs, to say how well it is known; got 1"):
        fit_temperature(torch.full((2, 1, 4), 0.25), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="every pass gives all classes the same probability"):
        fit_temperature(torch.full((2, 3, 4), 0.25), torch.zeros(3, dtype=torch.int64))
