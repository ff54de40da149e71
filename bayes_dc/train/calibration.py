"""``calibration.json`` of a checkpoint: temperature and policy, fitted on the validation split.

Written into the folder of the weights that it was fitted for, and refused for any others: saving a
checkpoint replaces the folder, and the file holds the weights' checksum.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from bayes_dc.datasets import Settings
from bayes_dc.mc import Prediction, temper
from bayes_dc.metrics import Policy, PolicyScore
from bayes_dc.train.checkpoint import CALIBRATION_FILE, META_FILE, MODEL_FILE, find_checkpoint
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.folder import read_file, replace_file
from bayes_dc.train.meta import MOST_BYTES, read_meta, unreadable
from bayes_dc.types import __version__

SCHEMA_VERSION: Literal[1] = 1

TemperatureChoice = Literal["none", "logits", "mean"]
"""What a temperature divides: nothing, the logits of every pass, or the log of their mean."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]

_FOREIGN = (
    "{path} was not written by scripts/calibrate.py: schema_name must be bayes_dc.calibration. "
    "Remove it, or calibrate again."
)
_VERSION = (
    "{path}: schema version {got!r}; this version reads {want}. Use bayes_dc {package}, which "
    "wrote it, or calibrate again with --overwrite."
)
_OTHER = (
    "{path} was fitted for other weights than those beside it, so its promises do not hold. Remove "
    "it, or calibrate again with --overwrite."
)
_CANNOT_WRITE = (
    "cannot write {path}: {why}. The previous calibration, if any, is kept; make room or give "
    "yourself the right to write."
)
_PASSES = "The calibration was made with T = {was} passes; this prediction has T = {now}."
_SEED = "The calibration was made with masks of seed {was}; this prediction has seed {now}."
_THEREFORE = "What it promises holds for predictions made like those it was fitted on."


class SavedPolicy(Settings):
    """``metrics.Policy`` as it stands in the file; a threshold of null accepts every input.

    Attributes:
        score: Uncertainty that is compared.
        threshold: Inputs with at most this are accepted.
        target_kind: What was asked for.
        target: Risk or coverage asked for.
        confidence: Probability that the promise holds.
        n: Number of calibration inputs.
        bound: What is promised.
        accepted: Calibration inputs that are accepted.
        errors: Wrong predictions among these.
    """

    score: PolicyScore
    threshold: float | None
    target_kind: Literal["risk", "coverage"]
    target: _Share
    confidence: _Share
    n: _Count
    bound: _Share
    accepted: _Count
    errors: _Count


class SavedTemperature(Settings):
    """A temperature as it stands in the file.

    Attributes:
        value: τ, 0.01 … 100; fits end between 0.05 and 20.
        kind: What it divides: the logits of every pass, or the log of their mean.
        standard_error: Of τ, over other inputs of the same kind.
        nll_before: NLL without it on the inputs that it was fitted on, nats.
        nll_after: NLL with it on these, nats.
        n: Number of inputs that it was fitted on.
    """

    value: float = Field(ge=0.01, le=100)
    kind: Literal["logits", "mean"]
    standard_error: float = Field(ge=0)
    nll_before: float
    nll_after: float
    n: _Count


class CalibrationState(Settings):
    """What was fitted on the validation split of a checkpoint.

    Attributes:
        schema_name: Marks the file as ours.
        schema_version: Layout of the file.
        package_version: Version of bayes_dc that wrote it.
        model_sha256: Checksum of the weights; filled in when saved.
        T: Passes of the predictions.
        seed: Seed of their masks.
        fitted: The temperature; None: predictions are left as they are.
        saved_policy: The policy; None: nothing is abstained from.
        data: What the validation split is (name, number of inputs, sha256 …).
        notes: What a reader must know, one sentence each.
    """

    schema_name: Literal["bayes_dc.calibration"] = "bayes_dc.calibration"
    schema_version: Literal[1] = SCHEMA_VERSION
    package_version: str = __version__
    model_sha256: str = ""
    T: int = Field(ge=1)
    seed: int = Field(ge=0, lt=2**64)
    fitted: SavedTemperature | None = None
    saved_policy: SavedPolicy | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def temperature(self) -> float:
        """Temperature τ; 1 where none was fitted."""
        return self.fitted.value if self.fitted else 1.0

    @property
    def kind(self) -> TemperatureChoice:
        """What the temperature divides."""
        return self.fitted.kind if self.fitted else "none"

    @property
    def policy(self) -> Policy | None:
        """The policy, or None."""
        if self.saved_policy is None:
            return None
        values = self.saved_policy.model_dump()
        if values["threshold"] is None:
            values["threshold"] = math.inf
        return Policy(**values)

    def temper(self, prediction: Prediction) -> Prediction:
        """Apply the temperature.

        Args:
            prediction: With samples, unless there is no temperature.

        Returns:
            The tempered prediction, see ``mc.temper``.
        """
        if self.fitted is None:
            return prediction
        return temper(prediction, self.fitted.value, self.fitted.kind)

    def mismatches(self, *, T: int, seed: int) -> list[str]:
        """Say where predictions are made in another way than those that were calibrated on.

        Args:
            T: Passes of the predictions.
            seed: Seed of their masks.

        Returns:
            Sentences for a reader; none if nothing differs.
        """
        found = [] if self.T == T else [_PASSES.format(was=self.T, now=T)]
        found += [] if self.seed == seed else [_SEED.format(was=self.seed, now=seed)]
        return [f"{sentence} {_THEREFORE}" for sentence in found]


def saved_policy(policy: Policy) -> SavedPolicy:
    """Turn a policy into what the file holds.

    Args:
        policy: Policy.

    Returns:
        The same, with null for an infinite threshold.
    """
    values = dict(vars(policy))
    if math.isinf(policy.threshold):
        values["threshold"] = None
    return SavedPolicy(**values)


def policy_scores(prediction: Prediction, score: PolicyScore) -> Tensor:
    """Return the uncertainty that a policy compares.

    Args:
        prediction: Tempered, if the policy was chosen on tempered predictions.
        score: Name of the uncertainty.

    Returns:
        Float64 ``[B]``, higher is less sure; ``"max_probability"`` is 1 − confidence.
    """
    if score == "max_probability":
        return 1.0 - prediction.confidence
    return prediction.entropy if score == "entropy" else prediction.mutual_information


def save_calibration(folder: str | Path, state: CalibrationState) -> Path:
    """Write the calibration beside the weights, all at once; replaces a previous one.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).
        state: What was fitted; the checksum of the weights is filled in.

    Returns:
        The file.

    Raises:
        CheckpointError: If there is no checkpoint or the file cannot be written.
    """
    current = find_checkpoint(folder)
    path = current / CALIBRATION_FILE
    full = state.model_copy(update={"model_sha256": _checksum(current)})
    try:
        replace_file(path, (full.model_dump_json(indent=1) + "\n").encode())
    except OSError as error:
        raise CheckpointError(_CANNOT_WRITE.format(path=path, why=error.strerror)) from error
    return path


def load_calibration(folder: str | Path) -> CalibrationState | None:
    """Read the calibration of a checkpoint.

    Args:
        folder: A checkpoint or a run's output folder (see ``find_checkpoint``).

    Returns:
        What was fitted; None if the checkpoint was never calibrated.

    Raises:
        CheckpointError: If the file is damaged, not ours, of another schema version, or was fitted
            for other weights.
    """
    current = find_checkpoint(folder)
    path = current / CALIBRATION_FILE
    try:
        content = read_file(path, MOST_BYTES)
        raw = json.loads(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(unreadable(path, error)) from error
    if not isinstance(raw, dict) or raw.get("schema_name") != "bayes_dc.calibration":
        raise CheckpointError(_FOREIGN.format(path=path))
    if raw.get("schema_version") != SCHEMA_VERSION:
        text = _VERSION.format(
            path=path,
            got=raw.get("schema_version"),
            want=SCHEMA_VERSION,
            package=raw.get("package_version"),
        )
        raise CheckpointError(text)
    try:
        state = CalibrationState.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(unreadable(path, f"{where}: {first['msg']}")) from error
    if state.model_sha256 != _checksum(current):
        raise CheckpointError(_OTHER.format(path=path))
    return state


def _checksum(current: Path) -> str:
    """SHA-256 of the weights, as the checkpoint has it; loading the weights compares it."""
    path = current / META_FILE
    checksum = read_meta(path).sha256.get(MODEL_FILE)
    if checksum is None:
        raise CheckpointError(unreadable(path, f"it has no SHA-256 of {MODEL_FILE}"))
    return checksum
