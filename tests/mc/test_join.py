"""Batches join to what one call gives."""

import dataclasses

import pytest
import torch
from torch import nn

import bayes_dc
from bayes_dc.mc import join_predictions, predict_with_uncertainty


@pytest.fixture(scope="module")
def whole():
    """A prediction of 60 inputs, with samples."""
    model = nn.Sequential(nn.Linear(5, 4))
    bayes_dc.convert(model, p=0.5)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    return predict_with_uncertainty(model, x, 4, return_samples=True)


def part(prediction, rows):
    """Rows of a prediction."""
    tensors = {
        field.name: getattr(prediction, field.name)[rows]
        for field in dataclasses.fields(prediction)
        if isinstance(getattr(prediction, field.name), torch.Tensor) and field.name != "samples"
    }
    return dataclasses.replace(prediction, **tensors, samples=prediction.samples[:, rows])


def test_joined_batches_are_the_whole(whole):
    parts = [part(whole, slice(0, 7)), part(whole, slice(7, 59)), part(whole, slice(59, 60))]
    joined = join_predictions(parts)
    for field in dataclasses.fields(whole):
        want, got = getattr(whole, field.name), getattr(joined, field.name)
        if isinstance(want, torch.Tensor):
            assert torch.equal(got, want), field.name
        elif field.name != "elapsed_seconds":
            assert got == want
    assert joined.elapsed_seconds == 3 * whole.elapsed_seconds
    without = [dataclasses.replace(one, samples=None) for one in parts]
    assert join_predictions(without).samples is None


def test_runs_that_differ_are_not_joined(whole):
    with pytest.raises(ValueError, match=r"no predictions to join; predict at least one batch"):
        join_predictions([])
    changes = (("T", 9), ("seed", 4), ("p_effective", {"1": 0.25}), ("dropout", {"1": 0.5}))
    for name, other in changes:
        with pytest.raises(ValueError, match=rf"from one run; got {name} = .* Predict all batches"):
            join_predictions([whole, dataclasses.replace(whole, **{name: other})])


def test_samples_of_some_batches_are_refused(whole):
    text = r"must all hold samples or none; got 1 of 2 with samples"
    with pytest.raises(ValueError, match=text):
        join_predictions([whole, dataclasses.replace(whole, samples=None)])
