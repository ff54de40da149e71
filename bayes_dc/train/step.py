"""A step of training; on a GPU its forward and backward are replayed as a CUDA graph.

A network of DropConnect layers launches hundreds of kernels a step, and the host needs longer to
launch them than the GPU to run them. A graph is one launch. It is captured anew in every epoch, as
it holds the masks' keys that are attached for that epoch.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from bayes_dc.nn import MaskKeys
from bayes_dc.train.errors import TrainingError
from bayes_dc.train.settings import Amp, TrainConfig


class TrainingStep:
    """Updates the weights with one batch.

    Args:
        model: Network, on ``device``, with ``keys`` attached while steps are made.
        optimizer: Of its parameters.
        keys: Keys of the masks.
        settings: Section ``train``.
        device: Where the batches are.

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
    ) -> None:
        self.scaler = _grad_scaler(settings.amp, device)
        self.replays = 0
        self._model, self._optimizer, self._keys = model, optimizer, keys
        self._settings, self._device = settings, device
        self._positions = torch.arange(settings.batch_size, device=device)
        self._graph: _Graph | None = None
        self._warm = False

    def start_epoch(self) -> None:
        """Forget the graph, whose keys are no longer attached."""
        self._graph = None
        self._warm = False

    def __call__(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Update the weights.

        Args:
            x: Inputs ``[b, C, H, W]``.
            y: Classes, int64 ``[b]``.
            step: Number of the step, which the masks are keyed by.

        Returns:
            Mean loss and number of right predictions, 0-d, on the device; overwritten by the next
            step.
        """
        graphed = self._settings.cuda_graph and self._device.type == "cuda"
        if graphed and self._warm and len(x) == self._settings.batch_size:
            if self._graph is None:
                self._graph = self._capture(x, y)
            loss, correct = self._graph.replay(x, y, step)
            self.replays += 1
        else:
            self._keys.set(pass_ids=step, sample_ids=self._positions[: len(x)])
            loss, correct = self._gradients(x, y)
            self._warm = True  # kernels are loaded, libraries have their memory
        if self._settings.grad_clip is not None:
            self.scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.grad_clip)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        return loss, correct

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss, right predictions, and fresh gradients of the parameters."""
        self._optimizer.zero_grad(set_to_none=True)
        with _autocast(self._settings.amp, self._device):
            logits = self._model(x).float()
        loss = F.cross_entropy(logits, y, label_smoothing=self._settings.label_smoothing)
        self.scaler.scale(loss).backward()
        return loss.detach(), (logits.argmax(1) == y).sum()

    def _capture(self, x: Tensor, y: Tensor) -> "_Graph":
        """Forward and backward of a batch of this shape as a graph."""
        inputs, classes = x.clone(), y.clone()
        number = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._keys.set(pass_ids=number, sample_ids=self._positions)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = self._gradients(inputs, classes)
        except RuntimeError as error:
            raise TrainingError(
                "a step of this network cannot be captured as a CUDA graph "
                f"({str(error).strip().splitlines()[0]}). Set train.cuda_graph: false."
            ) from error
        gradients = [(p, p.grad) for p in self._model.parameters() if p.grad is not None]
        return _Graph(graph, inputs, classes, number, results, gradients)


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
    ) -> None:
        self._graph = graph
        self._inputs, self._classes, self._number = inputs, classes, number
        self._results = results
        self._gradients = gradients

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
