"""Which inputs are shown, in which order."""

import dataclasses

import torch

from bayes_dc.report.ranking import (
    CONFIDENT_MISTAKES,
    DISAGREEMENT,
    NO_NUMBER,
    least_certain,
    look_first,
    most_certain,
)


def test_certain_and_uncertain_are_the_ends_of_the_entropy_order(evaluation):
    ev = evaluation()
    order = sorted(range(60), key=lambda i: ev.prediction.entropy[i].item())
    assert most_certain(ev) == order[:16]
    assert least_certain(ev) == order[::-1][:16]
    assert most_certain(evaluation(n=3)) != []
    assert len(least_certain(evaluation(n=3))) == 3


def test_equal_inputs_keep_their_order(evaluation):
    ev = evaluation(n=6)
    equal = dataclasses.replace(ev.prediction, entropy=torch.ones(6, dtype=torch.float64))
    ev = dataclasses.replace(ev, prediction=equal)
    assert most_certain(ev) == least_certain(ev) == [0, 1, 2, 3, 4, 5]


def test_look_first_groups(broken):
    groups = {group.title: group for group in look_first(broken, count=5)}
    assert list(groups) == [NO_NUMBER, CONFIDENT_MISTAKES, DISAGREEMENT]
    assert groups[NO_NUMBER].indices == [2, 5]
    wrong = [
        i
        for i in range(60)
        if i not in (2, 5) and broken.prediction.predicted[i] != broken.labels[i]
    ]
    wrong.sort(key=lambda i: -broken.prediction.confidence[i].item())
    assert groups[CONFIDENT_MISTAKES].indices == wrong[:5]
    assert groups[CONFIDENT_MISTAKES].total == len(wrong)
    usable = [i for i in range(60) if i not in (2, 5)]
    usable.sort(key=lambda i: -broken.prediction.mutual_information[i].item())
    assert groups[DISAGREEMENT].indices == usable[:5]
    assert groups[DISAGREEMENT].total == len(groups[DISAGREEMENT].indices) == 5


def test_groups_without_inputs_are_left_out(evaluation):
    assert [g.title for g in look_first(evaluation(labelled=False))] == [DISAGREEMENT]
    ev = evaluation()
    right = dataclasses.replace(
        ev.prediction, mutual_information=torch.zeros(60, dtype=torch.float64)
    )
    ev = dataclasses.replace(ev, prediction=right, labels=ev.prediction.predicted)
    assert look_first(ev) == []


def test_inputs_without_a_prediction_are_in_no_ranking(broken):
    assert not {2, 5} & set(most_certain(broken, 60))
    assert not {2, 5} & set(least_certain(broken, 60))
