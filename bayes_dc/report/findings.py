"""What the numbers mean, in sentences that a person can act on."""

from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.tables import Estimate, MetricRow, ReviewRow
from bayes_dc.report.text import number, share

_REVIEW_SHARE = 0.10


def findings(evaluation: Evaluation, rows: list[MetricRow], review: list[ReviewRow]) -> list[str]:
    """State what the metrics say, and how sure that is.

    A difference is claimed only if its 95 % interval leaves 0 out.

    Args:
        evaluation: What was predicted.
        rows: Metrics of this evaluation.
        review: What checking the most uncertain inputs would bring.

    Returns:
        Sentences, the most useful first; empty if there are no metrics.
    """
    by_key = {row.key: row for row in rows}
    texts = []
    if "accuracy" in by_key:
        texts.append(_accuracy(by_key["accuracy"]))
        texts.append(_calibration(by_key["overconfidence"].monte_carlo))
        if by_key["nll"].difference is not None:
            texts.append(_monte_carlo(by_key["nll"].difference, evaluation.prediction.T))
    texts.extend(_review(row) for row in review if row.share == _REVIEW_SHARE and row.mistakes)
    if "entropy" in by_key and by_key["entropy"].monte_carlo.value > 0:
        texts.append(_split(by_key))
    return texts


def _accuracy(row: MetricRow) -> str:
    """How often it is right, and how sure that is."""
    interval = row.monte_carlo.interval
    return (
        f"The prediction is right for {share(row.monte_carlo.value)} of {row.n} inputs; on other "
        f"inputs of the same kind expect {share(interval.low)} to {share(interval.high)}."
    )


def _calibration(gap: Estimate) -> str:
    """Whether confidence can be taken at its word."""
    if gap.interval.low > 0:
        return (
            f"It is overconfident: its confidence is on average {_points(gap.value)} above its "
            "accuracy. Recalibrate it on data set aside before reading it as a probability."
        )
    if gap.interval.high < 0:
        return (
            f"It is underconfident: its confidence is on average {_points(-gap.value)} below its "
            "accuracy. Its ranking of inputs can be used; the confidence reads too low."
        )
    return "On average its confidence agrees with its accuracy, as far as these inputs can tell."


def _points(gap: float) -> str:
    """A difference of two shares."""
    return f"{100 * gap:.2f} percentage points"


def _monte_carlo(difference: Estimate, passes: int) -> str:
    """Whether the passes were worth their price."""
    low, high = difference.interval.low, difference.interval.high
    span = f"95 % interval {number(low)} to {number(high)} nats"
    if high < 0:
        return (
            f"{passes} passes give better probabilities than the mean-weight network: NLL falls "
            f"by {number(-difference.value)} ({span} for the change)."
        )
    if low > 0:
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


def _split(by_key: dict[str, MetricRow]) -> str:
    """Where the uncertainty comes from."""
    own = by_key["mutual_information"].monte_carlo.value / by_key["entropy"].monte_carlo.value
    return (
        f"{share(own, 0)} of the uncertainty is attributed to the network's weights (mutual "
        "information), which more training data of the right kind can reduce; the rest to the "
        "inputs themselves."
    )
