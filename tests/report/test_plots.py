"""Plots: what is drawn, read back from the figure; PNG files that decode; matplotlib on demand."""

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc.metrics import ReliabilityCurve, reliability_curve
from bayes_dc.report import ReportError, canvas, plots


def decode(png):
    """A PNG file as an array; every pixel is read."""
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.fixture
def sparse():
    """Bins 4, 7 and 9 of 10 hold 1, 2 and 5 inputs."""
    confidence = torch.tensor([0.45, 0.75, 0.8, 0.95, 0.96, 0.97, 0.98, 1.0], dtype=torch.float64)
    rest = (1 - confidence)[:, None].expand(8, 9) / 9
    probs = torch.cat([confidence[:, None], rest], dim=1)
    labels = torch.tensor([0, 0, 1, 0, 0, 0, 0, 1])
    return reliability_curve(probs, labels, 10)


def test_bars_are_the_bins_and_empty_bins_are_not_drawn(sparse):
    top, below = plots.reliability_figure(sparse).axes
    used = [4, 7, 9]
    for axes, heights in ((top, [1.0, 0.5, 0.8]), (below, [1, 2, 5])):
        assert len(axes.patches) == 3
        for bar, b, height in zip(axes.patches, used, heights, strict=True):
            # The patch stores edge and width; one rounding each.
            assert bar.get_x() == pytest.approx(b / 10, abs=2.0**-52)
            assert bar.get_width() == pytest.approx(0.1, abs=2.0**-52)
            assert bar.get_height() == pytest.approx(height, abs=2.0**-52)
    assert [text.get_text() for text in below.texts] == ["1", "2", "5"]


def test_no_bar_overlaps_the_next():
    centres = torch.arange(10, dtype=torch.float64) / 10 + 0.05
    count = torch.ones(10, dtype=torch.int64)
    curve = ReliabilityCurve(torch.arange(11) / 10, count, centres, centres)
    bars = plots.reliability_figure(curve).axes[0].patches
    for bar, following in itertools.pairwise(bars):
        # Edges are float32 tenths here.
        assert bar.get_x() + bar.get_width() <= following.get_x() + 2.0**-23


def test_the_diagram_needs_one_sample_and_works_with_one():
    empty = ReliabilityCurve(
        torch.arange(3) / 2,
        torch.zeros(2, dtype=torch.int64),
        torch.full((2,), torch.nan),
        torch.ones(2),
    )
    with pytest.raises(ReportError, match=r"no samples: a reliability diagram needs at least one"):
        plots.reliability_diagram(empty)
    one = reliability_curve(torch.eye(2)[:1], torch.tensor([0]), 10)
    assert decode(plots.reliability_diagram(one)).std() > 0


def test_the_histogram_shows_both_groups_and_survives_zeros():
    values = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wrong = torch.arange(50) % 5 == 0
    both, none = decode(plots.mutual_information_histogram(values, wrong)), values * 0
    orange = np.array([int(canvas.LIGHT.second[i : i + 2], 16) for i in (1, 3, 5)])
    assert (np.abs(both - orange).sum(2) == 0).any()
    only = decode(plots.mutual_information_histogram(values, torch.zeros(50, dtype=torch.bool)))
    assert not (np.abs(only - orange).sum(2) == 0).any()
    assert decode(plots.mutual_information_histogram(none, None)).std() > 0
    with pytest.raises(ReportError, match=r"no samples: a histogram needs at least one input"):
        plots.mutual_information_histogram(values[:0], None)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [1, 5, 16])
def test_the_grid_shows_the_pictures(channels, count):
    def image(index):
        return np.full((8, 8, channels), 40 + 10 * index, dtype=np.uint8)

    pixels = decode(plots.image_grid(range(count), image, lambda i: (f"input {i}", False), "title"))
    for index in range(count):
        flat = (pixels == 40 + 10 * index).all(2)
        assert flat.sum() > 10_000  # a cell is about 240 pixels wide
    assert not (pixels == 40 + 10 * count).all(2).sum() > 1_000


def test_the_grid_needs_an_input():
    with pytest.raises(ReportError, match=r"no samples: a grid of images needs at least one input"):
        plots.image_grid([], lambda i: None, lambda i: ("", False), "")


@pytest.mark.parametrize("name", ["$\\frac{", "%s {}", "猫", "<b>&", "\\", "_^"])
def test_names_are_never_read_as_mathematics_or_markup(name):
    png = plots.image_grid(
        [0], lambda i: np.zeros((4, 4, 1), np.uint8), lambda i: (name, True), name
    )
    assert decode(png).std() > 0


def test_equal_inputs_give_equal_bytes(sparse):
    assert plots.reliability_diagram(sparse) == plots.reliability_diagram(sparse)
    assert plots.reliability_diagram(sparse) != plots.reliability_diagram(sparse, canvas.DARK)


CODE = """
import sys
sys.modules["matplotlib"] = None
import bayes_dc.report
from bayes_dc.metrics import ece, reliability_curve
import torch
assert ece(torch.eye(2), torch.tensor([0, 1])).item() == 0
from bayes_dc.report import plots
try:
    plots.reliability_diagram(reliability_curve(torch.eye(2), torch.tensor([0, 1])))
except ImportError as error:
    print(error)
"""


def test_without_matplotlib_only_plotting_fails():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == (
        "matplotlib is needed to draw plots and is not installed: pip install matplotlib"
    )


def test_matplotlib_is_not_imported_before_it_is_needed():
    code = "import sys, bayes_dc.report; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"
