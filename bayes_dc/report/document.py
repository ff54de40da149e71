"""report.json: everything the report says, as plain data.

JSON has no infinities and no NaN: an infinite number is written as the string ``"inf"`` or
``"-inf"``, a number that does not exist as ``null``. Only ``created`` and ``cost`` differ between
two runs of the same command on one machine. The layout is published as a JSON schema beside this
file, ``schema/report-v2.json``.
"""

import math
from dataclasses import asdict
from datetime import UTC, datetime

from bayes_dc.report.cautions import cautions
from bayes_dc.report.definitions import definitions
from bayes_dc.report.derived import ComparedNetwork, Derived
from bayes_dc.report.estimate import Estimate
from bayes_dc.report.evaluation import Cost, Evaluation
from bayes_dc.report.findings import findings
from bayes_dc.report.layout import SCHEMA, SCHEMA_VERSION
from bayes_dc.report.ood import MEASURES, OODRow, surest
from bayes_dc.report.ranking import least_certain, look_first, most_certain
from bayes_dc.report.sections import OODSet, RotatedInput, ShiftSweep
from bayes_dc.report.selective import AbstentionResult, accepted_inputs
from bayes_dc.report.tables import MetricRow, infinite_nll_count


def build_document(
    evaluation: Evaluation, derived: Derived, created: datetime
) -> dict[str, object]:
    """Collect all numbers of a report.

    Args:
        evaluation: What was predicted.
        derived: Its tables.
        created: Time to be stated, with its zone; written in UTC.

    Returns:
        Nested dicts, lists, strings, numbers and None; no number is NaN or infinite.
    """
    prediction, curve = evaluation.prediction, derived.curve
    temperature = evaluation.temperature
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": created.astimezone(UTC).isoformat(timespec="seconds"),
        "n": len(evaluation),
        "n_in_metrics": int(evaluation.usable.sum()),
        "labels_known": evaluation.labels is not None,
        "warnings": cautions(evaluation),
        "name": evaluation.name,
        "data": dict(evaluation.data or {}),
        "classes": list(evaluation.class_names),
        "run": {"T": prediction.T, "seed": prediction.seed} | dict(evaluation.run or {}),
        "p_effective": dict(prediction.p_effective),
        "dropout": dict(prediction.dropout),
        "temperature": None if temperature is None else asdict(temperature),
        "summary": asdict(findings(evaluation, derived)),
        "metrics": metrics(derived.rows),
        "infinite_nll": infinite_nll_count(evaluation) if curve is not None else None,
        "reliability": None
        if curve is None
        else {
            "edges": curve.edges.tolist(),
            "count": curve.count.tolist(),
            "confidence": curve.confidence.tolist(),
            "accuracy": curve.accuracy.tolist(),
        },
        "review": [asdict(row) for row in derived.review],
        "certainty": [asdict(row) for row in derived.certainty],
        "risk_coverage": [asdict(one) for one in derived.risk],
        "abstention": _abstention(derived.abstention),
        "ood": [_ood(evaluation, other, rows) for other, rows in derived.ood],
        "shift": _shift(evaluation, evaluation.shift),
        "convergence": [asdict(row) for row in evaluation.convergence],
        "seeds": {
            "seeds": [run.seed for run in evaluation.seeds],
            "metrics": [asdict(row) for row in derived.seeds],
        }
        if derived.seeds
        else None,
        "compared": [_compared(one) for one in derived.compared],
        "definitions": [asdict(one) for one in definitions(evaluation, derived)],
        "per_class": [asdict(row) for row in derived.classes],
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
        Its id, position, label (None if unknown), predicted class, confidence, uncertainties, and
        whether the policy accepts it (None without one).
    """
    prediction, names = evaluation.prediction, evaluation.class_names
    label = None if evaluation.labels is None else names[int(evaluation.labels[index])]
    finite = bool(prediction.mean[index].isfinite().all())
    accepted = accepted_inputs(evaluation)
    return {
        "id": evaluation.ids[index],
        "index": index,
        "label": label,
        "predicted": names[int(prediction.mean[index].argmax())] if finite else None,
        "confidence": prediction.mean[index].max().item(),
        "entropy": prediction.entropy[index].item(),
        "expected_entropy": prediction.expected_entropy[index].item(),
        "mutual_information": prediction.mutual_information[index].item(),
        "accepted": None if accepted is None else bool(accepted[index]),
    }


def metrics(rows: list[MetricRow]) -> dict[str, object]:
    """Write metrics as plain data.

    Args:
        rows: Metrics.

    Returns:
        By name: title, definition, range, direction, unit, section, n and the values.
    """
    return {
        row.key: {
            "title": row.title,
            "definition": row.definition,
            "range": row.range,
            "better": row.direction,
            "unit": row.unit,
            "section": row.section,
            "n": row.n,
            "monte_carlo": _estimate(row.monte_carlo),
            "mean_network": _estimate(row.mean_network),
            "difference": _estimate(row.difference),
        }
        for row in rows
    }


def _estimate(estimate: Estimate | None) -> dict[str, object] | None:
    """A value with its interval as plain data."""
    if estimate is None:
        return None
    return {"value": estimate.value} | asdict(estimate.interval)


def _abstention(result: AbstentionResult | None) -> dict[str, object] | None:
    """Promised and measured values of a policy."""
    return None if result is None else asdict(result)


def _ood(evaluation: Evaluation, other: OODSet, rows: list[OODRow]) -> dict[str, object]:
    """One set of other inputs."""
    names, prediction = evaluation.class_names, other.prediction
    return {
        "name": other.name,
        "n": len(prediction.mean),
        "data": dict(other.data),
        "rows": [_ood_row(row) for row in rows],
        "surest": [
            {
                "index": i,
                "predicted": names[int(prediction.mean[i].argmax())],
                "confidence": prediction.mean[i].max().item(),
                "entropy": prediction.entropy[i].item(),
                "mutual_information": prediction.mutual_information[i].item(),
            }
            for i in surest(other)
        ],
    }


def _ood_row(row: OODRow) -> dict[str, object]:
    """One uncertainty of one network."""
    return {
        "network": row.network,
        "score": row.score,
        "n_in": row.n_in,
        "n_out": row.n_out,
    } | {name: _estimate(row.measures[name]) for name in MEASURES}


def _shift(evaluation: Evaluation, shift: ShiftSweep | None) -> dict[str, object] | None:
    """Scores of changed inputs."""
    if shift is None:
        return None
    rotated = None if shift.rotated is None else _rotated(evaluation, shift.rotated)
    points = [
        {
            "shift": point.shift,
            "severity": point.severity,
            "n": point.n,
            "scores": {name: _estimate(value) for name, value in point.scores.items()},
        }
        for point in shift.points
    ]
    return {"points": points, "rotated": rotated}


def _rotated(evaluation: Evaluation, turned: RotatedInput) -> dict[str, object]:
    """One input at every angle."""
    names, mean = evaluation.class_names, turned.samples.mean(dim=0)
    return {
        "id": turned.id,
        "label": None if turned.label is None else names[turned.label],
        "degrees": list(turned.degrees),
        "predicted": [names[c] for c in mean.argmax(dim=1).tolist()],
        "mean": mean.tolist(),
    }


def _compared(network: ComparedNetwork) -> dict[str, object]:
    """Another network."""
    evaluation = network.named.evaluation
    return {
        "name": network.named.name,
        "checkpoint": dict(evaluation.checkpoint or {}),
        "T": evaluation.prediction.T,
        "metrics": metrics(network.rows),
        "differences": [
            {name: value for name, value in asdict(row).items() if name != "n"}
            | {"difference": _estimate(row.difference), "verdict": row.verdict}
            for row in network.differences
        ],
        "ood": {name: [_ood_row(row) for row in rows] for name, rows in network.ood.items()},
        "shift": _shift(evaluation, evaluation.shift),
        "cost": _cost(evaluation.cost, len(evaluation), evaluation.prediction.T),
    }


def _cost(cost: Cost, n: int, passes: int) -> dict[str, object]:
    """Cost with the rates that follow from it."""
    return asdict(cost) | {
        "ms_per_example": 1e3 * cost.seconds / n,
        "example_passes_per_second": n * passes / cost.seconds if cost.seconds > 0 else None,
    }


def _plain(value: object) -> object:
    """Replace what JSON cannot say: NaN by None, infinities by strings, tuples by lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
