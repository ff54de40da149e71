"""Predictions batch by batch, what watches and adjusts them, and plain networks."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import bayes_dc
from bayes_dc import predict_with_uncertainty
from bayes_dc.mc import temper
from bayes_dc.train import CheckpointError, Inputs, outputs, predict_inputs

CPU = torch.device("cpu")
N, K, C, T = 11, 4, 3, 5
OPTIONS = {"T": T, "seed": 3, "batch_size": 4, "device": CPU}


@pytest.fixture(scope="module")
def x():
    return torch.randn(N, K, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def inputs(x):
    return Inputs(
        ids=tuple(map(str, range(N))),
        labels=None,
        batch=lambda positions, device: x[positions].to(device),
        image=lambda i: np.zeros((2, 2, 1), np.uint8),
        describe={},
        from_pixels=lambda pixels, device: torch.zeros(len(pixels), K),
    )


@pytest.fixture
def model():
    network = nn.Sequential(nn.Linear(K, C))
    with torch.no_grad():
        network[0].weight.copy_(torch.linspace(-1, 1, C * K).reshape(C, K))
    bayes_dc.convert(network, p=0.5)
    return network


def test_batches_give_what_one_call_gives(model, inputs, x):
    found = predict_inputs(model, inputs, **OPTIONS, keep_samples=True)
    whole = predict_with_uncertainty(model, x, T, seed=3, return_samples=True)
    assert torch.equal(found.prediction.samples, whole.samples)
    assert torch.equal(found.prediction.entropy, whole.entropy)
    with torch.no_grad():
        logits = model.eval()(x).double()
    assert torch.equal(found.mean_network, logits.softmax(1))
    assert torch.equal(found.energy, -logits.logsumexp(1))
    assert found.nonfinite == ()
    assert found.seconds > 0
    assert predict_inputs(model, inputs, **OPTIONS).prediction.samples is None


def test_predictions_are_adjusted_and_watched(model, inputs, x):
    seen = []
    found = predict_inputs(
        model,
        inputs,
        **OPTIONS,
        adjust=lambda part: temper(part, 2.0, "logits"),
        watch=lambda part, positions: seen.append((part.samples, positions)),
    )
    whole = temper(
        predict_with_uncertainty(model, x, T, seed=3, return_samples=True), 2.0, "logits"
    )
    assert torch.equal(found.prediction.mean, whole.mean)
    assert found.prediction.samples is None
    assert torch.equal(torch.cat([samples for samples, _ in seen], dim=1), whole.samples)
    assert torch.cat([positions for _, positions in seen]).tolist() == list(range(N))


def test_only_the_first_inputs_need_be_watched(model, inputs):
    asked, seen = [], []

    def predict(*arguments, return_samples, **options):
        asked.append(return_samples)
        return predict_with_uncertainty(*arguments, return_samples=return_samples, **options)

    def watch(part, positions):
        assert part.samples is not None
        seen.append(positions.tolist())

    predict_inputs(model, inputs, **OPTIONS, watch=watch, watched=5, predict=predict)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert asked == [True, True, False]


def test_a_plain_network_is_one_certain_pass(inputs, x):
    plain = nn.Sequential(nn.Linear(K, C))
    found = predict_inputs(plain, inputs, **OPTIONS, plain=True)
    prediction = found.prediction
    assert torch.equal(prediction.mean, found.mean_network)
    assert torch.equal(prediction.entropy, prediction.expected_entropy)
    assert prediction.T == 1
    for name in ("variance", "mutual_information", "mean_se"):
        assert not getattr(prediction, name).any(), name
    want = bayes_dc.metrics.entropy(found.mean_network)
    assert torch.allclose(prediction.entropy, want, rtol=1e-15, atol=0)


def test_a_plain_network_can_be_tempered(inputs, x):
    plain = nn.Sequential(nn.Linear(K, C))
    found = predict_inputs(
        plain, inputs, **OPTIONS, plain=True, adjust=lambda part: temper(part, 3.0, "logits")
    )
    with torch.no_grad():
        want = (plain(x).double() / 3).softmax(1)
    assert torch.allclose(found.prediction.mean, want, rtol=1e-14, atol=0)
    assert found.prediction.samples is None


def test_another_engine_may_predict(model, inputs):
    calls = []

    def predict(*arguments, **options):
        calls.append(options["seed"])
        return predict_with_uncertainty(*arguments, **options)

    predict_inputs(model, inputs, **OPTIONS, predict=predict)
    assert calls == [3, 3, 3]


def test_inputs_that_are_not_finite_are_known(model, inputs, x):
    broken = x.clone()
    broken[6, 1] = torch.nan
    bad = dataclasses.replace(inputs, batch=lambda positions, device: broken[positions])
    with pytest.warns(UserWarning, match="NaN"):
        assert predict_inputs(model, bad, **OPTIONS).nonfinite == (6,)


def test_a_network_that_cannot_be_predicted_with_is_refused(inputs):
    with pytest.raises(CheckpointError, match="the checkpoint cannot be predicted with: "):
        predict_inputs(nn.Sequential(nn.Linear(K, C)), inputs, **OPTIONS)


def test_the_clock_does_not_count_what_only_a_first_call_does(model, inputs, monkeypatch):
    clock, calls = [0.0], []

    def run(model, x, T, **options):
        clock[0] += 1 if calls else 100  # seconds
        calls.append(len(x))
        return predict_with_uncertainty(model, x, T, **options)

    monkeypatch.setattr(outputs, "predict_with_uncertainty", run)
    monkeypatch.setattr(outputs, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    found = predict_inputs(model, inputs, **OPTIONS)
    assert calls[0] == 1
    assert sum(calls[1:]) == len(inputs)
    assert found.seconds == len(calls) - 1
