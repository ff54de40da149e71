"""What the numbers mean, in sentences that a person can act on."""

from dataclasses import dataclass

from bayes_dc.metrics import binomial_interval
from bayes_dc.report.classes import ClassRow
from bayes_dc.report.derived import Derived
from bayes_dc.report.estimate import FEWEST, Estimate
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.findings_beyond import (
    ood_action,
    ood_finding,
    policy_action,
    shift_finding,
)
from bayes_dc.report.tables import MetricRow, ReviewRow
from bayes_dc.report.text import number, share

_REVIEW_SHARE = 0.10
_CLASS_INPUTS = 5  # a class of fewer inputs is not called the weakest


@dataclass(frozen=True)
class Summary:
    """The first page of a report.

    Attributes:
        knows: What the network knows, and how far its probabilities can be believed.
        doubts: Where it does not know.
        actions: What to do.
    """

    knows: list[str]
    doubts: list[str]
    actions: list[str]


def findings(evaluation: Evaluation, derived: Derived) -> Summary:
    """State what the metrics say, and how sure that is.

    A difference is claimed only if its 95 % interval leaves 0 out, and there are at least
    ``FEWEST`` inputs.

    Args:
        evaluation: What was predicted.
        derived: Tables of this evaluation.

    Returns:
        Sentences, the most useful first; empty if there are no metrics.
    """
    accuracy, gap, nll = (derived.row(key) for key in ("accuracy", "overconfidence", "nll"))
    entropy = derived.row("entropy")
    knows, doubts, actions = [], [], []
    if accuracy is not None and gap is not None:
        side = _side(accuracy, gap.monte_carlo)
        knows += [_accuracy(accuracy), _calibration(gap.monte_carlo, side)]
        if side > 0:
            actions.append(_recalibrate(evaluation))
    if nll is not None and nll.difference is not None and evaluation.prediction.T > 1:
        claim = nll.n >= FEWEST
        knows.append(_monte_carlo(nll.difference, evaluation.prediction.T, claim=claim))
    weakest = _weakest(derived.classes)
    if weakest is not None:
        doubts.append(_class(weakest))
    if entropy is not None and entropy.monte_carlo.value > 0 and evaluation.prediction.T > 1:
        doubts.append(_split(derived, entropy))
    for other, rows in derived.ood:
        if rows:
            doubts.append(ood_finding(other, rows))
            actions += ood_action(other, rows)
    if evaluation.shift is not None:
        doubts += shift_finding(evaluation.shift)
    actions += [_review(r) for r in derived.review if r.share == _REVIEW_SHARE and r.mistakes]
    if derived.abstention is not None:
        actions.insert(0, policy_action(derived.abstention))
    return Summary(knows, doubts, actions)


def _accuracy(row: MetricRow) -> str:
    """How often it is right, and how sure that is."""
    low, high = _exact(row)
    inputs = "input" if row.n == 1 else "inputs"
    return (
        f"The prediction is right for {share(row.monte_carlo.value)} of {row.n} {inputs}; on other "
        f"inputs of the same kind expect {share(low)} to {share(high)} (exact binomial, 95 %)."
    )


def _exact(accuracy: MetricRow) -> tuple[float, float]:
    """Exact interval of the accuracy: unlike a bootstrap it knows that mistakes may be to come."""
    return binomial_interval(round(accuracy.monte_carlo.value * accuracy.n), accuracy.n)


def _side(accuracy: MetricRow, gap: Estimate) -> int:
    """1 if confidence is too high beyond doubt, −1 if it is too low, 0 if that cannot be told."""
    low, high = gap.interval.low, gap.interval.high
    confidence = accuracy.monte_carlo.value + gap.value
    if accuracy.monte_carlo.value in (0, 1):  # resamples have never seen the other outcome
        least, most = _exact(accuracy)
        low, high = min(low, confidence - most), max(high, confidence - least)
    if accuracy.n < FEWEST or low <= 0 <= high:
        return 0
    return 1 if low > 0 else -1


def _calibration(gap: Estimate, side: int) -> str:
    """Whether confidence can be taken at its word."""
    if side > 0:
        return (
            f"It is overconfident: its confidence is on average {_points(gap.value)} above its "
            "accuracy."
        )
    if side < 0:
        return (
            f"It is underconfident: its confidence is on average {_points(-gap.value)} below its "
            "accuracy. Its ranking of inputs can be used; the confidence reads too low."
        )
    return "On average its confidence agrees with its accuracy, as far as these inputs can tell."


def _recalibrate(evaluation: Evaluation) -> str:
    """What to do about confidence that is too high."""
    if evaluation.temperature is not None:
        return (
            "Confidence is too high although it was recalibrated: the validation inputs are not "
            "like these. Calibrate again on inputs of this kind."
        )
    return (
        "Recalibrate before reading confidence as a probability: scripts/calibrate.py fits a "
        "temperature on the validation split."
    )


def _points(gap: float) -> str:
    """A difference of two shares."""
    return f"{100 * gap:.2f} percentage points"


def _monte_carlo(difference: Estimate, passes: int, *, claim: bool) -> str:
    """Whether the passes were worth their price."""
    low, high = difference.interval.low, difference.interval.high
    span = f"95 % interval {number(low)} to {number(high)} nats"
    if claim and high < 0:
        return (
            f"{passes} passes give better probabilities than the mean-weight network: NLL falls "
            f"by {number(-difference.value)} ({span} for the change)."
        )
    if claim and low > 0:
        return (
            f"{passes} passes give worse probabilities than the mean-weight network: NLL rises "
            f"by {number(difference.value)} ({span}). Longer training or a smaller p may close "
            "the gap; the ranking by uncertainty can still be used."
        )
    return (
        f"These inputs show no difference in NLL between {passes} passes and the mean-weight "
        f"network ({span}); what the passes add is the uncertainty below."
    )


def _review(row: ReviewRow) -> str:
    """What a person's time would buy."""
    return (
        f"Checking the {row.reviewed} most uncertain inputs ({share(row.share, 0)}) by hand finds "
        f"{row.mistakes_found} of {row.mistakes} mistakes; the predictions left are right for "
        f"{share(row.accuracy_of_rest)}."
    )


def _weakest(classes: list[ClassRow]) -> ClassRow | None:
    """The class that is recognised least, if any of its inputs is mistaken."""
    held = [row for row in classes if row.n >= _CLASS_INPUTS and row.mistaken]
    return min(held, key=lambda row: row.recall, default=None)


def _class(row: ClassRow) -> str:
    """Which class it knows least."""
    return (
        f"Class {row.name} is recognised least: {share(row.recall)} of {row.n} inputs. It is most "
        f"often taken for {row.mistaken_for} ({row.mistaken} of {row.n})."
    )


def _split(derived: Derived, entropy: MetricRow) -> str:
    """Where the uncertainty comes from."""
    information = derived.row("mutual_information")
    assert information is not None
    own = information.monte_carlo.value / entropy.monte_carlo.value
    return (
        f"{share(own, 0)} of the uncertainty is attributed to the network's weights (mutual "
        "information), which more training data of the right kind can reduce; the rest to the "
        "inputs themselves."
    )
