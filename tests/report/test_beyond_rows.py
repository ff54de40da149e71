"""Tables of other inputs, changed inputs, classes, policy and seeds against the metrics."""

import dataclasses
import math

import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.metrics.policy import Policy
from bayes_dc.report import TURNED, Estimate, ReportError, ShiftPoint, ShiftSweep, shift_point
from bayes_dc.report.classes import class_rows
from bayes_dc.report.definitions import definitions
from bayes_dc.report.derived import Derived
from bayes_dc.report.findings import findings
from bayes_dc.report.findings_beyond import shift_finding
from bayes_dc.report.ood import MEASURES, ood_rows, surest
from bayes_dc.report.selective import abstention_result, accepted_inputs, risk_curves
from bayes_dc.report.shifted import by_shift

BETTER = ("higher", "lower", "zero", "none")


def test_other_inputs_are_told_apart_by_every_score(full):
    other = full.ood[0]
    rows = {(row.network, row.score): row for row in ood_rows(full, other)}
    ours, theirs = full.prediction, other.prediction
    pairs = {
        ("Monte Carlo", "entropy"): (ours.entropy, theirs.entropy),
        ("Monte Carlo", "mutual information"): (
            ours.mutual_information,
            theirs.mutual_information,
        ),
        ("Monte Carlo", "1 − confidence"): (1 - ours.confidence, 1 - theirs.confidence),
        ("mean-weight network", "entropy"): (
            m.entropy(full.mean_network),
            m.entropy(other.mean_network),
        ),
        ("mean-weight network", "1 − confidence"): (
            1 - full.mean_network.amax(1),
            1 - other.mean_network.amax(1),
        ),
        ("mean-weight network", "energy"): (full.energy, other.energy),
    }
    assert set(rows) == set(pairs)
    for key, pair in pairs.items():
        assert (rows[key].n_in, rows[key].n_out) == (48, 30)
        for name, metric in MEASURES.items():
            assert rows[key].measures[name].value == metric(*pair).item()
    interval = rows["Monte Carlo", "entropy"].measures["auroc"].interval
    assert interval == m.bootstrap_metric(m.auroc, ours.entropy, theirs.entropy)


def test_other_inputs_without_a_prediction_are_left_out(full):
    other = full.ood[0]
    columns = ("mean", "entropy", "mutual_information")
    changed = {name: getattr(other.prediction, name).clone() for name in columns}
    for column in changed.values():
        column[:3] = torch.nan
    prediction = dataclasses.replace(other.prediction, **changed)
    rows = ood_rows(full, dataclasses.replace(other, prediction=prediction))
    assert [row.n_out for row in rows] == [27, 27, 27, 30, 30, 30]
    shown = surest(dataclasses.replace(other, prediction=prediction), 4)
    order = sorted(range(3, 30), key=lambda i: prediction.entropy[i].item())
    assert shown == order[:4]


def test_a_shift_is_scored_like_everything_else(evaluation):
    ev = evaluation()
    point = shift_point("contrast", 3, ev.prediction, ev.labels)
    assert (point.shift, point.severity, point.n) == ("contrast", 3, 60)
    assert point.scores["nll"].value == m.nll(ev.prediction.mean, ev.labels).item()
    assert point.scores["ece"].interval == m.bootstrap_ece(ev.prediction.mean, ev.labels)
    values = ev.prediction.mutual_information
    assert point.scores["mutual_information"].interval == m.bootstrap_mean(values)
    bare = shift_point("contrast", 3, ev.prediction, None)
    assert set(bare.scores) == {"entropy", "expected_entropy", "mutual_information"}


def test_a_shift_without_any_prediction_is_refused(evaluation):
    ev = evaluation()
    nan = dataclasses.replace(ev.prediction, mean=torch.full_like(ev.prediction.mean, math.nan))
    text = r"no finite prediction under blur, severity 2: .* unchanged inputs first"
    with pytest.raises(ReportError, match=text):
        shift_point("blur", 2, nan, ev.labels)


def test_points_are_grouped_by_shift(full):
    groups = by_shift(full.shift)
    assert [[p.severity for p in points] for points in groups.values()] == [[0, 1, 5], [0, 90, 180]]
    assert list(groups) == ["contrast", TURNED]


def test_classes_are_counted(evaluation):
    ev = evaluation()
    rows = class_rows(ev)
    predicted = ev.prediction.predicted
    assert [row.name for row in rows] == list("abcd")
    assert sum(row.n for row in rows) == sum(row.predicted for row in rows) == 60
    for c, row in enumerate(rows):
        own = ev.labels == c
        right = (predicted[own] == c).sum().item()
        assert row.recall == right / own.sum().item()
        assert row.precision == right / (predicted == c).sum().item()
        assert row.recall_interval == m.binomial_interval(right, own.sum().item())
        assert row.precision_interval == m.binomial_interval(right, (predicted == c).sum().item())
        assert row.entropy == ev.prediction.entropy[own].mean().item()
        wrong = [predicted[i].item() for i in range(60) if own[i] and predicted[i] != c]
        if wrong:
            assert row.mistaken == wrong.count("abcd".index(row.mistaken_for))
            assert row.mistaken == max(map(wrong.count, wrong))
        else:
            assert (row.mistaken, row.mistaken_for) == (0, None)
    assert class_rows(evaluation(labelled=False)) == []
    absent = class_rows(evaluation(n=1))
    assert sum(math.isnan(row.recall) for row in absent) == 3
    assert sum(row.recall_interval is None for row in absent) == 3


def test_risk_curves_are_the_metric(evaluation):
    ev = evaluation()
    curves = {curve.score: curve for curve in risk_curves(ev)}
    assert set(curves) == {"entropy", "mutual_information", "max_probability"}
    wrong = ~m.correct(ev.prediction.mean, ev.labels)
    curve = curves["max_probability"]
    for coverage, risk in zip(curve.coverage, curve.risk, strict=True):
        assert risk == m.risk_at_coverage(1 - ev.prediction.confidence, wrong, coverage).item()
    assert curve.risk[-1] == wrong.double().mean().item()
    assert risk_curves(evaluation(labelled=False)) == []


@pytest.mark.parametrize(("kind", "bound"), [("risk", 0.0), ("risk", 0.5), ("coverage", 0.99)])
def test_a_policy_is_held_to_its_promise(evaluation, kind, bound):
    policy = Policy("entropy", 0.8, kind, bound, 0.95, 50, bound, 40, 0)
    ev = evaluation(policy=policy)
    result = abstention_result(ev)
    accepted = ev.prediction.entropy <= 0.8
    assert torch.equal(accepted_inputs(ev), accepted)
    assert result.coverage == accepted.sum().item() / 60
    errors = ((ev.prediction.predicted != ev.labels) & accepted).sum().item()
    assert result.risk == errors / accepted.sum().item()
    assert result.risk_interval[0] <= result.risk <= result.risk_interval[1]
    assert errors
    assert result.kept == {"risk": result.risk <= bound, "coverage": False}[kind]
    (text, *_) = findings(ev, Derived(ev)).actions
    said = "so these inputs are not like those of the validation split"
    assert text.startswith(f"Accept the {int(accepted.sum())} of 60 inputs that the policy accepts")
    assert (said in text) == (not result.kept)


def test_a_policy_without_labels_cannot_be_checked(evaluation, broken):
    policy = Policy("mutual_information", math.inf, "risk", 0.1, 0.95, 50, 0.09, 50, 1)
    ev = evaluation(labelled=False, policy=policy)
    result = abstention_result(ev)
    assert (result.accepted, result.risk, result.kept) == (60, None, None)
    assert "without labels that cannot be checked here" in findings(ev, Derived(ev)).actions[0]
    assert abstention_result(dataclasses.replace(broken, policy=policy)).accepted == 58
    assert abstention_result(evaluation()) is None


def test_seeds_give_a_mean_and_a_spread(full):
    derived = Derived(full)
    row = next(one for one in derived.seeds if one.key == "nll")
    values = [m.nll(run.prediction.mean, full.labels).item() for run in full.seeds]
    assert row.values == values
    assert row.mean == pytest.approx(sum(values) / 2, rel=2.0**-50)
    assert row.deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5, rel=2.0**-48)
    assert Derived(dataclasses.replace(full, seeds=full.seeds[:1])).seeds == []


def test_every_table_has_its_definitions(full, evaluation):
    found = definitions(full, Derived(full))
    terms = [one.term for one in found]
    for term in (
        *("Accuracy", "Confidence", "Entropy of an input", "Temperature", "Mistakes found"),
        *("Accuracy of the rest", "R_cc", "Promise", "AUROC (letters)", "Energy", "Recall"),
        *("Precision", "Monte Carlo standard error", "Over seeds", "Time", "Speed", "Peak memory"),
    ):
        assert term in terms
    assert len(terms) == len(set(terms))
    assert all(one.range and one.n and one.better in BETTER for one in found)
    (recall,) = [one for one in found if one.term == "Recall"]
    assert (recall.better, recall.n) == ("higher", "inputs of one class, or predictions of it")
    unknown = evaluation(labelled=False)
    few = [one.term for one in definitions(unknown, Derived(unknown))]
    assert "Recall" not in few
    assert "Temperature" not in few
    assert "Peak memory" in few


def test_sentences_tell_of_other_and_changed_inputs(full):
    summary = findings(full, Derived(full))
    text = " ".join(summary.doubts + summary.actions).replace("\u00a0", " ")
    assert "Inputs of letters: " in text
    assert "a limit that catches 95 % of them also stops" in text
    assert "The most harmful change is " in text
    assert "the network's doubt grows with it" in text or "does not warn of it" in text
    assert "inputs like letters" in text


@pytest.mark.parametrize(
    ("entropy", "ece", "said"),
    [
        (0.1, 0.3, "the entropy does not warn of it."),
        (0.6, 0.05, "the network's doubt grows with it."),
        (0.6, 0.4, "grows with it, but too little: confidence and accuracy are then 40.00 % apart"),
    ],
)
def test_a_change_that_doubt_does_not_follow_is_told(entropy, ece, said):
    def point(severity, accuracy, entropy, ece):
        values = {"accuracy": accuracy, "entropy": entropy, "ece": ece}
        scores = {
            name: Estimate(v, m.Interval(v - 0.01, v + 0.01, 0.95, 1000))
            for name, v in values.items()
        }
        return ShiftPoint("blur", severity, 9, scores)

    sweep = ShiftSweep([point(5, 0.3, entropy, ece), point(0, 0.9, 0.1, 0.02)])
    (text,) = shift_finding(sweep)
    text = text.replace("\u00a0", " ")
    assert text.startswith("The most harmful change is blur: at severity 5 accuracy falls from 90.")
    assert said in text
    assert shift_finding(ShiftSweep([])) == []


def test_the_worst_change_need_not_be_the_strongest():
    """A digit turned by half a turn may look like itself; one that lies on its side does not."""

    def point(name, severity, accuracy):
        scores = {
            key: Estimate(value, m.Interval(value, value, 0.95, 1000))
            for key, value in (("accuracy", accuracy), ("entropy", 0.1), ("ece", 0.0))
        }
        return ShiftPoint(name, severity, 40, scores)

    turned = [point("turned", degrees, a) for degrees, a in ((0, 0.9), (90, 0.2), (180, 0.6))]
    blur = [point("blur", severity, a) for severity, a in ((0, 0.9), (5, 0.5))]
    (text,) = shift_finding(ShiftSweep(turned + blur))
    assert text.startswith("The most harmful change is turned: at 90 degrees accuracy falls from")
    harmless = [point("blur", severity, 0.9) for severity in (0, 5)]
    (text,) = shift_finding(ShiftSweep(harmless))
    assert text == "None of the changes lowers the accuracy, 90.00\u00a0% of 40 inputs."
