"""``meta.json`` of a checkpoint: what the weights are."""

import json
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from bayes_dc.datasets import Normalisation, Settings
from bayes_dc.nn import MASK_SPEC_VERSION
from bayes_dc.train.errors import CheckpointError
from bayes_dc.train.folder import read_file
from bayes_dc.types import __version__

SCHEMA_VERSION: Literal[1] = 1

MOST_BYTES = 2**24
"""Largest ``meta.json``: read, JSON takes some twenty times as much memory."""

MOST_VALUES = 2**28
"""Largest input: images are resized to ``input_shape``, so it must not be absurd."""

_Positive = Annotated[int, Field(ge=1)]


class LayerMeta(Settings):
    """Masks of one DropConnect layer.

    Attributes:
        p: Drop probability asked for.
        p_effective: Drop probability of the masks.
        mask_layer: Number of the layer in the mask coordinates.
    """

    p: float
    p_effective: float
    mask_layer: int


class CheckpointMeta(Settings):
    """What a checkpoint says about its weights.

    Attributes:
        schema_name: Marks the file as ours.
        schema_version: Layout of the folder.
        package_version: Version of bayes_dc that wrote it.
        mask_spec_version: Mask specification (rng/SPEC.md) that the passes follow.
        config: Resolved configuration of the run, as in its ``config.yaml``.
        seed: Seed of weights, order and masks of the run.
        class_names: Name of every class.
        input_shape: ``(C, H, W)`` of one input.
        normalisation: Constants that turned pixels into inputs.
        epoch: Epochs that were trained.
        step: Steps that were trained.
        metrics: Metrics of that epoch.
        layers: Masks of every DropConnect layer, by module name; filled in when saved.
        sha256: Checksum of every other file of the folder; filled in when saved.
    """

    schema_name: Literal["bayes_dc.checkpoint"] = "bayes_dc.checkpoint"
    schema_version: Literal[1] = SCHEMA_VERSION
    package_version: str = __version__
    mask_spec_version: Literal[1] = MASK_SPEC_VERSION
    config: dict[str, Any]
    seed: int = Field(ge=0, lt=2**64)
    class_names: tuple[str, ...] = Field(min_length=1)
    input_shape: tuple[_Positive, _Positive, _Positive]
    normalisation: Normalisation
    epoch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    metrics: dict[str, float | int | None] = Field(default_factory=dict)
    layers: dict[str, LayerMeta] = Field(default_factory=dict)
    sha256: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _inputs_fit_in_memory(self) -> "CheckpointMeta":
        if prod(self.input_shape) > MOST_VALUES:
            raise ValueError(
                f"one input of input_shape {list(self.input_shape)} has over {MOST_VALUES} values"
            )
        return self

    @model_validator(mode="after")
    def _one_constant_per_channel(self) -> "CheckpointMeta":
        if len(self.normalisation.mean) != self.input_shape[0]:
            raise ValueError(
                f"normalisation has constants for {len(self.normalisation.mean)} channels, "
                f"input_shape {list(self.input_shape)} has {self.input_shape[0]}"
            )
        return self


def read_meta(path: Path) -> CheckpointMeta:
    """Read ``meta.json``, refusing what is not ours.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        CheckpointError: If it is missing, not JSON, foreign, or of another schema version.
    """
    try:
        content = read_file(path, MOST_BYTES)
        raw = json.loads(content)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(unreadable(path, error)) from error
    if not isinstance(raw, dict) or raw.get("schema_name") != "bayes_dc.checkpoint":
        raise CheckpointError(
            f"{path} was not written by bayes_dc: schema_name must be bayes_dc.checkpoint. Name "
            "the output_dir of a run of scripts/train.py."
        )
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path}: schema version {raw.get('schema_version')!r}; this version reads "
            f"{SCHEMA_VERSION}. Use bayes_dc {raw.get('package_version')}, which wrote it, or "
            "train again."
        )
    try:
        return CheckpointMeta.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(unreadable(path, f"{where}: {first['msg']}")) from error


def unreadable(path: Path, why: object) -> str:
    """Return the message for a file that cannot be understood.

    Args:
        path: The file.
        why: What is wrong with it.

    Returns:
        Text of a CheckpointError.
    """
    if isinstance(why, MemoryError):
        why = "it does not fit in memory"
    remedy = "Copy the folder again, or use another checkpoint of the run."
    return f"{path} cannot be read: {why}. {remedy}"
