"""Settings of network and training: sections ``model`` and ``train`` of a configuration."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bayes_dc.datasets import Settings
from bayes_dc.types import GAUSSIAN_SCOPE, MaskScale, MaskScope, Sampler

Amp = Literal["none", "bf16", "fp16"]
"""Mixed precision: the dtype of autocast, or none of it."""

Device = Literal["auto", "cpu", "cuda"]
"""``"auto"`` takes the GPU when there is one."""

_Positive = Annotated[int, Field(ge=1)]


ModelName = Literal["mlp", "lenet5", "cnn", "resnet18", "resnet20", "vgg16_bn"]
"""Networks of ``bayes_dc.models`` that can be named in a configuration."""


class ModelConfig(Settings):
    """A network and its DropConnect.

    Attributes:
        name: Architecture.
        hidden: Width of every hidden layer of ``mlp``, at most 1000, default [800, 800]; refused
            for others.
        dropout: Probability of the network's ``nn.Dropout`` modules, 0 … 1 (excluded); 0 leaves
            them out. Independent of ``p``.
        p: Drop probability of every converted weight, 0 … 1 (excluded); 0 leaves the network plain.
        select: Which layers to convert, or null for all: a list of names (``layer4`` means all
            layers in it) and patterns (``*.conv2``); those after ``!`` are left out. The last that
            fits a layer decides; ``[!conv1]`` means all but that.
        scope: Rows that share a mask, or null for each layer's own default (linear: ``row``,
            convolution: ``sample``).
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"`` masks, or ``"gaussian"`` draws, which need scope ``row`` and are
            for linear layers.
        exclude_last: Leave the output layer plain.
    """

    name: ModelName = "mlp"
    hidden: tuple[_Positive, ...] | None = Field(default=None, strict=False, max_length=1000)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    p: float = Field(default=0.5, ge=0, lt=1)
    select: tuple[str, ...] | None = Field(default=None, strict=False)
    scope: MaskScope | None = None
    scale: MaskScale = "inverted"
    sampler: Sampler = "bernoulli"
    exclude_last: bool = False

    @model_validator(mode="before")
    @classmethod
    def _hidden_has_a_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name", "mlp") == "mlp":
            return {**values, "hidden": values.get("hidden", (800, 800))}
        return values

    @model_validator(mode="after")
    def _options_are_read(self) -> "ModelConfig":
        if self.name != "mlp" and self.hidden is not None:
            raise ValueError(f"hidden is read by mlp only; name is {self.name}: remove it")
        if self.name == "mlp" and self.hidden is None:
            raise ValueError("mlp needs hidden, the widths of its hidden layers, e.g. [800, 800]")
        if self.select is not None and not self.select:
            raise ValueError("select names no pattern: write null for all layers, or p: 0 for none")
        for pattern in self.select or ():
            if not pattern.removeprefix("!"):
                raise ValueError(
                    "select: write names of layers, such as layer4, *.conv2 or !conv1; got "
                    f"{pattern!r}"
                )
        if self.sampler == "gaussian" and self.scope not in ("row", None):
            raise ValueError(GAUSSIAN_SCOPE.format(got=self.scope))
        return self


class OptimizerConfig(Settings):
    """The optimizer.

    Attributes:
        name: ``sgd``, ``adam`` (weight decay added to the gradient) or ``adamw`` (decoupled).
        lr: Peak learning rate, positive.
        momentum: Of ``sgd``, 0 … 1 (excluded).
        nesterov: Nesterov's form of ``sgd``'s momentum.
        weight_decay: At least 0.
        decay: What weight decay acts on: ``all`` parameters, or ``weights`` only, those of two and
            more dimensions: no biases, no scales of batch normalisation.
    """

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = Field(default=1e-3, gt=0, lt=1e38)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0, lt=1e38)
    decay: Literal["all", "weights"] = "all"

    @model_validator(mode="after")
    def _options_are_read(self) -> "OptimizerConfig":
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(
                f"momentum and nesterov are read by sgd only; name is {self.name}: remove them or "
                "set name: sgd"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0, e.g. 0.9")
        return self


class ScheduleConfig(Settings):
    """How the learning rate moves: a function of the step, so a resumed run is on the same curve.

    Attributes:
        name: ``constant``; ``cosine`` (to 0 at the end of the last epoch); ``multistep``.
        warmup_epochs: Linear rise from 0 over the first epochs; before and in place of the curve.
        milestones: Epochs from which ``multistep`` multiplies by ``gamma`` once more, ascending.
        gamma: Factor of ``multistep``, 0 … 1.
    """

    name: Literal["constant", "cosine", "multistep"] = "constant"
    warmup_epochs: int = Field(default=0, ge=0)
    milestones: tuple[_Positive, ...] = Field(default=(), strict=False)
    gamma: float = Field(default=0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _milestones_go_with_multistep(self) -> "ScheduleConfig":
        if self.name == "multistep" and not self.milestones:
            raise ValueError("multistep needs milestones, epochs in ascending order, e.g. [60, 90]")
        if self.name != "multistep" and self.milestones:
            raise ValueError(
                f"milestones are read by multistep only; name is {self.name}: remove them"
            )
        if any(a >= b for a, b in zip(self.milestones, self.milestones[1:], strict=False)):
            raise ValueError(f"milestones must ascend; got {list(self.milestones)}")
        return self


class AugmentConfig(Settings):
    """What is done to training images, anew in every epoch.

    Attributes:
        shift: Pixels that an image moves at most in each direction; what lies beyond the border is
            its mirror image. 0 moves nothing.
        flip: Mirror every second image, left and right exchanged.
        cutout: Side in pixels of a square that is set to 0, which is the mean of the pixels with
            ``scaling: standard``; its centre is anywhere in the image. 0 cuts nothing.
    """

    shift: int = Field(default=0, ge=0)
    flip: bool = False
    cutout: int = Field(default=0, ge=0)

    @property
    def is_on(self) -> bool:
        """Whether anything is done."""
        return self.shift > 0 or self.flip or self.cutout > 0


class TrainConfig(Settings):
    """How the network is trained.

    Attributes:
        epochs: Passes over the training split.
        batch_size: Samples per step. The last batch of an epoch is smaller, never dropped.
        optimizer: The optimizer.
        schedule: Learning rate over time.
        augment: Random changes of the training images.
        label_smoothing: Share of the target that is spread over all classes, 0 … 1 (excluded).
        amp: Mixed precision of training; evaluation is always float32.
        device: Where to train.
        channels_last: Keep images and weights of convolutions in channels-last memory; faster on
            a GPU, the same results to rounding.
        cuda_graph: On a GPU, replay forward and backward of full batches as a CUDA graph: the host
            no longer sets the time. The same results; on a CPU it says nothing.
        grad_clip: Largest norm of the whole gradient, or null for no clipping.
        log_every: Steps between two looks at the loss; a GPU is waited for only then.
        checkpoint_every: Epochs between two saves of ``last``; the final epoch is always saved.
        rank_timeout_seconds: With ``torchrun``, how long a rank waits for the others.
    """

    epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=128, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    amp: Amp = "none"
    device: Device = "auto"
    channels_last: bool = False
    cuda_graph: bool = True
    grad_clip: float | None = Field(default=None, gt=0)
    log_every: int = Field(default=100, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)
    rank_timeout_seconds: float = Field(default=600.0, ge=1, le=1e6)

    @model_validator(mode="after")
    def _warmup_ends(self) -> "TrainConfig":
        if self.schedule.warmup_epochs >= self.epochs and self.schedule.warmup_epochs > 0:
            raise ValueError(
                f"schedule.warmup_epochs must be below epochs={self.epochs}; got "
                f"{self.schedule.warmup_epochs}"
            )
        return self
