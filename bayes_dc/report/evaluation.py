"""What was predicted about which inputs: everything that a report says is derived from this."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from bayes_dc.mc.prediction import Prediction

_COUNT = (
    "{name} must have one entry per input, {rows} here because prediction.mean is {shape}; "
    "got {got}. Pass the {name} of exactly the inputs that were predicted, in the same order."
)
_CLASSES = (
    "class_names must name the {classes} classes of prediction.mean; got {got} names. "
    "The network and the data have another number of classes: use the data it was trained on."
)
_UNIQUE = "class_names must differ from each other; got {name!r} twice. Rename one of the classes."
_NOTHING = "no predictions to join; predict at least one batch."
_RUNS = (
    "predictions to be joined must come from one run; got {name} = {first!r} and {other!r}. "
    "Predict all batches with the same T, seed and model."
)


class ReportError(ValueError):
    """The report cannot be made or written; the message says what to do."""


@dataclass(frozen=True)
class Cost:
    """What a prediction took.

    Attributes:
        seconds: Wall time of all Monte Carlo passes over all inputs, without loading data.
        peak_memory_bytes: Highest memory use so far, or None where it cannot be told.
        peak_memory_kind: What was counted: allocated device memory, or the process on the CPU.
    """

    seconds: float
    peak_memory_bytes: int | None
    peak_memory_kind: str


@dataclass(frozen=True)
class Evaluation:
    """Predictions for N inputs and all that is known about these.

    Attributes:
        prediction: Monte Carlo statistics of the N inputs over C classes, on the CPU.
        ids: Name of every input, N of them.
        class_names: Name of every class, C different ones.
        image: Gives the picture of input i as uint8 ``[H, W, 1 or 3]``.
        cost: What the prediction took.
        labels: Class of every input, int64 ``[N]``, or None if unknown.
        mean_network: Class probabilities of the mean-weight network ``[N, C]`` on the CPU, or None.
        data: Where the inputs come from (name, split, sha256 …); goes into the report as it is.
        checkpoint: What the model is (folder, resolved configuration …); goes into the report.
        run: Options of the run (device, batch size …); goes into the report.
        environment: Versions and hardware; goes into the report.
        warnings: What a reader must know, one sentence each.
        nonfinite_inputs: Inputs that hold NaN or infinite values, by position.

    Raises:
        ReportError: If lengths differ or class names repeat.
    """

    prediction: Prediction
    ids: Sequence[str]
    class_names: Sequence[str]
    image: Callable[[int], np.ndarray]
    cost: Cost
    labels: Tensor | None = None
    mean_network: Tensor | None = None
    data: Mapping[str, object] | None = None
    checkpoint: Mapping[str, object] | None = None
    run: Mapping[str, object] | None = None
    environment: Mapping[str, object] | None = None
    warnings: Sequence[str] = ()
    nonfinite_inputs: Sequence[int] = ()

    def __post_init__(self) -> None:
        rows, classes = self.prediction.mean.shape
        if rows == 0:
            raise ReportError("no samples: there is nothing to report on.")
        if len(self.class_names) != classes:
            raise ReportError(_CLASSES.format(classes=classes, got=len(self.class_names)))
        for index, name in enumerate(self.class_names):
            if name in self.class_names[:index]:
                raise ReportError(_UNIQUE.format(name=name))
        sized: dict[str, Sequence[str] | Tensor | None] = {
            "ids": self.ids,
            "labels": self.labels,
            "mean_network": self.mean_network,
        }
        for key, value in sized.items():
            if value is not None and len(value) != rows:
                shape = list(self.prediction.mean.shape)
                text = _COUNT.format(name=key, rows=rows, shape=shape, got=len(value))
                raise ReportError(text)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def usable(self) -> Tensor:
        """Inputs whose predictions are numbers, bool ``[N]``: metrics are computed on these."""
        usable = self.prediction.mean.isfinite().all(dim=1)
        if self.mean_network is not None:
            usable &= self.mean_network.isfinite().all(dim=1)
        return usable


def join_predictions(parts: Sequence[Prediction]) -> Prediction:
    """Join the predictions of consecutive batches, on the CPU.

    Args:
        parts: Predictions of one run, in the order of the inputs; samples are left out.

    Returns:
        One prediction; ``elapsed_seconds`` is the sum.

    Raises:
        ReportError: If there is nothing to join or the runs differ in T, seed, p_effective or
            active dropout.
    """
    if not parts:
        raise ReportError(_NOTHING)
    for name in ("T", "seed", "p_effective", "dropout"):
        values = [getattr(part, name) for part in parts]
        for other in values[1:]:
            if other != values[0]:
                raise ReportError(_RUNS.format(name=name, first=values[0], other=other))
    tensors = {
        field.name: torch.cat([getattr(part, field.name).cpu() for part in parts])
        for field in fields(Prediction)
        if field.name != "samples" and isinstance(getattr(parts[0], field.name), Tensor)
    }
    return Prediction(
        **tensors,
        samples=None,
        T=parts[0].T,
        seed=parts[0].seed,
        p_effective=parts[0].p_effective,
        elapsed_seconds=sum(part.elapsed_seconds for part in parts),
        dropout=parts[0].dropout,
    )
