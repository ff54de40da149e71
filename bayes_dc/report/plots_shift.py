"""Plots of changed inputs: scores against severity, and one input turned, as PNG bytes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bayes_dc.report.canvas import (
    LIGHT,
    Options,
    Theme,
    legend,
    line_of,
    new_figure,
    style,
    text_options,
    to_png,
)
from bayes_dc.report.sections import RotatedInput, ShiftPoint, ShiftSweep
from bayes_dc.report.shifted import TURNED, by_shift

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOP_CLASSES = 4

_PANELS = (
    ("accuracy", "accuracy"),
    ("nll", "NLL, nats"),
    ("brier", "Brier score"),
    ("ece", "ECE"),
    ("entropy", "entropy, nats"),
    ("mutual_information", "mutual information, nats"),
)


def shift_curves(sweep: ShiftSweep, theme: Theme = LIGHT) -> bytes:
    """Draw every score of one network against severity, a line for every shift.

    Args:
        sweep: Scores; those of a half turn are left to ``turn_curves``.
        theme: Colours.

    Returns:
        A PNG file with one panel per score.
    """
    groups = {name: points for name, points in by_shift(sweep).items() if name != TURNED}
    lines = {name.replace("_", " "): [points] for name, points in groups.items()}
    return _curves(lines, "severity", theme)


def network_curves(sweeps: dict[str, ShiftSweep], theme: Theme = LIGHT) -> bytes:
    """Draw every score against severity for several networks: mean over shifts, and their range.

    Args:
        sweeps: Scores of every network by name, each over the same shifts.
        theme: Colours.

    Returns:
        A PNG file with one panel per score.
    """
    lines = {
        name: [points for shift, points in by_shift(sweep).items() if shift != TURNED]
        for name, sweep in sweeps.items()
    }
    return _curves(lines, "severity, mean and range over shifts", theme)


def turn_curves(sweeps: dict[str, ShiftSweep], theme: Theme = LIGHT) -> bytes:
    """Draw every score against the angle for one or several networks.

    Args:
        sweeps: Scores of every network by name.
        theme: Colours.

    Returns:
        A PNG file with one panel per score.
    """
    lines = {name: [by_shift(sweep)[TURNED]] for name, sweep in sweeps.items()}
    return _curves(lines, "degrees", theme)


def rotated_input(turned: RotatedInput, class_names: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Draw one input at every angle, with the probability that every pass gives the top classes.

    Args:
        turned: The input and the draws.
        class_names: Names of the classes.
        theme: Colours.

    Returns:
        A PNG file: the pictures above, a point for every pass, angle and class below.
    """
    steps, samples = len(turned.degrees), turned.samples
    figure = new_figure(8.0, 4.6, theme)
    grid = figure.add_gridspec(2, steps, height_ratios=[1, 4.4])
    for k, (pixels, angle) in enumerate(zip(turned.pictures, turned.degrees, strict=True)):
        axes = figure.add_subplot(grid[0, k])
        axes.imshow(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), interpolation="nearest")
        axes.set_title(f"{angle:g}°", color=theme.ink, **text_options(8))
        axes.set_axis_off()
    below = figure.add_subplot(grid[1, :])
    top = samples.mean(dim=0).amax(dim=0).argsort(descending=True, stable=True)[:TOP_CLASSES]
    spread = (np.arange(len(samples)) + 0.5) / len(samples) - 0.5
    for index, c in enumerate(top.tolist()):
        colour = theme.series[index % len(theme.series)]
        points: Options = {"color": colour, "s": 7, "alpha": 0.55, "linewidths": 0}
        for k in range(steps):
            x = k + 0.72 * spread
            label = class_names[c] if k == 0 else None
            below.scatter(x, samples[:, k, c].numpy(), label=label, **points)
    below.set(xlim=(-0.5, steps - 0.5), ylim=(-0.02, 1.02))
    below.set_xticks(range(steps), [f"{angle:g}°" for angle in turned.degrees])
    below.set_ylabel("probability, one point for each pass")
    legend(figure, theme)
    style(below, theme)
    return to_png(figure)


def _curves(lines: dict[str, list[list[ShiftPoint]]], xlabel: str, theme: Theme) -> bytes:
    """One panel per score; a line is the mean of several runs of points, with their range."""
    runs = [points for several in lines.values() for points in several]
    known = [(key, label) for key, label in _PANELS if all(key in r[0].scores for r in runs)]
    rows = math.ceil(len(known) / 2)
    figure = new_figure(7.4, 0.6 + 2.2 * rows, theme)
    panels = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes in panels[len(known) :]:
        axes.set_axis_off()
    for axes, (key, label) in zip(panels, known, strict=False):
        for index, (name, several) in enumerate(lines.items()):
            _line(axes, key, several, name, line_of(theme, index))
        axes.set(ylabel=label, xlabel=xlabel)
        style(axes, theme)
    if len(lines) > 1:
        legend(figure, theme, list(lines))
    return to_png(figure)


def _line(
    axes: "Axes", key: str, several: list[list[ShiftPoint]], name: str, line: Options
) -> None:
    """The mean of runs of points, with their range; of one run its interval."""
    x = [point.severity for point in several[0]]
    values = np.array([[point.scores[key].value for point in points] for points in several])
    if len(several) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(x, low, high, color=line["color"], alpha=0.12, linewidth=0)
    axes.plot(x, values.mean(axis=0), label=name, marker="o", markersize=2.5, linewidth=1.4, **line)
