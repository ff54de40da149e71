"""Figures, colours and PNG files for the plots; the only file that needs matplotlib.

matplotlib is imported when the first plot is drawn, with Figure objects and the Agg canvas: no
window, no global state, equal inputs give equal bytes.
"""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bayes_dc.report.evaluation import ReportError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Options = dict[str, Any]

DPI = 150

_MISSING = "matplotlib is needed to draw plots and is not installed: pip install matplotlib"


class PlotError(ReportError, ImportError):
    """No plot can be drawn here; the message says what to do."""


class Theme(NamedTuple):
    """Colours of a plot.

    Attributes:
        ink: Text and axes.
        faint: Grid and reference lines.
        paper: Background.
        first: First data series (right, accuracy).
        second: Second data series (wrong, gap).
        series: Colours of many series, the first two as above.
    """

    ink: str
    faint: str
    paper: str
    first: str
    second: str
    series: tuple[str, ...]


# Blue and orange stay apart for every common colour vision.
LIGHT = Theme(
    "#1c2733",
    "#b6c0ca",
    "#ffffff",
    "#3573b9",
    "#d9731a",
    ("#3573b9", "#d9731a", "#2e8b68", "#a05195", "#b8930a", "#c0392b", "#5b6b7a"),
)
DARK = Theme(
    "#e4e9ee",
    "#4d5a67",
    "#161d24",
    "#69a7e8",
    "#f0984b",
    ("#69a7e8", "#f0984b", "#5cc49a", "#d08bc7", "#e0c14a", "#ef7b6e", "#a9b6c2"),
)
LINES = ("-", "--", ":")
"""Line styles that go round when the colours are used up."""


def check_plots() -> None:
    """Refuse early where no plot could be drawn.

    Raises:
        PlotError: If matplotlib is not installed.
    """
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError as error:
        raise PlotError(_MISSING) from error


def new_figure(width: float, height: float, theme: Theme) -> "Figure":
    """Make an empty figure on the Agg canvas.

    Args:
        width: Inches.
        height: Inches.
        theme: Colours.

    Returns:
        The figure.

    Raises:
        PlotError: If matplotlib is not installed.
    """
    check_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def text_options(size: float) -> Options:
    """Return font options; text is shown as it is, never read as mathematics.

    Args:
        size: Points.

    Returns:
        Options of matplotlib's text.
    """
    return {"fontsize": size, "parse_math": False}


def style(axes: "Axes", theme: Theme) -> None:
    """Give axes the theme's colours and nothing more than needed.

    Args:
        axes: Axes that hold their data.
        theme: Colours.
    """
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, labelsize=9, length=3)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.ink)
        label.set_fontsize(10)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)


def legend(figure: "Figure", theme: Theme, names: Sequence[str] | None = None) -> None:
    """Put a legend above the axes, where it hides no data.

    Args:
        figure: Figure whose axes name their data.
        theme: Colours.
        names: Only these, once each; None: all that the axes name.
    """
    options: Options = {"frameon": False, "fontsize": 9, "labelcolor": theme.ink}
    options |= {"loc": "outside upper center", "ncols": 3, "columnspacing": 1.2}
    if names is None:
        figure.legend(**options)
        return
    drawn = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [name for name in names if name in drawn]
    figure.legend([drawn[name] for name in shown], shown, **options)


def line_of(theme: Theme, index: int) -> Options:
    """Return colour and style of one line of many.

    Args:
        theme: Colours.
        index: Number of the line.

    Returns:
        Options of matplotlib's lines.
    """
    turn, colour = divmod(index, len(theme.series))
    return {"color": theme.series[colour], "linestyle": LINES[turn % len(LINES)]}


def to_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG file without a date or version in it.

    Args:
        figure: Any figure.

    Returns:
        The file.
    """
    buffer = io.BytesIO()
    options: Options = {"facecolor": figure.get_facecolor(), "metadata": {"Software": None}}
    with warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes; the page has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", **options)
    return buffer.getvalue()
