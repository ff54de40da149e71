"""Everything a reader must know before believing a number."""

from bayes_dc.report.estimate import FEWEST
from bayes_dc.report.evaluation import Evaluation
from bayes_dc.report.tables import infinite_nll_count

_NO_LABELS = (
    "The labels of these inputs are not known or not used: accuracy, negative log-likelihood, "
    "Brier score, calibration and everything about mistakes are left out."
)

_FEW = (
    "Few inputs ({n}): their intervals are too narrow, and have no width where all inputs score "
    "the same. Nothing is called better or worse with fewer than {fewest}."
)


def cautions(evaluation: Evaluation) -> list[str]:
    """Collect what a reader must know.

    Args:
        evaluation: What was predicted.

    Returns:
        Sentences: those of the evaluation first.
    """
    texts = list(evaluation.warnings)
    ids = [evaluation.ids[i] for i in evaluation.nonfinite_inputs]
    if ids:
        texts.append(f"{len(ids)} inputs hold NaN or infinite values: {_some(ids)}.")
    use = evaluation.usable
    left_out = [evaluation.ids[i] for i in (~use).nonzero().flatten().tolist()]
    if left_out:
        text = (
            f"{len(left_out)} of {len(evaluation)} inputs have no finite prediction and are in no "
            f"metric: {_some(left_out)}."
        )
        if evaluation.labels is not None:
            right = evaluation.prediction.predicted[use] == evaluation.labels[use]
            share = int(right.sum()) / len(evaluation)
            text += f" Counted as wrong they would make the accuracy {share:.4f}."
        texts.append(text)
    infinite = infinite_nll_count(evaluation)
    if infinite:
        texts.append(
            f"{infinite} inputs gave their label probability 0: the negative log-likelihood is "
            "infinite because of them."
        )
    if evaluation.prediction.T == 1:
        texts.append(
            "T = 1 is a single random draw of the network, not a mean over passes: there is no "
            "mutual information. Use 50 passes or more."
        )
    if 0 < int(use.sum()) < FEWEST:
        texts.append(_FEW.format(n=int(use.sum()), fewest=FEWEST))
    if evaluation.labels is None:
        texts.append(_NO_LABELS)
    return texts


def _some(ids: list[str], count: int = 10) -> str:
    """The first ids, and how many more there are."""
    more = f" and {len(ids) - count} more" if len(ids) > count else ""
    return ", ".join(ids[:count]) + more
