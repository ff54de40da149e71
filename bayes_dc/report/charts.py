"""Which pictures a report has, drawn for light and for dark screens."""

from collections.abc import Callable

from torch import Tensor

from bayes_dc.report import plots, plots_sections, plots_shift, ranking
from bayes_dc.report.canvas import DARK, LIGHT, Theme
from bayes_dc.report.derived import Derived
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.sections import ShiftSweep
from bayes_dc.report.shifted import TURNED
from bayes_dc.report.text import number, short

CHARTS = (
    "reliability",
    "mutual_information",
    "risk_coverage",
    "ood",
    "shift",
    "shift_networks",
    "turned",
    "rotated_input",
    "convergence",
)
"""Charts of the page by name."""

GRIDS = ("most_certain", "least_certain")
"""Grids of inputs, files only: the page shows the inputs themselves."""

THIS = "this network"

Draw = Callable[[Theme], bytes]


def draw_charts(evaluation: Evaluation, derived: Derived) -> dict[str, tuple[bytes, bytes]]:
    """Draw every chart that the evaluation allows.

    Args:
        evaluation: What was predicted.
        derived: Its tables.

    Returns:
        PNG files for light and dark screens by name.
    """
    if not evaluation.usable.any():
        return {}
    draws = _basic(evaluation, derived)
    if evaluation.ood:
        draws["ood"] = _ood(evaluation)
    draws |= _shifts(evaluation)
    if evaluation.convergence:
        draws["convergence"] = lambda t: plots_sections.convergence(evaluation.convergence, t)
    return {name: (draws[name](LIGHT), draws[name](DARK)) for name in CHARTS if name in draws}


def draw_grids(evaluation: Evaluation) -> dict[str, bytes]:
    """Draw the most and the least certain inputs.

    Args:
        evaluation: What was predicted.

    Returns:
        PNG files by name; empty if no input has a finite prediction.
    """
    if not evaluation.usable.any():
        return {}
    groups = {
        "most_certain": ("Most certain: lowest entropy", ranking.most_certain(evaluation)),
        "least_certain": ("Least certain: highest entropy", ranking.least_certain(evaluation)),
    }
    return {
        name: plots.image_grid(indices, evaluation.image, lambda i: _caption(evaluation, i), title)
        for name, (title, indices) in groups.items()
    }


def _basic(evaluation: Evaluation, derived: Derived) -> dict[str, Draw]:
    """Charts that every evaluation with labels has."""
    use, prediction = evaluation.usable, evaluation.prediction
    draws: dict[str, Draw] = {}
    curve = derived.curve
    if curve is not None:
        draws["reliability"] = lambda t: plots.reliability_diagram(curve, t)
    values, wrong = prediction.mutual_information[use], None
    if evaluation.labels is not None:
        wrong = (prediction.predicted != evaluation.labels)[use]
    draws["mutual_information"] = lambda t: plots.mutual_information_histogram(values, wrong, t)
    if derived.risk:
        own = evaluation.name or THIS
        curves = [(one.name, one) for one in derived.risk]
        if derived.compared:
            curves = [(f"{own}, {derived.risk[0].name}", derived.risk[0])]
            curves += [(one.named.name, one.risk[0]) for one in derived.compared if one.risk]
        policy = derived.abstention
        draws["risk_coverage"] = lambda t: plots_sections.risk_coverage(curves, policy, t)
    return draws


def _ood(evaluation: Evaluation) -> Draw:
    """Histograms of entropy and mutual information."""
    use = evaluation.usable
    names = {"entropy": "entropy, nats", "mutual_information": "mutual information, nats"}
    inside = {label: getattr(evaluation.prediction, key)[use] for key, label in names.items()}
    outside: dict[str, dict[str, Tensor]] = {}
    for other in evaluation.ood:
        finite = other.prediction.mean.isfinite().all(dim=1)
        if finite.any():
            outside[other.name] = {
                label: getattr(other.prediction, key)[finite] for key, label in names.items()
            }
    return lambda t: plots_sections.ood_histograms(inside, outside, t)


def _shifts(evaluation: Evaluation) -> dict[str, Draw]:
    """Curves of changed inputs, of this network and of those beside it."""
    shift = evaluation.shift
    if shift is None:
        return {}
    sweeps = {evaluation.name or THIS: shift}
    for named in evaluation.compared:
        if named.evaluation.shift is not None:
            sweeps[named.name] = named.evaluation.shift
    draws: dict[str, Draw] = {}
    if _severities(shift):
        draws["shift"] = lambda t: plots_shift.shift_curves(shift, t)
        if len(sweeps) > 1:
            draws["shift_networks"] = lambda t: plots_shift.network_curves(sweeps, t)
    if any(point.shift == TURNED for point in shift.points):
        draws["turned"] = lambda t: plots_shift.turn_curves(sweeps, t)
    turned = shift.rotated
    if turned is not None:
        names = evaluation.class_names
        draws["rotated_input"] = lambda t: plots_shift.rotated_input(turned, names, t)
    return draws


def _severities(shift: ShiftSweep) -> bool:
    """Whether there is more than the half turn."""
    return any(point.shift != TURNED for point in shift.points)


def _caption(evaluation: Evaluation, index: int) -> tuple[str, bool]:
    """Text under a picture, and whether the prediction is wrong."""
    prediction, names = evaluation.prediction, evaluation.class_names
    predicted = int(prediction.predicted[index])
    text, wrong = f"predicted {short(names[predicted], 14)}", False
    if evaluation.labels is not None:
        label = int(evaluation.labels[index])
        wrong = label != predicted
        text += f"\nlabel {short(names[label], 16)}{' – wrong' if wrong else ''}"
    confidence = number(prediction.confidence[index].item(), 3)
    mi = number(prediction.mutual_information[index].item(), 3)
    return f"{short(evaluation.ids[index])}\n{text}\nconfidence {confidence}\nMI {mi} nats", wrong
