"""Metric rows, review table and reliability curve against the metrics themselves."""

import dataclasses
import math

import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.report.tables import infinite_nll_count, metric_rows, reliability, review_rows

LABELLED = ["accuracy", "nll", "brier", "ece", "overconfidence", "adaptive_ece", "classwise_ece"]
LABELLED += ["brier_reliability", "brier_resolution"]
LABELLED += ["aurc", "excess_aurc", "risk_at_90", "coverage_at_1"]
UNLABELLED = ["entropy", "expected_entropy", "mutual_information"]


def test_rows_hold_the_metrics_of_both_networks(evaluation):
    ev = evaluation()
    rows = {row.key: row for row in metric_rows(ev)}
    assert list(rows) == LABELLED + UNLABELLED
    functions = {"accuracy": m.accuracy, "nll": m.nll, "brier": m.brier, "ece": m.ece}
    functions |= {"adaptive_ece": m.adaptive_ece, "classwise_ece": m.classwise_ece}
    functions |= {"brier_reliability": m.brier_reliability, "brier_resolution": m.brier_resolution}
    for key, function in functions.items():
        ours = function(ev.prediction.mean, ev.labels).item()
        theirs = function(ev.mean_network, ev.labels).item()
        assert rows[key].monte_carlo.value == ours
        assert rows[key].mean_network.value == theirs
    selective = {"aurc": (m.aurc, {}), "excess_aurc": (m.excess_aurc, {})}
    selective["risk_at_90"] = (m.risk_at_coverage, {"coverage": 0.9})
    selective["coverage_at_1"] = (m.coverage_at_risk, {"risk": 0.01})
    wrong = ~m.correct(ev.prediction.mean, ev.labels)
    for key, (function, options) in selective.items():
        want = function(m.entropy(ev.prediction.mean), wrong, **options).item()
        assert rows[key].monte_carlo.value == want
    gap = ev.prediction.confidence.mean() - m.accuracy(ev.prediction.mean, ev.labels)
    # Two ways to add 60 float64 numbers below 1.
    assert rows["overconfidence"].monte_carlo.value == pytest.approx(gap.item(), abs=60 * 2.0**-53)
    for key in UNLABELLED:
        assert rows[key].monte_carlo.value == getattr(ev.prediction, key).mean().item()
    assert rows["entropy"].mean_network.value == m.entropy(ev.mean_network).mean().item()
    assert rows["mutual_information"].mean_network is None


def test_every_row_says_what_it_is(evaluation):
    for row in metric_rows(evaluation()):
        assert row.n == 60
        assert row.definition.endswith(".")
        assert row.direction in {"higher", "lower", "zero", "none"}
        low, high = row.range.replace("−", "-").split(" … ")
        assert float(low) <= row.monte_carlo.value <= float(high.replace("∞", "inf"))
        assert row.monte_carlo.interval.low <= row.monte_carlo.interval.high
        assert (row.monte_carlo.interval.level, row.monte_carlo.interval.resamples) == (0.95, 1000)


def test_intervals_are_the_bootstrap_of_the_metric(evaluation):
    ev = evaluation()
    rows = {row.key: row for row in metric_rows(ev)}
    nll = m.nll_per_sample(ev.prediction.mean, ev.labels)
    assert rows["nll"].monte_carlo.interval == m.bootstrap_mean(nll)
    assert rows["ece"].monte_carlo.interval == m.bootstrap_ece(ev.prediction.mean, ev.labels)
    paired = nll - m.nll_per_sample(ev.mean_network, ev.labels)
    assert rows["nll"].difference.interval == m.bootstrap_mean(paired)
    pairs = [(p, ev.labels) for p in (ev.mean_network, ev.prediction.mean)]
    assert rows["ece"].difference.interval == m.bootstrap_difference(m.ece, *pairs, n_bins=15)


def test_without_labels_only_uncertainty_is_left(evaluation):
    ev = evaluation(labelled=False)
    assert [row.key for row in metric_rows(ev)] == UNLABELLED
    assert review_rows(ev) == []
    assert reliability(ev) is None
    assert infinite_nll_count(ev) == 0


def test_without_a_mean_network_there_is_nothing_beside(evaluation):
    for row in metric_rows(evaluation(mean_network=None)):
        assert row.mean_network is None
        assert row.difference is None


def test_inputs_without_a_prediction_are_left_out_and_counted(broken):
    keep = [i for i in range(60) if i not in (2, 5)]
    rows = {row.key: row for row in metric_rows(broken)}
    assert {row.n for row in rows.values()} == {58}
    want = m.accuracy(broken.prediction.mean[keep], broken.labels[keep]).item()
    assert rows["accuracy"].monte_carlo.value == want
    assert reliability(broken).count.sum().item() == 58


def test_nothing_finite_gives_no_rows(evaluation):
    ev = evaluation()
    nan = dataclasses.replace(ev.prediction, mean=torch.full_like(ev.prediction.mean, math.nan))
    ev = dataclasses.replace(ev, prediction=nan)
    assert metric_rows(ev) == []
    assert review_rows(ev) == []
    assert reliability(ev) is None
    assert infinite_nll_count(ev) == 0


def test_infinite_nll_is_kept_and_counted(evaluation):
    ev = evaluation(n=5)
    mean = torch.eye(4, dtype=torch.float64)[ev.labels]
    mean[3] = torch.eye(4, dtype=torch.float64)[(ev.labels[3] + 1) % 4]
    ev = dataclasses.replace(ev, prediction=dataclasses.replace(ev.prediction, mean=mean))
    row = {row.key: row for row in metric_rows(ev)}["nll"]
    assert row.monte_carlo.value == math.inf
    assert row.monte_carlo.interval.high == math.inf
    assert row.difference is None
    assert infinite_nll_count(ev) == 1


def test_the_review_table_counts_mistakes_among_the_most_uncertain(evaluation):
    ev = evaluation(n=100)
    wrong = (ev.prediction.predicted != ev.labels).tolist()
    order = sorted(range(100), key=lambda i: -ev.prediction.entropy[i].item())
    rows = review_rows(ev)
    assert [row.reviewed for row in rows] == [1, 5, 10, 20]
    for row in rows:
        assert row.mistakes == sum(wrong)
        assert row.mistakes_found == sum(wrong[i] for i in order[: row.reviewed])
        rest = [not wrong[i] for i in order[row.reviewed :]]
        assert row.accuracy_of_rest == pytest.approx(sum(rest) / len(rest), rel=2.0**-52)


def test_a_review_of_everything_leaves_no_rest(evaluation):
    assert all(math.isnan(row.accuracy_of_rest) for row in review_rows(evaluation(n=1)))
