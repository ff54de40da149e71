"""Plots of the optional parts: what is drawn, and that the same data give the same bytes."""

import dataclasses

import numpy as np
import pytest
import torch

from bayes_dc.report import canvas, plots_sections, plots_shift
from bayes_dc.report.derived import Derived
from bayes_dc.report.sections import ShiftSweep
from bayes_dc.report.shifted import TURNED


@pytest.fixture
def drawn(monkeypatch):
    """Figures instead of PNG files."""
    for module in (plots_sections, plots_shift):
        monkeypatch.setattr(module, "to_png", lambda figure: figure)


@pytest.mark.usefixtures("drawn")
def test_risk_against_coverage_has_a_line_for_every_curve(full):
    derived = Derived(full)
    curves = [(one.name, one) for one in derived.risk]
    (axes,) = plots_sections.risk_coverage(curves, derived.abstention).axes
    *lines, point = axes.lines
    for line, (name, curve) in zip(lines, curves, strict=True):
        assert line.get_label() == name
        assert np.array_equal(line.get_xydata().T, [curve.coverage, curve.risk])
    assert point.get_xydata().tolist() == [[derived.abstention.coverage, derived.abstention.risk]]


@pytest.mark.usefixtures("drawn")
def test_histograms_hold_every_input_once():
    inside = {"entropy": torch.tensor([0.0, 0.0, 0.5]), "mi": torch.zeros(3)}
    outside = {"letters": {"entropy": torch.tensor([1.0, 0.9]), "mi": torch.tensor([0.1, -0.1])}}
    top, below = plots_sections.ood_histograms(inside, outside).axes
    for axes in (top, below):
        assert len(axes.patches) == 2
        for patch in axes.patches:
            edges, heights = patch.get_xy()[:, 0], patch.get_xy()[:, 1]
            assert heights[1::2].sum() == pytest.approx(1, rel=1e-12)
            assert edges.min() == 0
    assert top.get_xlim() == (0, 1)


@pytest.mark.usefixtures("drawn")
def test_convergence_shows_two_standard_errors(full):
    rows = full.convergence
    panels = plots_sections.convergence(rows).axes
    assert [axes.get_ylabel() for axes in panels] == [
        "NLL, nats",
        "entropy, nats",
        "mutual information, nats",
    ]
    (bars,) = panels[1].containers
    assert bars.lines[0].get_ydata().tolist() == [row.entropy for row in rows]
    segments = bars.lines[2][0].get_segments()
    for row, ((_, low), (_, high)) in zip(rows, segments, strict=True):
        assert high - low == pytest.approx(4 * (row.entropy_se or 0), abs=1e-12)
    bare = [dataclasses.replace(row, nll=None) for row in rows]
    assert len(plots_sections.convergence(bare).axes) == 2


@pytest.mark.usefixtures("drawn")
def test_shifts_have_a_line_each_and_the_half_turn_a_plot_of_its_own(full):
    points = [p for p in full.shift.points if p.shift != TURNED]
    other = [dataclasses.replace(p, shift="blur_") for p in points]
    figure = plots_shift.shift_curves(ShiftSweep([*full.shift.points, *other]))
    accuracy, *_, mi = figure.axes
    assert [line.get_label() for line in accuracy.lines] == ["contrast", "blur "]
    want = [p.scores["mutual_information"].value for p in points]
    assert mi.lines[0].get_ydata().tolist() == want
    turned = plots_shift.turn_curves({"ours": full.shift}).axes[0].lines[0]
    assert turned.get_xdata().tolist() == [0, 90, 180]
    bare = [
        dataclasses.replace(p, scores={"entropy": p.scores["entropy"]}) for p in full.shift.points
    ]
    assert len(plots_shift.shift_curves(ShiftSweep(bare)).axes) == 2  # one is empty
    beside = plots_shift.network_curves({"a": full.shift, "b": full.shift}).axes[0]
    assert [line.get_label() for line in beside.lines] == ["a", "b"]


@pytest.mark.usefixtures("drawn")
def test_a_turned_input_has_a_point_for_every_pass_angle_and_class(full):
    turned = full.shift.rotated
    *pictures, below = plots_shift.rotated_input(turned, full.class_names).axes
    assert len(pictures) == 3
    drawn = np.concatenate([c.get_offsets()[:, 1] for c in below.collections])
    assert sorted(drawn) == sorted(turned.samples.flatten().tolist())


def test_equal_data_give_equal_bytes(full):
    rows = full.convergence
    light = plots_sections.convergence(rows)
    assert light == plots_sections.convergence(rows)
    assert light != plots_sections.convergence(rows, canvas.DARK)


def test_colours_go_round_with_other_lines():
    lines = [tuple(canvas.line_of(canvas.LIGHT, k).values()) for k in range(21)]
    assert len(set(lines)) == 21
