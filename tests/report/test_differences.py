"""Differences of two networks, from memory and from the files of their reports."""

import dataclasses

import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.report import (
    FEWEST,
    ReportError,
    compare_sides,
    comparison_table,
    plot_differences,
    read_side,
    write_report,
)
from bayes_dc.report.differences import DifferenceRow, difference_rows, scored
from bayes_dc.report.estimate import Estimate


@pytest.fixture(scope="module")
def pair(evaluation):
    """Two networks on the same 60 inputs."""
    first, other = evaluation(name="one"), evaluation(seed=4, name="two")
    mean_network = first.mean_network
    return first, dataclasses.replace(other, labels=first.labels, mean_network=mean_network)


def test_paired_differences_are_those_of_the_metrics(pair):
    a, b = pair
    rows = {row.key: row for row in difference_rows(scored(a), scored(b), paired=True)}
    probs = [ev.prediction.mean for ev in pair]
    nlls = [m.nll_per_sample(p, a.labels) for p in probs]
    assert rows["nll"].difference.interval == m.bootstrap_mean(nlls[1] - nlls[0])
    assert rows["nll"].first == nlls[0].mean().item()
    sides = [(p, a.labels) for p in probs]
    assert rows["ece"].difference.interval == m.bootstrap_difference(m.ece, *sides, n_bins=15)
    assert rows["ece"].second == m.ece(probs[1], a.labels).item()
    mi = [ev.prediction.mutual_information for ev in pair]
    assert rows["mutual_information"].difference.interval == m.bootstrap_mean(mi[1] - mi[0])
    # The second guesses: its labels are those of other inputs.
    assert (rows["accuracy"].verdict, rows["nll"].verdict) == ("worse", "worse")
    assert {row.verdict for row in difference_rows(scored(a), scored(a), paired=True)} == {""}


def test_other_inputs_are_resampled_by_themselves(pair, evaluation):
    a, b = scored(pair[0]), scored(evaluation(n=30, seed=3))
    rows = {row.key: row for row in difference_rows(a, b, paired=False)}
    sides = [(one.probs, one.labels) for one in (a, b)]
    want = m.bootstrap_difference(m.ece, *sides, paired=False, n_bins=15)
    assert rows["ece"].difference.interval == want
    briers = [m.brier_per_sample(*side) for side in sides]
    assert rows["brier"].difference.interval == m.bootstrap_mean_difference(*briers)


def test_infinite_losses_have_no_difference(pair):
    certain = torch.eye(4, dtype=torch.float64)[(pair[0].labels + 1) % 4]
    other = dataclasses.replace(scored(pair[1]), probs=certain)
    for paired in (True, False):
        rows = {r.key: r for r in difference_rows(scored(pair[0]), other, paired=paired)}
        assert rows["nll"].difference is None
        assert rows["nll"].verdict == ""
        assert rows["brier"].difference is not None


@pytest.mark.parametrize(
    ("direction", "ends", "values", "verdict"),
    [
        ("higher", (0.1, 0.2), (0.5, 0.65), "better"),
        ("higher", (-0.2, -0.1), (0.5, 0.35), "worse"),
        ("lower", (0.1, 0.2), (0.5, 0.65), "worse"),
        ("lower", (-0.1, 0.2), (0.5, 0.55), ""),
        ("zero", (0.1, 0.2), (-0.3, -0.15), "better"),
        ("zero", (0.1, 0.2), (0.3, 0.45), "worse"),
        ("none", (0.1, 0.2), (0.3, 0.45), "different"),
    ],
)
def test_a_verdict_needs_an_interval_without_zero(direction, ends, values, verdict):
    gap = Estimate(values[1] - values[0], m.Interval(*ends, 0.95, 1000))
    assert DifferenceRow("k", "t", direction, "", *values, gap, FEWEST).verdict == verdict
    assert DifferenceRow("k", "t", direction, "", *values, gap, FEWEST - 1).verdict == ""


def test_few_inputs_give_no_verdict(evaluation):
    """One input has intervals without a width, which leave 0 out whatever is compared."""
    many, one = scored(evaluation(n=60)), scored(evaluation(n=1, seed=2))
    rows = difference_rows(many, one, paired=False)
    widths = {row.key: row.difference.interval for row in rows if row.difference is not None}
    assert widths["entropy"].low > 0 or widths["entropy"].high < 0
    assert {row.verdict for row in rows} == {""}


@pytest.fixture(scope="module")
def folders(pair, evaluation, tmp_path_factory):
    """Reports of the pair, and of the first on 30 other inputs."""
    out = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayes_dc.report.writer.draw_charts", lambda *_: {})
        patch.setattr("bayes_dc.report.writer.draw_grids", lambda *_: {})
        for name, ev in zip("ab", pair, strict=True):
            write_report(ev, out / name)
        write_report(evaluation(n=30, seed=3, name="three"), out / "c")
        write_report(evaluation(n=5, classes=3), out / "classes")
    return out


def test_reports_compare_to_the_bits_of_their_evaluations(pair, folders):
    a, b = (read_side(folders / name / "report.json") for name in "ab")
    found = compare_sides(a, b)
    assert found.paired
    assert found.n == (60, 60)
    assert found.rows == difference_rows(*map(scored, pair), paired=True)
    assert (a.name, b.name) == ("one", "two")
    assert read_side(folders / "classes" / "report.json").name == "classes"


def test_reports_of_other_inputs_are_not_paired(folders):
    a, c = (read_side(folders / name / "report.json") for name in "ac")
    found = compare_sides(a, c)
    assert not found.paired
    assert found.n == (60, 30)


def test_the_table_reads_in_columns(folders):
    a, b = (read_side(folders / name / "report.json") for name in "ab")
    found = compare_sides(a, b)
    lines = comparison_table(found, "first", "second").splitlines()
    assert lines[0].split("  ")[0] == "metric"
    assert lines[0].endswith("second is")
    assert len(lines) == 1 + len(found.rows)
    assert lines[1].startswith("Accuracy  ")
    assert lines[1].endswith("worse")
    assert plot_differences(found.rows, "first", "second").startswith(b"\x89PNG")


def test_reports_of_other_classes_are_refused(folders):
    a, b = (read_side(folders / name / "report.json") for name in ("a", "classes"))
    text = r"about other classes: one has a, b, c, d, classes has a, b, c\. Compare networks of"
    with pytest.raises(ReportError, match=text):
        compare_sides(a, b)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: None, "predictions.csv cannot be read: No such file or directory. The inter"),
        (lambda t: t.replace("label,", "class,", 1), "its columns are id, class, predicted"),
        (lambda t: t[: t.rindex("\n", 0, -1) + 1], "it has 59 rows, report.json 60 inputs"),
        (lambda t: t.replace("input 0,a", "input 0,z").replace("input 0,b", "input 0,z")
            .replace("input 0,c", "input 0,z").replace("input 0,d", "input 0,z"), "'z'"),
        (lambda t: "", "predictions.csv cannot be read"),
    ],
)  # fmt: skip
def test_predictions_that_do_not_belong_are_refused(folders, tmp_path, change, text):
    for name in ("report.json", "predictions.csv"):
        content = (folders / "a" / name).read_text("utf-8")
        content = change(content) if name.endswith("csv") else content
        if content is not None:
            (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(ReportError, match=text):
        read_side(tmp_path / "report.json")
