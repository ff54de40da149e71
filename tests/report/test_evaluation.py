"""Evaluations refuse what does not fit together; batches join to what one call gives."""

import dataclasses

import pytest
import torch

from bayes_dc.report import ReportError


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


def test_inputs_without_a_finite_prediction_are_known(broken):
    assert broken.usable.nonzero().flatten().tolist() == [i for i in range(60) if i not in (2, 5)]
