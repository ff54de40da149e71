"""What was predicted about which inputs: everything that a report says is derived from this."""

import json
import math
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
_TEXTS = "{name} must be texts; got {got!r} ({kind}). Pass [str(one) for one in {name}]."
_TENSOR = "{name} must be a torch.Tensor; got {got}. Wrap it: torch.as_tensor({name})."
_PICTURE = (
    "{name} must give uint8 arrays [H, W, 1 or 3], pixels 0 … 255; for the first input it gave "
    "{got}. For a picture [H, W] give picture[..., None]; for a float one in 0 … 1 "
    "(255 * picture).round().astype(np.uint8)."
)
_JSON = (
    "{name} must hold what JSON can: texts, finite numbers, True, False, None, lists and mappings "
    "of these; {why}. Turn the rest into text: str(path)."
)
_SECONDS = "Cost.seconds must be a finite number of at least 0; got {got!r}."


class ReportError(ValueError):
    """The report cannot be made or written; the message says what to do."""


@dataclass(frozen=True)
class Cost:
    """What a prediction took.

    Attributes:
        seconds: Wall time of all Monte Carlo passes over all inputs, without loading data.
        peak_memory_bytes: Highest memory use so far, or None where it cannot be told.
        peak_memory_kind: What was counted: allocated device memory, or the process on the CPU.

    Raises:
        ReportError: If the time is no time.
    """

    seconds: float
    peak_memory_bytes: int | None
    peak_memory_kind: str

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ReportError(_SECONDS.format(got=self.seconds))


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
        ReportError: If lengths differ, class names repeat, or something is of another kind than
            said here; of pictures the first is looked at.
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
        for key, texts in (("class_names", self.class_names), ("ids", self.ids)):
            other = next((one for one in texts if not isinstance(one, str)), None)
            if other is not None:
                raise ReportError(_TEXTS.format(name=key, got=other, kind=type(other).__name__))
        for key in ("labels", "mean_network", "energy"):
            got = getattr(self, key)
            if got is not None and not isinstance(got, Tensor):
                raise ReportError(_TENSOR.format(name=key, got=type(got).__name__))
        for key in ("data", "checkpoint", "run", "environment"):
            _check_json(key, getattr(self, key))
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
        _check_picture("image", self.image(0))
        for other_set in self.ood:
            if len(other_set.prediction.mean):
                _check_picture(f"image of {other_set.name}", other_set.image(0))

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


def _check_json(name: str, value: Mapping[str, object] | None) -> None:
    """Refuse what report.json cannot hold."""
    try:
        json.dumps(None if value is None else dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        why = str(error)
        raise ReportError(_JSON.format(name=name, why=why[:1].lower() + why[1:])) from error


def _check_picture(name: str, picture: object) -> None:
    """Refuse what is no picture."""
    known = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3
    if known and isinstance(picture, np.ndarray) and picture.shape[2] in (1, 3) and picture.size:
        return
    got = type(picture).__name__
    if isinstance(picture, np.ndarray):
        got = f"{picture.dtype} {list(picture.shape)}"
    raise ReportError(_PICTURE.format(name=name, got=got))
