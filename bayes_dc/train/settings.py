"""Settings of network and training: sections ``model`` and ``train`` of a configuration."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bayes_dc.datasets import Settings
from bayes_dc.types import GAUSSIAN_SCOPE, MaskScale, MaskScope, Sampler

Amp = Literal["none", "bf16", "fp16"]
"""Mixed precision: the dtype of autocast, or none of it."""

Device = Literal["auto", "cpu", "cuda"]
"""``"auto"`` takes the GPU when there is one."""

_Positive = Annotated[int, Field(ge=1)]


class ModelConfig(Settings):
    """A network and its DropConnect.

    Attributes:
        name: Architecture.
        hidden: Width of every hidden layer.
        p: Drop probability of every converted weight, 0 … 1 (excluded); 0 leaves the network plain.
        scope: Rows that share a mask.
        scale: ``"inverted"`` or ``"none"``.
        sampler: ``"bernoulli"`` masks, or ``"gaussian"`` draws, which need scope ``row``.
        exclude_last: Leave the output layer plain.
    """

    name: Literal["mlp"] = "mlp"
    hidden: tuple[_Positive, ...] = Field(default=(800, 800), strict=False)
    p: float = Field(default=0.5, ge=0, lt=1)
    scope: MaskScope = "row"
    scale: MaskScale = "inverted"
    sampler: Sampler = "bernoulli"
    exclude_last: bool = False

    @model_validator(mode="after")
    def _sampler_has_the_scope(self) -> "ModelConfig":
        if self.sampler == "gaussian" and self.scope != "row":
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
    """

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = Field(default=1e-3, gt=0, lt=1e38)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0, lt=1e38)

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


class TrainConfig(Settings):
    """How the network is trained.

    Attributes:
        epochs: Passes over the training split.
        batch_size: Samples per step. The last batch of an epoch is smaller, never dropped.
        optimizer: The optimizer.
        schedule: Learning rate over time.
        amp: Mixed precision of training; evaluation is always float32.
        device: Where to train.
        grad_clip: Largest norm of the whole gradient, or null for no clipping.
        log_every: Steps between two looks at the loss; a GPU is waited for only then.
        checkpoint_every: Epochs between two saves of ``last``; the final epoch is always saved.
    """

    epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=128, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    amp: Amp = "none"
    device: Device = "auto"
    grad_clip: float | None = Field(default=None, gt=0)
    log_every: int = Field(default=100, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _warmup_ends(self) -> "TrainConfig":
        if self.schedule.warmup_epochs >= self.epochs and self.schedule.warmup_epochs > 0:
            raise ValueError(
                f"schedule.warmup_epochs must be below epochs={self.epochs}; got "
                f"{self.schedule.warmup_epochs}"
            )
        return self
