"""report.json: everything the report says, as plain data.

JSON has no infinities and no NaN: an infinite number is written as the string ``"inf"`` or
``"-inf"``, a number that does not exist as ``null``. Only ``created`` and ``cost`` differ between
two runs of the same command on one machine.
"""

import math
from dataclasses import asdict
from datetime import UTC, datetime

from bayes_dc.report.certainty import certainty_rows
from bayes_dc.report.evaluation import Cost, Evaluation
from bayes_dc.report.findings import findings
from bayes_dc.report.ranking import least_certain, look_first, most_certain
from bayes_dc.report.tables import (
    Estimate,
    MetricRow,
    infinite_nll_count,
    metric_rows,
    reliability,
    review_rows,
)

SCHEMA = "bayes_dc.report"
SCHEMA_VERSION = 1

_NO_LABELS = (
    "The labels of these inputs are not known or not used: accuracy, negative log-likelihood, "
    "Brier score, calibration and everything about mistakes are left out."
)


def build_document(evaluation: Evaluation, created: datetime) -> dict[str, object]:
    """Collect all numbers of a report.

    Args:
        evaluation: What was predicted.
        created: Time to be stated, with its zone; written in UTC.

    Returns:
        Nested dicts, lists, strings, numbers and None; no number is NaN or infinite.
    """
    prediction = evaluation.prediction
    rows, review, curve = metric_rows(evaluation), review_rows(evaluation), reliability(evaluation)
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": created.astimezone(UTC).isoformat(timespec="seconds"),
        "n": len(evaluation),
        "n_in_metrics": int(evaluation.usable.sum()),
        "labels_known": evaluation.labels is not None,
        "warnings": _warnings(evaluation),
        "data": dict(evaluation.data or {}),
        "classes": list(evaluation.class_names),
        "run": {"T": prediction.T, "seed": prediction.seed} | dict(evaluation.run or {}),
        "p_effective": dict(prediction.p_effective),
        "dropout": dict(prediction.dropout),
        "findings": findings(evaluation, rows, review),
        "metrics": {row.key: _metric(row) for row in rows},
        "infinite_nll": infinite_nll_count(evaluation) if curve is not None else None,
        "reliability": None
        if curve is None
        else {
            "edges": curve.edges.tolist(),
            "count": curve.count.tolist(),
            "confidence": curve.confidence.tolist(),
            "accuracy": curve.accuracy.tolist(),
        },
        "review": [asdict(row) for row in review],
        "certainty": [asdict(row) for row in certainty_rows(evaluation)],
        "look_first": [
            {
                "title": group.title,
                "advice": group.advice,
                "total": group.total,
                "inputs": [describe_input(evaluation, i) for i in group.indices],
            }
            for group in look_first(evaluation)
        ],
        "most_certain": [describe_input(evaluation, i) for i in most_certain(evaluation)],
        "least_certain": [describe_input(evaluation, i) for i in least_certain(evaluation)],
        "nonfinite_inputs": [evaluation.ids[i] for i in evaluation.nonfinite_inputs],
        "checkpoint": dict(evaluation.checkpoint or {}),
        "environment": dict(evaluation.environment or {}),
        "cost": _cost(evaluation.cost, len(evaluation), prediction.T),
    }
    return {key: _plain(value) for key, value in document.items()}


def describe_input(evaluation: Evaluation, index: int) -> dict[str, object]:
    """Collect the numbers of one input.

    Args:
        evaluation: What was predicted.
        index: Position of the input.

    Returns:
        Its id, position, label (None if unknown), predicted class, confidence and uncertainties.
    """
    prediction, names = evaluation.prediction, evaluation.class_names
    label = None if evaluation.labels is None else names[int(evaluation.labels[index])]
    finite = bool(prediction.mean[index].isfinite().all())
    return {
        "id": evaluation.ids[index],
        "index": index,
        "label": label,
        "predicted": names[int(prediction.mean[index].argmax())] if finite else None,
        "confidence": prediction.mean[index].max().item(),
        "entropy": prediction.entropy[index].item(),
        "expected_entropy": prediction.expected_entropy[index].item(),
        "mutual_information": prediction.mutual_information[index].item(),
    }


def _metric(row: MetricRow) -> dict[str, object]:
    """One metric as plain data."""
    return {
        "title": row.title,
        "definition": row.definition,
        "range": row.range,
        "better": row.direction,
        "unit": row.unit,
        "n": row.n,
        "monte_carlo": _estimate(row.monte_carlo),
        "mean_network": _estimate(row.mean_network),
        "difference": _estimate(row.difference),
    }


def _estimate(estimate: Estimate | None) -> dict[str, object] | None:
    """A value with its interval as plain data."""
    if estimate is None:
        return None
    return {"value": estimate.value} | asdict(estimate.interval)


def _cost(cost: Cost, n: int, passes: int) -> dict[str, object]:
    """Cost with the rates that follow from it."""
    return asdict(cost) | {
        "ms_per_example": 1e3 * cost.seconds / n,
        "example_passes_per_second": n * passes / cost.seconds if cost.seconds > 0 else None,
    }


def _warnings(evaluation: Evaluation) -> list[str]:
    """Everything a reader must know before believing a number."""
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
    if evaluation.labels is None:
        texts.append(_NO_LABELS)
    return texts


def _some(ids: list[str], count: int = 10) -> str:
    """The first ids, and how many more there are."""
    more = f" and {len(ids) - count} more" if len(ids) > count else ""
    return ", ".join(ids[:count]) + more


def _plain(value: object) -> object:
    """Replace what JSON cannot say: NaN by None, infinities by strings, tuples by lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
