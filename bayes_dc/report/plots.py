"""The pictures that every report has, as PNG bytes."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bayes_dc.metrics import ReliabilityCurve
from bayes_dc.report.canvas import (
    LIGHT,
    Options,
    Theme,
    legend,
    new_figure,
    style,
    text_options,
    to_png,
)
from bayes_dc.report.evaluation import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HISTOGRAM_BINS = 40
GRID_COLUMNS = 4

_NO_SAMPLES = "no samples: {what} needs at least one input; got none."


def reliability_diagram(curve: ReliabilityCurve, theme: Theme = LIGHT) -> bytes:
    """Draw accuracy against confidence, with the number of inputs per bin.

    Args:
        curve: Bins; empty ones are not drawn.
        theme: Colours.

    Returns:
        A PNG file.
    """
    return to_png(reliability_figure(curve, theme))


def reliability_figure(curve: ReliabilityCurve, theme: Theme = LIGHT) -> "Figure":
    """Build the figure of ``reliability_diagram``.

    Args:
        curve: Bins; empty ones are not drawn.
        theme: Colours.

    Returns:
        A figure whose first axes hold one bar per non-empty bin, as wide as the bin.

    Raises:
        ReportError: If every bin is empty.
    """
    used = (curve.count > 0).nonzero().flatten()
    if len(used) == 0:
        raise ReportError(_NO_SAMPLES.format(what="a reliability diagram"))
    figure = new_figure(6.4, 6.4, theme)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1.1])
    edges = curve.edges.tolist()
    left = [edges[b] for b in used.tolist()]
    width = [edges[b + 1] - edges[b] for b in used.tolist()]
    accuracy, confidence = curve.accuracy[used].tolist(), curve.confidence[used].tolist()
    count = curve.count[used].tolist()
    bar: Options = {"align": "edge", "color": theme.first, "edgecolor": theme.paper}
    top.plot([0, 1], [0, 1], color=theme.faint, linestyle="--", label="perfectly calibrated")
    top.bar(left, accuracy, width, label="accuracy of the bin", **bar)
    marker: Options = {"color": theme.second, "marker": "D", "markersize": 5, "zorder": 3}
    label = "mean confidence, line: gap"
    top.plot(confidence, accuracy, linestyle="none", clip_on=False, label=label, **marker)
    top.vlines(confidence, accuracy, confidence, color=theme.second, linewidth=1.6, zorder=2)
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    legend(figure, theme)
    below.bar(left, count, width, **bar)
    below.set(yscale="log", ylim=(0.6, 8 * max(count)), xlabel="confidence", ylabel="inputs")
    below.minorticks_off()
    above: Options = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center"}
    for x, w, n in zip(left, width, count, strict=True):
        size = text_options(8 if n < 10_000 else 6)
        below.annotate(f"{n}", (x + w / 2, n), color=theme.ink, **above, **size)
    for axes in (top, below):
        style(axes, theme)
    return figure


def mutual_information_histogram(
    values: Tensor, wrong: Tensor | None, theme: Theme = LIGHT
) -> bytes:
    """Draw how mutual information is spread over right and wrong predictions.

    Args:
        values: Mutual information of every input ``[N]``, finite, nats.
        wrong: True where the prediction is wrong ``[N]``, or None if labels are unknown.
        theme: Colours.

    Returns:
        A PNG file.

    Raises:
        ReportError: If there are no values.
    """
    if len(values) == 0:
        raise ReportError(_NO_SAMPLES.format(what="a histogram"))
    figure = new_figure(6.4, 4.0, theme)
    axes = figure.subplots()
    top = values.max().item()
    bins = np.linspace(0, top if top > 1e-12 else 1.0, HISTOGRAM_BINS + 1)  # all may be 0
    groups = [("all inputs", values, theme.first)]
    if wrong is not None:
        groups = [("right", values[~wrong], theme.first), ("wrong", values[wrong], theme.second)]
    for name, group, colour in groups:
        if len(group):
            label = f"{name} (n = {len(group)})"
            share = np.full(len(group), 1 / len(group))
            options: Options = {"color": colour, "weights": share, "bins": bins}
            data = group.clamp(min=0).numpy()
            axes.hist(data, histtype="stepfilled", alpha=0.25, linewidth=0, **options)
            axes.hist(data, histtype="step", linewidth=1.6, label=label, **options)
    axes.set(xlim=(0, bins[-1]), xlabel="mutual information, nats", ylabel="share of the group")
    legend(figure, theme)
    style(axes, theme)
    return to_png(figure)


def image_grid(
    indices: Sequence[int],
    image: Callable[[int], np.ndarray],
    caption: Callable[[int], tuple[str, bool]],
    title: str,
    theme: Theme = LIGHT,
) -> bytes:
    """Draw inputs as pictures, four in a row, with their numbers under each.

    Args:
        indices: Inputs to be shown, at least one.
        image: Gives the picture of an input as uint8 ``[H, W, 1 or 3]``.
        caption: Gives the text under it, and whether the text is to stand out.
        title: Text above all.
        theme: Colours.

    Returns:
        A PNG file.

    Raises:
        ReportError: If there are no inputs.
    """
    if not indices:
        raise ReportError(_NO_SAMPLES.format(what="a grid of images"))
    rows = math.ceil(len(indices) / GRID_COLUMNS)
    figure = new_figure(6.8, 0.5 + 2.45 * rows, theme)
    figure.suptitle(title, color=theme.ink, **text_options(11))
    cells = figure.subplots(rows, GRID_COLUMNS, squeeze=False).flatten()
    for axes in cells:
        axes.set_axis_off()
    for axes, index in zip(cells, indices, strict=False):
        pixels = image(index)
        colours = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        axes.imshow(colours, interpolation="nearest")
        text, loud = caption(index)
        colour = theme.second if loud else theme.ink
        axes.text(0.5, -0.04, text, ha="center", va="top", color=colour, **text_options(7.5)).set(
            transform=axes.transAxes
        )
    return to_png(figure)
