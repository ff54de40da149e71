"""Faults that measures of out-of-distribution detection elsewhere were reported for."""

import math

import pytest
import torch

from bayes_dc import metrics as m

MEASURES = [m.auroc, m.aupr_in, m.aupr_out, m.fpr_at_tpr]


def scores(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("empty", ["scores_in", "scores_out"])
def test_one_data_set_alone_has_no_score(measure, empty):
    """No number that could be averaged into a table; the error names the side that is missing."""
    # source: scikit-learn/scikit-learn#30079
    # source: torch-uncertainty/torch-uncertainty#139
    full = "scores_out" if empty == "scores_in" else "scores_in"
    arguments = {empty: torch.empty(0), full: scores(0.1, 0.2, 0.3)}
    with pytest.raises(ValueError, match=rf"no samples: {empty} is empty"):
        measure(**arguments)
    stream = m.Streaming(measure)
    stream.update(arguments["scores_in"], arguments["scores_out"])
    with pytest.raises(ValueError, match=rf"no samples: {empty} is empty"):
        stream.compute()


def test_equal_data_sets_cannot_be_told_apart():
    # source: torch-uncertainty/torch-uncertainty#139
    same = torch.rand(50, generator=torch.Generator().manual_seed(0))
    assert m.auroc(same, same).item() == 0.5


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-300])
def test_tiny_differences_are_no_ties(scale):
    # source: scikit-learn/scikit-learn#3864
    inside, outside = scores(0.0, 0.0) * scale, scores(4.0) * scale
    assert m.auroc(inside, outside).item() == 1.0
    assert m.fpr_at_tpr(inside, outside).item() == 0.0
    # nor are they in the other measures that rank
    loss = torch.tensor([0.0, 0.0, 1.0])
    assert m.excess_aurc(scores(0.0, 0.0, 4.0) * scale, loss).item() == 0.0
    assert m.spearman(scores(1, 2, 3) * scale, scores(1, 2, 3)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("order", [slice(None), [3, 2, 1, 0], [1, 0, 3, 2]])
@pytest.mark.parametrize("measure", MEASURES, ids=lambda f: f.__name__)
def test_nan_has_no_rank(measure, order):
    # source: scikit-learn/scikit-learn#5735
    values = scores(0.5, math.nan, math.nan, 1.0)[order]
    with pytest.raises(ValueError, match="NaN, the first at index"):
        measure(values[:2], values[2:])
    with pytest.raises(ValueError, match="NaN, the first at index"):
        measure(scores(1.0), scores(math.nan))
    for ranked in (m.aurc, m.excess_aurc):
        with pytest.raises(ValueError, match="NaN, the first at index"):
            ranked(values, torch.zeros(4))


def test_equal_scores_say_nothing():
    # source: scikit-learn/scikit-learn#5735
    assert m.auroc(scores(1, 1), scores(1, 1)).item() == 0.5
    infinite = scores(math.inf, math.inf)
    assert m.auroc(infinite, infinite).item() == 0.5


def test_the_fpr_has_one_named_side():
    """OOD is positive; the other reading is a call with both negated and exchanged."""
    # source: Jingkang50/OpenOOD#308
    inside = scores(0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.90)
    outside = scores(0.28, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.95)
    assert m.fpr_at_tpr(inside, outside).item() == 0.5
    assert m.fpr_at_tpr(-outside, -inside).item() == pytest.approx(0.9, abs=2.0**-52)
    assert m.auroc(inside, outside).item() == pytest.approx(0.87, abs=2.0**-52)
    assert "OOD" in m.fpr_at_tpr.__doc__
    assert "ID as positive" in m.fpr_at_tpr.__doc__


def test_aupr_in_and_aupr_out_are_not_exchanged():
    # source: Jingkang50/OpenOOD#211
    inside, outside = scores(0.1, 0.2, 0.3, 0.8), scores(0.7)
    assert m.aupr_out(inside, outside).item() == 0.5
    assert m.aupr_in(inside, outside).item() == pytest.approx(0.95, abs=2.0**-52)
    assert m.auroc(inside, outside).item() == 0.75


def test_two_arrays_leave_no_label_to_be_mixed_up():
    """Naming the other side and negating gives the same AUROC and exchanges the two AUPRs."""
    # source: tayden/ood-metrics#2
    inside, outside = scores(0.1, 0.2, 0.3, 0.8), scores(0.7)
    assert m.auroc(inside, outside).item() == m.auroc(-outside, -inside).item() == 0.75
    assert m.aupr_out(inside, outside).item() == m.aupr_in(-outside, -inside).item()
    assert m.fpr_at_tpr(inside, outside).item() == 0.25
    for measure in MEASURES:
        assert "scores_out: Uncertainty of the OOD inputs" in measure.__doc__


def test_a_constant_score_gets_its_chance_level():
    # source: ArcInstitute/cell-eval#208
    inside, outside = scores(*[0.3] * 19), scores(0.3)
    assert m.aupr_out(inside, outside).item() == 0.05
    assert m.aupr_in(inside, outside).item() == pytest.approx(0.95, abs=2.0**-52)


def test_a_perfect_ranking_scores_one_and_the_worst_less_than_chance():
    # source: open-edge-platform/anomalib#3781
    low, high = scores(0.15, 0.25), scores(0.75, 0.95)
    assert m.aupr_out(low, high).item() == 1.0
    assert m.aupr_out(high, low).item() == pytest.approx(0.416667, abs=5e-7)
    assert m.aupr_out(high, low).item() == pytest.approx((1 / 3 + 2 / 4) / 2, abs=2.0**-52)
