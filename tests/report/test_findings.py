"""Sentences say what the intervals allow, and nothing more."""

import dataclasses

import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.report import FEWEST
from bayes_dc.report.cautions import cautions
from bayes_dc.report.derived import Derived
from bayes_dc.report.findings import findings
from bayes_dc.report.tables import review_rows


def sentences(ev):
    summary = findings(ev, Derived(ev))
    texts = [*summary.knows, *summary.doubts, *summary.actions]
    return " ".join(texts).replace("\u00a0", " ")


def with_confidence(evaluation, confidence, hits, n=200):
    """Two classes, class 0 predicted with this confidence, right for the first ``hits``."""
    ev = evaluation(n=n, classes=2)
    mean = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(n, 2)
    prediction = dataclasses.replace(ev.prediction, mean=mean)
    labels = (torch.arange(n) >= hits).long()
    return dataclasses.replace(ev, prediction=prediction, labels=labels, mean_network=mean)


def test_overconfidence_is_claimed_only_beyond_doubt(evaluation):
    text = sentences(with_confidence(evaluation, 0.95, 160))
    assert "overconfident: its confidence is on average 15.00 percentage points above" in text
    text = sentences(with_confidence(evaluation, 0.6, 190))
    assert "underconfident: its confidence is on average 35.00 percentage points below" in text
    text = sentences(with_confidence(evaluation, 0.8, 161))
    assert "its confidence agrees with its accuracy" in text
    assert "overconfident" not in text


def test_monte_carlo_is_called_better_only_beyond_doubt(evaluation):
    ev = with_confidence(evaluation, 0.8, 160)
    worse = torch.tensor([[0.99, 0.01]], dtype=torch.float64).expand(200, 2)
    text = sentences(dataclasses.replace(ev, mean_network=worse))
    assert "8 passes give better probabilities than the mean-weight network" in text
    swapped = dataclasses.replace(
        ev,
        prediction=dataclasses.replace(ev.prediction, mean=worse),
        mean_network=ev.prediction.mean,
    )
    assert "8 passes give worse probabilities than the mean-weight network" in sentences(swapped)
    assert "These inputs show no difference in NLL between 8 passes and" in sentences(ev)
    alone = dataclasses.replace(ev, mean_network=None)
    assert "mean-weight network" not in sentences(alone)


def test_accuracy_and_review_are_told_in_numbers(evaluation):
    ev = evaluation(n=100)
    row = review_rows(ev)[2]
    text = sentences(ev)
    right = (ev.prediction.predicted == ev.labels).double().mean().item()
    assert f"The prediction is right for {right:.2%} of 100 inputs".replace("%", " %") in text
    want = (
        f"the 10 most uncertain inputs (10 %) by hand finds {row.mistakes_found} of {row.mistakes}"
    )
    assert want in text


def test_without_labels_only_the_split_is_told(evaluation):
    ev = evaluation(labelled=False)
    own = ev.prediction.mutual_information.mean() / ev.prediction.entropy.mean()
    summary = findings(ev, Derived(ev))
    assert summary.knows == summary.actions == []
    assert len(summary.doubts) == 1
    assert summary.doubts[0].startswith(
        f"{100 * own.item():.0f}\u00a0% of the uncertainty is attributed"
    )


def test_what_was_never_seen_may_still_come(evaluation):
    """Without a mistake among the inputs a bootstrap has no mistakes to draw."""
    text = sentences(with_confidence(evaluation, 0.99, 200))
    low, high = m.binomial_interval(200, 200)
    assert f"expect {low:.2%} to {high:.2%} (exact binomial, 95 %)".replace("%", " %", 2) in text
    assert "its confidence agrees with its accuracy" in text
    # 0.5 is out of reach of 200 of 200
    assert "It is underconfident" in sentences(with_confidence(evaluation, 0.6, 200))
    assert "It is overconfident" in sentences(with_confidence(evaluation, 0.6, 0))


@pytest.mark.parametrize("n", [1, FEWEST - 1])
def test_nothing_is_claimed_of_few_inputs(evaluation, n):
    worse = torch.tensor([[0.99, 0.01]], dtype=torch.float64).expand(n, 2)
    ev = with_confidence(evaluation, 0.6, n, n=n)
    text = sentences(dataclasses.replace(ev, mean_network=worse))
    assert f"is right for 100.00 % of {n} input{'s' if n > 1 else ''}; on other" in text
    assert "confident: its" not in text
    assert "better" not in text
    assert "worse" not in text
    said = f"Few inputs ({n}): their intervals are too narrow, and have no width where all inputs"
    assert any(said in one and f"fewer than {FEWEST}." in one for one in cautions(ev))
    enough = with_confidence(evaluation, 0.6, FEWEST, n=FEWEST)
    assert not any("Few inputs" in one for one in cautions(enough))
