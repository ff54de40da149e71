"""What was predicted about which inputs: everything that a report says is derived from this."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bayes_dc.mc.convergence import ConvergenceRow
from bayes_dc.mc.prediction import Prediction
from bayes_dc.metrics.policy import Policy
from bayes_dc.report.sections import OODSet, SeedRun, ShiftSweep, Temperature

_COUNT = (
    "{name} must have one entry per input, {rows} here because prediction.mean is {shape}; "
    "got {got}. Pass the {name} of exactly the inputs that were predicted, in the same order."
)
_CLASSES = (
    "class_names must name the {classes} classes of prediction.mean; got {got} names. "
    "The network and the data have another number of classes: use the data it was trained on."
)
_UNIQUE = "class_names must differ from each other; got {name!r} twice. Rename one of the classes."


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
        name: Name of the network, where others stand beside it.
        energy: −logsumexp of the mean-weight network's logits ``[N]`` on the CPU, or None.
        ood: Inputs of other kinds, predicted by the same network.
        shift: What happens when the inputs change, or None.
        convergence: Scores of the first passes, fewest first.
        temperature: Recalibration that ``prediction`` went through, or None.
        policy: Policy of abstention that was chosen on validation inputs, or None.
        seeds: The same inputs with masks of other seeds.
        compared: Other networks on the same inputs.

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
    name: str = ""
    energy: Tensor | None = None
    ood: Sequence[OODSet] = ()
    shift: ShiftSweep | None = None
    convergence: Sequence[ConvergenceRow] = ()
    temperature: Temperature | None = None
    policy: Policy | None = None
    seeds: Sequence[SeedRun] = ()
    compared: Sequence["Named"] = ()

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
            "energy": self.energy,
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


@dataclass(frozen=True)
class Named:
    """Another network and what it said about the same inputs.

    Attributes:
        name: Name of the network, for people.
        evaluation: Its predictions, in the order of the inputs.
    """

    name: str
    evaluation: Evaluation
