"""Evaluations refuse what does not fit together; batches join to what one call gives."""

import dataclasses

import pytest
import torch

from bayes_dc.report import ReportError, join_predictions


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ids": ("a",)}, r"ids must have one entry per input, 60 here because .*\[60, 4\]; got 1"),
        ({"labels": torch.zeros(59)}, r"labels must have one entry per input.*got 59"),
        ({"mean_network": torch.zeros(3, 4)}, r"mean_network must have one entry.*got 3"),
        ({"class_names": tuple("abc")}, r"class_names must name the 4 classes.*got 3 names"),
        ({"class_names": tuple("abca")}, r"class_names must differ from each other; got 'a' twice"),
    ],
)
def test_what_does_not_fit_is_refused(evaluation, changes, text):
    with pytest.raises(ReportError, match=text):
        evaluation(**changes)


def test_no_samples_are_refused(evaluation):
    good = evaluation()
    empty = dataclasses.replace(good.prediction, mean=good.prediction.mean[:0])
    with pytest.raises(ReportError, match=r"no samples: there is nothing to report on"):
        dataclasses.replace(good, prediction=empty, ids=(), labels=None, mean_network=None)


def part(prediction, rows):
    """Rows of a prediction."""
    tensors = {
        field.name: getattr(prediction, field.name)[rows]
        for field in dataclasses.fields(prediction)
        if isinstance(getattr(prediction, field.name), torch.Tensor)
    }
    return dataclasses.replace(prediction, **tensors)


def test_joined_batches_are_the_whole(evaluation):
    whole = evaluation().prediction
    parts = [part(whole, slice(0, 7)), part(whole, slice(7, 59)), part(whole, slice(59, 60))]
    joined = join_predictions(parts)
    for field in dataclasses.fields(whole):
        want, got = getattr(whole, field.name), getattr(joined, field.name)
        if isinstance(want, torch.Tensor):
            assert torch.equal(got, want), field.name
        elif field.name != "elapsed_seconds":
            assert got == want
    assert joined.elapsed_seconds == 1.5


def test_runs_that_differ_are_not_joined(evaluation):
    one = evaluation().prediction
    with pytest.raises(ReportError, match=r"no predictions to join; predict at least one batch"):
        join_predictions([])
    for name, other in (("T", 9), ("seed", 4), ("p_effective", {"1": 0.25})):
        with pytest.raises(
            ReportError, match=rf"from one run; got {name} = .* Predict all batches"
        ):
            join_predictions([one, dataclasses.replace(one, **{name: other})])


def test_inputs_without_a_finite_prediction_are_known(broken):
    assert broken.usable.nonzero().flatten().tolist() == [i for i in range(60) if i not in (2, 5)]
