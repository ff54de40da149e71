"""Faults that reliability diagrams elsewhere were reported for, read back from the figure."""

import itertools

import pytest
import torch

from bayes_dc.metrics import ReliabilityCurve, reliability_curve
from bayes_dc.report import plots
from bayes_dc.report.evaluation import ReportError


def curve_of(confidence, n_bins=10):
    """Curve of right predictions with these confidences."""
    confidence = torch.tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    return reliability_curve(probs, torch.zeros(len(confidence), dtype=torch.long), n_bins)


def bars_of(axes):
    """(left, right, height) of the bars, from left to right."""
    found = [(p.get_x(), p.get_x() + p.get_width(), p.get_height()) for p in axes.patches]
    return sorted(found)


def test_bins_without_samples_are_not_drawn():
    # source: EFS-OpenSource/calibration-framework#52
    figure = plots.reliability_figure(curve_of([1.0] * 10))
    accuracy, counts = figure.axes
    assert bars_of(accuracy) == [(0.9, pytest.approx(1.0), 1.0)]
    assert [height for *_, height in bars_of(counts)] == [10]


def test_bars_are_as_wide_as_their_bins():
    # source: g-leech/argmin-gravitas#2366
    probs = torch.full((10, 10), 0.0, dtype=torch.float64)
    centres = torch.arange(10, dtype=torch.float64) / 10 + 0.05
    curve = ReliabilityCurve(
        edges=torch.arange(11, dtype=torch.float64) / 10,
        count=torch.ones(10, dtype=torch.long),
        confidence=centres,
        accuracy=probs[:, 0],
    )
    for axes in plots.reliability_figure(curve).axes:
        bars = bars_of(axes)
        assert len(bars) == 10
        assert all(right - left <= 0.1 + 2.0**-52 for left, right, _ in bars)
        for (_, right, _), (left, _, _) in itertools.pairwise(bars):
            assert right <= left + 2.0**-52


def test_no_samples_are_refused_and_one_bin_is_drawn():
    # source: matplotlib/matplotlib#28066
    empty = ReliabilityCurve(
        edges=torch.arange(11, dtype=torch.float64) / 10,
        count=torch.zeros(10, dtype=torch.long),
        confidence=torch.full((10,), torch.nan, dtype=torch.float64),
        accuracy=torch.full((10,), torch.nan, dtype=torch.float64),
    )
    assert issubclass(ReportError, ValueError)
    with pytest.raises(ReportError, match="no samples: a reliability diagram needs at least one"):
        plots.reliability_diagram(empty)
    with pytest.raises(ReportError, match="no samples: a histogram needs at least one"):
        plots.mutual_information_histogram(torch.empty(0), None)
    with pytest.raises(ValueError, match="no samples: probs has shape"):
        reliability_curve(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
    for confidence in ([0.83], [0.83] * 4):
        assert plots.reliability_diagram(curve_of(confidence)).startswith(b"\x89PNG")
    one = torch.zeros(1, dtype=torch.float64)
    assert plots.mutual_information_histogram(one, None).startswith(b"\x89PNG")
    assert plots.mutual_information_histogram(one, one > 0).startswith(b"\x89PNG")
