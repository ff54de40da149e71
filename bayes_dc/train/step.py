"""A step of training; on a GPU its forward and backward are replayed as a CUDA graph.

A network of DropConnect layers launches hundreds of kernels a step, and the host needs longer to
launch them than the GPU to run them. A graph is one launch.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from bayes_dc.nn import MaskKeys, dropconnect_layers
from bayes_dc.train.errors import TrainingError
from bayes_dc.train.ranks import ALONE, Ranks
from bayes_dc.train.settings import Amp, TrainConfig

_ONE_SAMPLE = (
    "batch normalisation needs more than one value for each channel, and a batch holds a single "
    "sample, whose images have shrunk to one pixel. Set train.batch_size to 2 or more; with one "
    "training sample, choose a network without batch normalisation (mlp, lenet5, cnn)."
)


class TrainingStep:
    """Updates the weights with one batch.

    Args:
        model: Network, on ``device``, with ``keys`` attached while steps are made.
        optimizer: Of its parameters.
        keys: Keys of the masks.
        settings: Section ``train``.
        device: Where the batches are.
        ranks: Ranks of the run.

    Attributes:
        scaler: Scales the loss in fp16; does nothing else.
        replays: Steps made by a graph so far.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        keys: MaskKeys,
        settings: TrainConfig,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.scaler = _grad_scaler(settings.amp, device)
        self.replays = 0
        self._model, self._optimizer, self._keys = model, optimizer, keys
        self._settings, self._device = settings, device
        # One more: a single left-over sample joins the last batch, see schedule.batch_bounds.
        self._positions = torch.arange(settings.batch_size + 1, device=device)
        self._ranks = ranks
        self._graph: _Graph | None = None
        self._graphed = settings.cuda_graph and device.type == "cuda"
        if any(isinstance(m, nn.SyncBatchNorm) for m in model.modules()):
            self._graphed = False  # the ranks talk to each other in the middle of a forward
        self._warm = False

    def __call__(
        self, x: Tensor, y: Tensor, step: int, first: int = 0, samples: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Update the weights.

        Args:
            x: Inputs of this rank ``[b, C, H, W]``.
            y: Classes, int64 ``[b]``.
            step: Number of the step, which the masks are keyed by.
            first: Position of the first input in the batch of all ranks.
            samples: Samples in that batch; None: those of this rank.

        Returns:
            This rank's share of the mean loss, and number of right predictions: 0-d, on the device;
            overwritten by the next step.
        """
        samples = len(x) if samples is None else samples
        ids = self._positions[first : first + len(x)]
        if self._graphed and self._warm and samples == self._settings.batch_size and len(x):
            if self._graph is None:
                self._graph = self._capture(x, y, ids, samples)
            loss, correct = self._graph.replay(x, y, step)
            self.replays += 1
        else:
            self._keys.set(pass_ids=step, sample_ids=ids)
            loss, correct = self._gradients(x, y, samples)
            self._warm = True  # kernels are loaded, libraries have their memory
        if self._ranks.size > 1:
            self._sum_gradients()
        if self._settings.grad_clip is not None:
            self.scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.grad_clip)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        return loss, correct

    def _sum_gradients(self) -> None:
        """Gradients of the whole batch; zeros where a rank has no samples."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.sum_([p.grad for p in parameters if p.grad is not None])

    def _gradients(self, x: Tensor, y: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Share of the loss, right predictions, and fresh gradients of the parameters."""
        self._optimizer.zero_grad(set_to_none=True)
        if len(x) == 0:
            nothing = torch.zeros((), device=x.device)
            self.scaler.scale(nothing)  # its state is made by the first loss
            return nothing, torch.zeros_like(y).sum()
        try:
            with _autocast(self._settings.amp, self._device):
                logits = self._model(x).float()
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise TrainingError(_ONE_SAMPLE) from error
        loss = F.cross_entropy(logits, y, label_smoothing=self._settings.label_smoothing)
        if len(x) != samples:
            loss = loss * (len(x) / samples)
        self.scaler.scale(loss).backward()
        return loss.detach(), (logits.argmax(1) == y).sum()

    def _capture(self, x: Tensor, y: Tensor, ids: Tensor, samples: int) -> "_Graph":
        """Forward and backward of a batch of this shape as a graph."""
        inputs, classes = x.clone(), y.clone()
        number = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._keys.set(pass_ids=number, sample_ids=ids)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = self._gradients(inputs, classes, samples)
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TrainingError(
                f"a step of this network cannot be captured as a CUDA graph ({reason}). Set "
                "train.cuda_graph: false."
            ) from error
        gradients = [(p, p.grad) for p in self._model.parameters() if p.grad is not None]
        # Keys are attached anew in every epoch, with the same words: those captured must stay.
        keys = [layer.masks for layer in dropconnect_layers(self._model).values()]
        held = (keys, self._keys.dropout, ids)
        return _Graph(graph, inputs, classes, number, results, gradients, held)


class _Graph:
    """A captured forward and backward, and the tensors that it reads and writes."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: Tensor,
        classes: Tensor,
        number: Tensor,
        results: tuple[Tensor, Tensor],
        gradients: list[tuple[nn.Parameter, Tensor]],
        held: object,
    ) -> None:
        self._graph = graph
        self._inputs, self._classes, self._number = inputs, classes, number
        self._results = results
        self._gradients = gradients
        self._held = held

    def replay(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Gradients of another batch."""
        self._inputs.copy_(x)
        self._classes.copy_(y)
        self._number.fill_(step % (1 << 32))
        self._graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient  # an eager step in between had others
        return self._results


def _autocast(amp: Amp, device: torch.device) -> AbstractContextManager[Any]:
    if amp == "none":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if amp == "bf16" else torch.float16)


def _grad_scaler(amp: Amp, device: torch.device) -> torch.amp.GradScaler:
    """Return a scaler that does nothing except for fp16."""
    if amp == "fp16" and device.type == "cpu":
        raise TrainingError("train.amp fp16 needs a GPU: set amp to bf16 or none on a CPU.")
    return torch.amp.GradScaler(device.type, enabled=amp == "fp16")
