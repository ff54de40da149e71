"""The parts of report.json, version 2, as pydantic models."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = float | Literal["inf", "-inf"] | None
"""``"inf"`` and ``"-inf"`` stand for infinite numbers, null for one that does not exist."""
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Part(BaseModel):
    """Base of all parts: every key is known, and present but for those added later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EstimatePart(Part):
    """A value with its percentile bootstrap interval over inputs."""

    value: Number
    low: Number
    high: Number
    level: Share
    resamples: Count


class MetricPart(Part):
    """One metric: what it is, and its values."""

    title: str
    definition: str
    range: str
    better: Literal["higher", "lower", "zero", "none"]
    unit: Literal["share", "nats", ""]
    section: Literal["quality", "calibration", "selective", "uncertainty"]
    n: Count
    monte_carlo: EstimatePart
    mean_network: EstimatePart | None
    difference: EstimatePart | None = Field(description="Monte Carlo less mean-weight network")


class SummaryPart(Part):
    """Sentences for people."""

    knows: list[str]
    doubts: list[str]
    actions: list[str]


class TemperaturePart(Part):
    """Recalibration that the predictions went through."""

    value: Annotated[float, Field(gt=0)]
    kind: Literal["logits", "mean"]
    n: Count | None


class ReliabilityPart(Part):
    """Bins of the confidence."""

    edges: list[float]
    count: list[Count]
    confidence: list[Number]
    accuracy: list[Number]


class ReviewPart(Part):
    """What checking the most uncertain inputs by hand would bring."""

    share: Share
    reviewed: Count
    mistakes_found: Count
    mistakes: Count
    accuracy_of_rest: Number


class CertaintyPart(Part):
    """Areas over all thresholds."""

    uncertainty: str
    normalisation: str
    limits: str
    r_cc: Share
    r_iu: Share
    ua: Share
    r_cc_interval: tuple[Share, Share] | None = None
    r_iu_interval: tuple[Share, Share] | None = None
    ua_interval: tuple[Share, Share] | None = None


class RiskCurvePart(Part):
    """Error of the inputs that are answered, with pointwise 95 % intervals."""

    score: Literal["entropy", "mutual_information", "max_probability"]
    name: str
    coverage: list[Share]
    risk: list[Number]
    low: list[Number]
    high: list[Number]
    n: Count


class PolicyPart(Part):
    """A policy of abstention and its promise."""

    score: Literal["entropy", "mutual_information", "max_probability"]
    threshold: Number
    target_kind: Literal["risk", "coverage"]
    target: Share
    confidence: Share
    n: Count
    bound: Share
    accepted: Count
    errors: Count


class AbstentionPart(Part):
    """What a policy promised and what it did."""

    policy: PolicyPart
    accepted: Count
    n: Count
    coverage: Share
    coverage_interval: tuple[Share, Share]
    risk: Share | None
    risk_interval: tuple[Share, Share] | None
    kept: bool | None


class OODRowPart(Part):
    """One uncertainty of one network on one set; out-of-distribution inputs are positive."""

    network: str
    score: str
    n_in: Count
    n_out: Count
    auroc: EstimatePart
    aupr_out: EstimatePart
    aupr_in: EstimatePart
    fpr_at_95_tpr: EstimatePart


class OODInputPart(Part):
    """An input of another kind that the network is sure of."""

    index: Count
    predicted: str
    confidence: Number
    entropy: Number
    mutual_information: Number


class OODPart(Part):
    """A set of other inputs."""

    name: str
    n: Count
    data: dict[str, Any]
    rows: list[OODRowPart]
    surest: list[OODInputPart]


class ShiftPointPart(Part):
    """Scores under one shift of one severity."""

    shift: str
    severity: float = Field(description="0 (unchanged) … 5; degrees for turned")
    n: Count
    scores: dict[str, EstimatePart]


class RotatedPart(Part):
    """One input turned step by step."""

    id: str
    label: str | None
    degrees: list[float]
    predicted: list[str]
    mean: list[list[Number]]


class ShiftPart(Part):
    """Scores of changed inputs."""

    points: list[ShiftPointPart]
    rotated: RotatedPart | None


class ConvergencePart(Part):
    """Scores of the first T passes with their Monte Carlo standard errors."""

    T: Count
    n: Count
    nll: Number
    entropy: Number
    mutual_information: Number
    mutual_information_corrected: Number
    nll_se: Number
    entropy_se: Number
    mutual_information_se: Number
    input_mean_se: Number
    input_entropy_se: Number
    input_mutual_information_se: Number


class SeedScoresPart(Part):
    """One metric over seeds of the masks."""

    key: str
    title: str
    unit: Literal["share", "nats", ""]
    values: list[Number]
    mean: Number
    deviation: Number


class SeedsPart(Part):
    """All metrics over seeds of the masks."""

    seeds: list[Count]
    metrics: list[SeedScoresPart]


class DifferencePart(Part):
    """One metric of another network less that of the network of the report."""

    key: str
    title: str
    direction: Literal["higher", "lower", "zero", "none"]
    unit: Literal["share", "nats", ""]
    first: Number
    second: Number
    difference: EstimatePart | None
    verdict: Literal["better", "worse", "different", ""]


class CostPart(Part):
    """What the prediction took."""

    seconds: float
    peak_memory_bytes: Count | None
    peak_memory_kind: str
    ms_per_example: float
    example_passes_per_second: float | None


class ComparedPart(Part):
    """Another network on the same inputs."""

    name: str
    checkpoint: dict[str, Any]
    T: Count
    metrics: dict[str, MetricPart]
    differences: list[DifferencePart]
    ood: dict[str, list[OODRowPart]]
    shift: ShiftPart | None
    cost: CostPart


class DefinitionPart(Part):
    """One number in words."""

    term: str
    definition: str
    range: str
    better: Literal["higher", "lower", "zero", "none"]
    n: str
