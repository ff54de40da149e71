"""Evaluations refuse what does not fit together; batches join to what one call gives."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayes_dc.report import Cost, ReportError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ids": ("a",)}, r"ids must have one entry per input, 60 here because .*\[60, 4\]; got 1"),
        ({"labels": torch.zeros(59)}, r"labels must have one entry per input.*got 59"),
        ({"mean_network": torch.zeros(3, 4)}, r"mean_network must have one entry.*got 3"),
        ({"class_names": tuple("abc")}, r"class_names must name the 4 classes.*got 3 names"),
        ({"class_names": tuple("abca")}, r"class_names must differ from each other; got 'a' twice"),
        (
            {"class_names": range(4)},
            r"class_names must be texts; got 0 \(int\)\. Pass \[str\(one\)",
        ),
        (
            {"ids": range(60)},
            r"ids must be texts; got 0 \(int\)\. Pass \[str\(one\) for one in ids",
        ),
        (
            {"labels": [0] * 60},
            r"labels must be a torch.Tensor; got list. Wrap it: torch.as_tensor",
        ),
        ({"energy": [0.0] * 60}, r"energy must be a torch.Tensor; got list"),
        ({"image": lambda i: np.zeros((4, 4), np.uint8)}, r"image must give .*gave uint8 \[4, 4\]"),
        ({"image": lambda i: np.zeros((4, 4, 1))}, r"first input it gave float64 \[4, 4, 1\]"),
        ({"image": lambda i: torch.zeros(4, 4, 3)}, r"for the first input it gave Tensor"),
        (
            {"data": {"root": Path("a")}},
            r"data must hold what JSON can: .*object of type PosixPath",
        ),
        ({"run": {"x": math.nan}}, r"run must hold what JSON can: .*finite numbers.*str\(path\)"),
    ],
)
def test_what_does_not_fit_is_refused(evaluation, changes, text):
    with pytest.raises(ReportError, match=text):
        evaluation(**changes)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_what_is_no_time_is_refused(seconds):
    with pytest.raises(ReportError, match=rf"finite number of at least 0; got {seconds}\."):
        Cost(seconds, None, "made up")


def test_pictures_of_other_inputs_are_looked_at(full):
    odd = dataclasses.replace(full.ood[0], image=lambda i: np.zeros((2, 2)))
    with pytest.raises(ReportError, match=r"image of letters must give uint8 .*float64 \[2, 2\]"):
        dataclasses.replace(full, ood=[odd])


def test_no_samples_are_refused(evaluation):
    good = evaluation()
    empty = dataclasses.replace(good.prediction, mean=good.prediction.mean[:0])
    with pytest.raises(ReportError, match=r"no samples: there is nothing to report on"):
        dataclasses.replace(good, prediction=empty, ids=(), labels=None, mean_network=None)


def test_inputs_without_a_finite_prediction_are_known(broken):
    assert broken.usable.nonzero().flatten().tolist() == [i for i in range(60) if i not in (2, 5)]
