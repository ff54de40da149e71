"""Plots of selective prediction, other inputs, convergence and differences, as PNG bytes."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from bayes_dc.mc.convergence import ConvergenceRow
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
from bayes_dc.report.differences import DifferenceRow
from bayes_dc.report.selective import AbstentionResult, RiskCurve
from bayes_dc.report.text import number

BINS = 40
SIGMAS = 2

_CONVERGING = (
    ("nll", "NLL, nats"),
    ("entropy", "entropy, nats"),
    ("mutual_information", "mutual information, nats"),
)


def risk_coverage(
    curves: Sequence[tuple[str, RiskCurve]],
    abstention: AbstentionResult | None = None,
    theme: Theme = LIGHT,
) -> bytes:
    """Draw risk against coverage, the first curve with its band.

    Args:
        curves: Names and curves, at least one.
        abstention: A policy whose measured point is marked, or None.
        theme: Colours.

    Returns:
        A PNG file.
    """
    figure = new_figure(6.4, 4.4, theme)
    axes = figure.subplots()
    for index, (name, curve) in enumerate(curves):
        line = line_of(theme, index)
        if index == 0:
            band: Options = {"color": line["color"], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(curve.coverage, curve.low, curve.high, **band)
        axes.plot(curve.coverage, curve.risk, label=name, linewidth=1.7, **line)
    if abstention is not None and abstention.risk is not None:
        point: Options = {"marker": "o", "linestyle": "none", "color": theme.ink, "zorder": 4}
        axes.plot([abstention.coverage], [abstention.risk], label="the policy", **point)
    axes.set(xlim=(0, 1), xlabel="coverage: share answered, least uncertain first")
    axes.set(ylim=(0, None), ylabel="risk: share of mistakes among them")
    legend(figure, theme)
    style(axes, theme)
    return to_png(figure)


def ood_histograms(
    inside: dict[str, Tensor], outside: dict[str, dict[str, Tensor]], theme: Theme = LIGHT
) -> bytes:
    """Draw how uncertainties are spread over inputs of the task and other inputs.

    Args:
        inside: Values of the inputs of the task, finite, by name of the uncertainty.
        outside: The same for every set of other inputs, by name of the set.
        theme: Colours.

    Returns:
        A PNG file with one panel per uncertainty.
    """
    figure = new_figure(6.4, 0.6 + 2.3 * len(inside), theme)
    panels = figure.subplots(len(inside), 1, squeeze=False).flatten()
    for axes, (score, own) in zip(panels, inside.items(), strict=True):
        groups = {"inputs of the task": own} | {name: sets[score] for name, sets in outside.items()}
        top = max(max(values.max().item(), 1e-12) for values in groups.values())
        for index, (name, values) in enumerate(groups.items()):
            options: Options = line_of(theme, index) | {"bins": np.linspace(0, top, BINS + 1)}
            options["weights"] = np.full(len(values), 1 / len(values))
            data = values.clamp(min=0).numpy()
            axes.hist(data, histtype="step", linewidth=1.6, label=name, **options)
        axes.set(xlim=(0, top), xlabel=score, ylabel="share of the set")
        style(axes, theme)
    legend(figure, theme, ["inputs of the task", *outside])
    return to_png(figure)


def convergence(rows: Sequence[ConvergenceRow], theme: Theme = LIGHT) -> bytes:
    """Draw scores against the number of passes, with two Monte Carlo standard errors.

    Args:
        rows: Fewest passes first, at least one.
        theme: Colours.

    Returns:
        A PNG file; a score that is not there is left out.
    """
    known = [(key, label) for key, label in _CONVERGING if getattr(rows[-1], key) is not None]
    figure = new_figure(6.4, 0.4 + 1.9 * len(known), theme)
    panels = figure.subplots(len(known), 1, sharex=True, squeeze=False).flatten()
    passes = [row.T for row in rows]
    for axes, (key, label) in zip(panels, known, strict=True):
        values = np.array([getattr(row, key) for row in rows])
        errors = np.array([getattr(row, f"{key}_se") or 0.0 for row in rows])
        bars: Options = {"color": theme.first, "capsize": 3, "marker": "o", "markersize": 4}
        axes.errorbar(passes, values, yerr=SIGMAS * errors, linewidth=1.5, **bars)
        axes.axhline(values[-1], color=theme.faint, linestyle="--", linewidth=1)
        axes.set(ylabel=label, xscale="log")
        axes.set_xticks(passes, [str(T) for T in passes])
        axes.minorticks_off()
        style(axes, theme)
    panels[-1].set_xlabel("Monte Carlo passes T")
    panels[-1].xaxis.label.set_color(theme.ink)
    return to_png(figure)


def plot_differences(
    rows: Sequence[DifferenceRow], first: str, second: str, theme: Theme = LIGHT
) -> bytes:
    """Draw the difference of every metric with its interval, each on a scale of its own.

    Args:
        rows: Metrics; those without an interval are left out.
        first: Name of the network that is subtracted.
        second: Name of the other.
        theme: Colours.

    Returns:
        A PNG file.
    """
    shown = [(row, row.difference) for row in rows if row.difference is not None]
    figure = new_figure(7.4, 0.9 + 0.46 * len(shown), theme)
    figure.suptitle(f"{second} less {first}, 95 % intervals", color=theme.ink, **text_options(11))
    panels = figure.subplots(max(1, len(shown)), 1, squeeze=False).flatten()
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes, (row, gap) in zip(panels, shown, strict=False):
        colour = {"better": theme.first, "worse": theme.second}.get(row.verdict, theme.ink)
        ends = [gap.interval.low, gap.interval.high]
        reach = 1.15 * max(abs(gap.value), *map(abs, ends), 1e-12)
        axes.axvline(0, color=theme.faint, linewidth=1)
        axes.plot(ends, [0, 0], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([gap.value], [0], color=colour, marker="o", markersize=6)
        axes.set(xlim=(-reach, reach), ylim=(-1, 1), yticks=[], xticks=[])
        label: Options = {"ha": "right", "va": "center", "color": theme.ink} | text_options(9)
        axes.text(-0.02, 0.5, row.title, transform=axes.transAxes, **label)
        text = number(gap.value, 3) + (f"  {row.verdict}" if row.verdict else "")
        label |= {"ha": "left", "color": colour}
        axes.text(1.02, 0.5, text, transform=axes.transAxes, **label)
        style(axes, theme)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return to_png(figure)
