"""T="auto": the result of a fixed T to the bit, the standard error reached, and every refusal."""

import dataclasses
import inspect
import warnings

import pytest
import torch
from torch import Tensor, nn

from bayes_dc import Prediction, convert, predict_with_uncertainty
from bayes_dc.mc.until import FIRST_LOOK
from bayes_dc.models import mlp

K, C = 12, 4


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = mlp(K, C, hidden=(16, 8))
    convert(network, 0.5)
    return network


@pytest.fixture(scope="module")
def x():
    return 2 * torch.randn(9, K, generator=torch.Generator().manual_seed(1))


def of_inputs(prediction, of):
    """The standard error of every input that ``of`` names."""
    if of == "mean":
        return prediction.mean_se.amax(dim=1)
    return getattr(prediction, f"{of}_se")


@pytest.mark.parametrize("of", ["mean", "entropy", "mutual_information"])
@pytest.mark.parametrize("goal", [0.05, 0.025])
def test_it_is_the_prediction_of_that_many_passes(model, x, of, goal):
    options = {"seed": 5, "return_samples": True, "sample_ids": torch.arange(40, 49)}
    got = predict_with_uncertainty(
        model, x, "auto", standard_error=goal, standard_error_of=of, **options
    )
    want = predict_with_uncertainty(model, x, got.T, **options)
    for field in dataclasses.fields(Prediction):
        value = getattr(got, field.name)
        if isinstance(value, Tensor):
            assert torch.equal(value, getattr(want, field.name)), field.name
    assert got.samples.shape == (got.T, 9, C)
    assert of_inputs(got, of).max() <= goal
    assert got.T >= FIRST_LOOK


def test_it_stops_soon_after_it_may(model, x):
    """Standard errors fall as 1/√T: a look at least every quarter more of the passes."""
    got = predict_with_uncertainty(model, x, "auto", standard_error=0.02)
    before = predict_with_uncertainty(model, x, int(got.T / 1.5))
    assert before.mean_se.max() > 0.02


def test_chunks_do_not_change_where_it_stops(model, x):
    want = predict_with_uncertainty(model, x, "auto", standard_error=0.03)
    for chunk in (1, 7, 64):
        got = predict_with_uncertainty(model, x, "auto", standard_error=0.03, chunk=chunk)
        assert got.T == want.T
        assert torch.equal(got.mean, want.mean)


def test_a_share_of_the_inputs_is_asked_for(model, x):
    """8 of 9: the one that is hardest to know may stay above."""
    options = {"standard_error": 0.01, "standard_error_of": "entropy"}
    every = predict_with_uncertainty(model, x, "auto", **options)
    most = predict_with_uncertainty(model, x, "auto", standard_error_share=8 / 9, **options)
    assert most.T < every.T
    reached = most.entropy_se <= 0.01
    assert int(reached.sum()) == 8
    first = predict_with_uncertainty(model, x, "auto", standard_error_share=1e-9, **options)
    assert FIRST_LOOK <= first.T < most.T


def test_easy_and_empty_batches_take_the_first_look_only(model, x):
    assert predict_with_uncertainty(model, x, "auto", standard_error=0.9).T == FIRST_LOOK
    assert predict_with_uncertainty(model, x[:0], "auto", standard_error=1e-9).T == FIRST_LOOK


def test_inputs_without_numbers_are_not_waited_for(model, x):
    broken = x.clone()
    broken[3, 0] = torch.nan
    with pytest.warns(UserWarning, match="1 of 9 inputs hold NaN"):
        got = predict_with_uncertainty(model, broken, "auto", standard_error=0.05)
    rest = torch.arange(9) != 3
    assert got.mean_se[rest].max() <= 0.05
    with pytest.warns(UserWarning, match="1 of 1 inputs hold NaN"):
        assert predict_with_uncertainty(model, broken[3:4], "auto", standard_error=0.05).T == 20


def test_dropout_models_too(x):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(K, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, C))
    got = predict_with_uncertainty(model, x, "auto", standard_error=0.02)
    assert torch.equal(got.mean, predict_with_uncertainty(model, x, got.T).mean)


def test_what_was_not_reached_is_said(model, x):
    with pytest.warns(UserWarning, match="did not bring") as told:
        got = predict_with_uncertainty(model, x, "auto", standard_error=1e-4, T_max=30)
    assert got.T == 30
    errors = got.mean_se.amax(dim=1)
    need = int(torch.ceil(30 * (errors.max() / 1e-4) ** 2))
    assert str(told[0].message) == (
        "T_max = 30 passes did not bring the standard error (mean) to 0.0001 in 100 % of the "
        f"inputs: 9 of 9 are above it, the largest is {errors.max():.3g}. It would take about "
        f"{need} passes: raise T_max or standard_error, or lower standard_error_share."
    )
    assert told[0].filename == __file__
    # reached exactly at the end: nothing to say
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        goal = errors.max().item()
        assert predict_with_uncertainty(model, x, "auto", standard_error=goal, T_max=30).T == 30


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "T='auto' needs standard_error, the Monte Carlo standard error to reach, a number "),
        ({"standard_error": 0}, "such as 0.005; got 0. Or pass a number of passes as T."),
        ({"standard_error": True}, "such as 0.005; got True. Or pass"),
        ({"standard_error": float("inf")}, "such as 0.005; got inf. Or pass"),
        (
            {"standard_error": 0.1, "standard_error_of": "nll"},
            "standard_error_of must be one of ('mean', 'entropy', 'mutual_information'); got 'nll'",
        ),
        (
            {"standard_error": 0.1, "standard_error_share": 95},
            "standard_error_share must be a number above 0 and at most 1, the share of inputs that "
            "must reach standard_error; got 95.",
        ),
        ({"standard_error": 0.1, "T_max": 0}, "T_max must be an integer of at least 1; got 0."),
        (
            {"standard_error": 0.1, "T_max": 19},
            "T_max must be at least 20, the groups of passes that standard errors are estimated "
            "from; got 19. Pass a number of passes as T to run fewer.",
        ),
    ],
)
def test_arguments_are_refused(model, x, options, text):
    with pytest.raises(ValueError, match=r"must|needs") as caught:
        predict_with_uncertainty(model, x, "auto", **options)
    assert text in str(caught.value)


def test_a_standard_error_needs_auto(model, x):
    with pytest.raises(ValueError, match="is read with T='auto' only") as caught:
        predict_with_uncertainty(model, x, 50, standard_error=0.01)
    assert str(caught.value) == (
        "standard_error=0.01 is read with T='auto' only; T is 50. Leave one of them out."
    )
    with pytest.raises(ValueError, match="T must be an integer of at least 1; got 'many'"):
        predict_with_uncertainty(model, x, "many")


@pytest.mark.parametrize(
    ("name", "value"),
    [("standard_error_of", "entropy"), ("standard_error_share", 0.5), ("T_max", 5)],
)
def test_what_only_auto_reads_is_refused_elsewhere(model, x, name, value):
    text = f"{name}={value!r} is read with T='auto' only; T is 50. Leave one of them out."
    with pytest.raises(ValueError, match="is read with T='auto' only") as caught:
        predict_with_uncertainty(model, x, 50, **{name: value})
    assert str(caught.value) == text
    parameters = inspect.signature(predict_with_uncertainty).parameters
    default = parameters[name].default
    assert predict_with_uncertainty(model, x, 3, **{name: default}).T == 3
