"""The layout of report.json, version 2, as pydantic models; schema/report-v2.json is made of it.

Only added keys keep the version; a key that goes, or changes its meaning, raises it.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayes_dc.report.evaluation import ReportError
from bayes_dc.report.layout_parts import (
    AbstentionPart,
    CertaintyPart,
    ComparedPart,
    ConvergencePart,
    CostPart,
    Count,
    DefinitionPart,
    MetricPart,
    Number,
    OODPart,
    Part,
    ReliabilityPart,
    ReviewPart,
    RiskCurvePart,
    SeedsPart,
    Share,
    ShiftPart,
    SummaryPart,
    TemperaturePart,
)

SCHEMA: Literal["bayes_dc.report"] = "bayes_dc.report"
SCHEMA_VERSION: Literal[2] = 2
SCHEMA_FILE = "report-v2.json"

_READ = "{path} cannot be read: {why}. Name the report.json of a folder that mc_predict.py wrote."
_VERSION = (
    "{path} has schema {schema!r}, version {version!r}; this version of bayes_dc reads "
    "{want!r}, version {number}. Run scripts/mc_predict.py again to write a new report."
)


class ClassPart(Part):
    """One class."""

    name: str
    n: Count
    predicted: Count
    recall: Number
    precision: Number
    confidence: Number
    entropy: Number
    mutual_information: Number
    mistaken_for: str | None
    mistaken: Count
    recall_interval: tuple[Share, Share] | None = None
    precision_interval: tuple[Share, Share] | None = None


class InputPart(Part):
    """One input."""

    id: str
    index: Count
    label: str | None
    predicted: str | None
    confidence: Number
    entropy: Number
    expected_entropy: Number
    mutual_information: Number
    accepted: bool | None


class LookFirstPart(Part):
    """Inputs that deserve a person's time, with the reason."""

    title: str
    advice: str
    total: Count
    inputs: list[InputPart]


class RunPart(BaseModel):
    """Options of the run; others may stand beside."""

    model_config = ConfigDict(extra="allow", frozen=True)

    T: Annotated[int, Field(ge=1)]
    seed: Count


class Report(Part):
    """A whole report."""

    model_config = ConfigDict(title="Report of bayes_dc, version 2")

    schema_name: Literal["bayes_dc.report"] = Field(alias="schema")
    schema_version: Literal[2]
    created: str = Field(description="ISO 8601, UTC")
    n: Count
    n_in_metrics: Count
    labels_known: bool
    warnings: list[str]
    name: str
    data: dict[str, Any]
    classes: list[str]
    run: RunPart
    p_effective: dict[str, Share]
    dropout: dict[str, Share]
    temperature: TemperaturePart | None
    summary: SummaryPart
    metrics: dict[str, MetricPart]
    infinite_nll: Count | None
    reliability: ReliabilityPart | None
    review: list[ReviewPart]
    certainty: list[CertaintyPart]
    risk_coverage: list[RiskCurvePart]
    abstention: AbstentionPart | None
    ood: list[OODPart]
    shift: ShiftPart | None
    convergence: list[ConvergencePart]
    seeds: SeedsPart | None
    compared: list[ComparedPart]
    definitions: list[DefinitionPart]
    per_class: list[ClassPart]
    look_first: list[LookFirstPart]
    most_certain: list[InputPart]
    least_certain: list[InputPart]
    nonfinite_inputs: list[str]
    checkpoint: dict[str, Any]
    environment: dict[str, Any]
    cost: CostPart


def published_schema() -> dict[str, Any]:
    """Read the JSON schema (draft 2020-12) of a report.

    Returns:
        The content of ``schema/report-v2.json``.
    """
    file = resources.files("bayes_dc.report") / "schema" / SCHEMA_FILE
    return json.loads(file.read_text(encoding="utf-8"))


def read_report(path: Path) -> Report:
    """Read a report.json and check its layout.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        ReportError: If it is missing, no JSON, no report, or of another version.
    """
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReportError(_READ.format(path=path, why=why)) from error
    found = raw if isinstance(raw, dict) else {}
    schema, version = found.get("schema"), found.get("schema_version")
    if (schema, version) != (SCHEMA, SCHEMA_VERSION):
        text = _VERSION.format(
            path=path, schema=schema, version=version, want=SCHEMA, number=SCHEMA_VERSION
        )
        raise ReportError(text)
    try:
        return Report.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ReportError(_READ.format(path=path, why=why)) from error
