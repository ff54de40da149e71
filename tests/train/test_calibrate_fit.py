"""What is fitted on which validation inputs, that the promise holds, and every refusal."""

import dataclasses
import math

import pytest
import torch

from bayes_dc import Prediction
from bayes_dc import metrics as m
from bayes_dc.mc import temper
from bayes_dc.mc.statistics import PassStatistics
from bayes_dc.metrics import PolicyError, fit_temperature
from bayes_dc.train import calibrate, policy_scores
from bayes_dc.train.calibrate import HALVES_SEED

N, T, C = 600, 8, 4


def predicted(samples, seed=3):
    """A prediction with these passes [T, B, C]."""
    statistics = PassStatistics(*samples.shape, torch.device("cpu"))
    statistics.update(samples.contiguous())
    rest = {"T": len(samples), "seed": seed, "p_effective": {}, "elapsed_seconds": 0.0}
    return Prediction(*statistics.summary(), samples=samples, **rest)


@pytest.fixture(scope="module")
def data():
    """A prediction that is twice as sure as it should be, and labels."""
    generator = torch.Generator().manual_seed(0)
    base = 3 * torch.randn(N, C, generator=generator, dtype=torch.float64)
    logits = base + torch.randn(T, N, C, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1).mean(0), 1, generator=generator)[:, 0]
    return predicted((2 * logits).softmax(-1)), labels


@pytest.mark.parametrize("kind", ["logits", "mean"])
def test_a_temperature_alone_sees_every_input(data, kind):
    prediction, labels = data
    state = calibrate(prediction, labels, temperature=kind)
    want = fit_temperature(prediction.samples, labels, kind)
    assert state.temperature == pytest.approx(want.temperature, rel=1e-5)
    assert (state.kind, state.fitted.n, state.policy) == (kind, N, None)
    assert (state.T, state.seed, state.notes) == (T, 3, ())
    tempered = state.temper(prediction)
    assert m.nll(tempered.mean, labels) < m.nll(prediction.mean, labels)
    assert torch.equal(tempered.mean, temper(prediction, state.temperature, kind).mean)


@pytest.mark.parametrize("score", ["entropy", "mutual_information", "max_probability"])
def test_a_policy_alone_sees_every_input_as_predicted(data, score):
    prediction, labels = data
    state = calibrate(prediction, labels, temperature="none", target_coverage=0.8, score=score)
    assert (state.temperature, state.kind, state.fitted) == (1.0, "none", None)
    assert state.temper(prediction) is prediction
    uncertainty = policy_scores(prediction, score)
    wrong = prediction.predicted != labels
    want = m.policy_for_coverage(uncertainty, wrong, 0.8, score=score)
    assert state.policy == want
    assert int(want.accepts(uncertainty).sum()) == want.accepted


def test_scores_by_name(data):
    prediction, _ = data
    assert torch.equal(policy_scores(prediction, "entropy"), prediction.entropy)
    assert torch.equal(
        policy_scores(prediction, "mutual_information"), prediction.mutual_information
    )
    top = prediction.mean.amax(dim=1)
    assert torch.equal(policy_scores(prediction, "max_probability"), 1 - top)


def test_both_get_a_half_each(data):
    """Labels of one half change nothing of what is fitted on the other."""
    prediction, labels = data
    state = calibrate(prediction, labels, target_risk=0.3, confidence=0.9)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(HALVES_SEED))
    first, second = order[: N // 2], order[N // 2 :]
    fit = fit_temperature(prediction.samples[:, first], labels[first])
    assert state.temperature == fit.temperature
    tempered = temper(prediction, fit.temperature, "logits")
    uncertainty = policy_scores(tempered, "max_probability")[second]
    wrong = (tempered.predicted != labels)[second]
    options = {"score": "max_probability", "confidence": 0.9}
    assert state.policy == m.policy_for_risk(uncertainty, wrong, 0.3, **options)
    assert (state.fitted.n, state.policy.n) == (N // 2, N // 2)
    changed = labels.clone()
    changed[second] = (changed[second] + 1) % C
    coverage = [calibrate(prediction, y, target_coverage=0.5) for y in (labels, changed)]
    assert coverage[0].temperature == coverage[1].temperature
    assert coverage[0].policy.threshold == coverage[1].policy.threshold


def test_the_promise_holds_as_often_as_is_said():
    """Temperature and threshold together, on new inputs of the same kind."""
    runs, confidence, target, failures = 40, 0.8, 0.35, 0
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        base = 2 * torch.randn(4400, 3, generator=generator, dtype=torch.float64)
        labels = torch.multinomial(base.softmax(-1), 1, generator=generator)[:, 0]
        prediction = predicted((2 * base).softmax(-1)[None])
        few, many = torch.arange(400), torch.arange(400, 4400)
        own = predicted(prediction.samples[:, few])
        state = calibrate(own, labels[few], target_risk=target, confidence=confidence)
        tempered = state.temper(prediction)
        wrong = (tempered.predicted != labels)[many]
        outcome = state.policy.outcome(policy_scores(tempered, "max_probability")[many], wrong)
        failures += outcome.risk > target
    assert failures <= (1 - confidence) * runs + 3 * math.sqrt(0.16 * runs)


def test_a_network_without_masks_is_one_pass(data):
    """Both kinds are the same; there are no samples to ask for."""
    prediction, labels = data
    plain = dataclasses.replace(prediction, samples=None, T=1)
    temperatures = [calibrate(plain, labels, temperature=k).temperature for k in ("logits", "mean")]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-12)


def test_a_temperature_that_says_nothing_is_noted():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1, 60, C, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits[0].softmax(-1), 1, generator=generator)[:, 0]
    state = calibrate(predicted(logits.softmax(-1)), labels)
    fit = state.fitted
    assert abs(fit.value - 1) < 2 * fit.standard_error
    assert state.notes == (
        f"The temperature {fit.value:.3f} cannot be told from 1 on 60 inputs (standard error "
        f"{fit.standard_error:.3f}): a larger validation split would show whether one is needed.",
    )


def test_what_cannot_be_fitted_is_refused(data):
    prediction, labels = data
    with pytest.raises(ValueError, match="nothing to calibrate: temperature is 'none' and neither"):
        calibrate(prediction, labels, temperature="none")
    with pytest.raises(ValueError, match=r"a policy has one target; got risk 0.1 and coverage 0.9"):
        calibrate(prediction, labels, target_risk=0.1, target_coverage=0.9)
    with pytest.raises(ValueError, match=r"kind must be one of \('logits', 'mean'\); got 'max'"):
        calibrate(prediction, labels, temperature="max")
    three = predicted(prediction.samples[:, :3])
    with pytest.raises(ValueError, match="3 validation inputs cannot be shared between a temper"):
        calibrate(three, labels[:3], target_risk=0.1)
    mean = prediction.mean.clone()
    mean[5, 1] = torch.nan
    with pytest.raises(ValueError, match="have no finite prediction") as caught:
        calibrate(dataclasses.replace(prediction, mean=mean), labels)
    assert str(caught.value) == (
        "1 of 600 validation inputs have no finite prediction (first: position 5), so nothing can "
        "be promised. Look for NaN or extreme values in these inputs, or train again."
    )


def test_a_refused_target_says_what_halves_cost(data):
    prediction, labels = data
    with pytest.raises(PolicyError, match="300 calibration inputs are too few") as caught:
        calibrate(prediction, labels, target_risk=0.001)
    assert str(caught.value).endswith(
        "(This is a half of the validation split, the other fits the temperature: with temperature "
        "'none' the policy gets all 600.)"
    )
    with pytest.raises(PolicyError, match="600 calibration inputs are too few") as caught:
        calibrate(prediction, labels, temperature="none", target_risk=0.001)
    assert "half" not in str(caught.value)


def test_labels_of_other_inputs_are_refused(data):
    """Too few of them would be taken for those of the first inputs."""
    prediction, labels = data
    with pytest.raises(ValueError, match=r"labels must be int64 \[600\], one for each input of th"):
        calibrate(prediction, labels[:-1])
