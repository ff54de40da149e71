"""Epochs of plain PyTorch; whatever is random is a function of coordinates.

Order of the samples, masks and learning rate are functions of (seed, epoch, step), so a resumed run
needs weights, optimizer state and two counters to go on bit for bit on a CPU.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bayes_dc.datasets import DatasetBundle
from bayes_dc.nn import MaskKeys
from bayes_dc.train.augment import Augmentation, check_augmentation
from bayes_dc.train.checkpoint import (
    STATE_FILE,
    load_checkpoint,
    load_train_state,
    load_weights,
    save_checkpoint,
)
from bayes_dc.train.errors import CheckpointError, TrainingError
from bayes_dc.train.evaluate import evaluate
from bayes_dc.train.meta import CheckpointMeta, unreadable
from bayes_dc.train.progress import LossWindow, Progress, StepLoss
from bayes_dc.train.ranks import ALONE, Ranks, synchronise_batch_norm
from bayes_dc.train.run import RunFolder, check_same_run
from bayes_dc.train.schedule import batch_bounds, epoch_order, learning_rate, make_optimizer
from bayes_dc.train.settings import Device, TrainConfig
from bayes_dc.train.state import check_numbers, check_optimizer_state
from bayes_dc.train.step import TrainingStep


def resolve_device(name: Device) -> torch.device:
    """Return the device that a setting means.

    Args:
        name: ``auto``, ``cpu`` or ``cuda``.

    Returns:
        The device.

    Raises:
        TrainingError: If ``cuda`` is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "train.device is cuda, but torch finds no CUDA device. Set device to auto or cpu, or "
            "install a CUDA build of torch and a driver."
        )
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


@dataclass
class _Best:
    """Lowest validation loss so far."""

    loss: float = float("inf")
    epoch: int = 0


class Trainer:
    """State of a run between two epochs.

    Attributes:
        model: Network, on ``device``.
        device: Where it is trained.
        epoch: Epochs done.
        step: Steps done.
        samples: Samples per epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        data: DatasetBundle,
        settings: TrainConfig,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.device = resolve_device(settings.device)
        check_augmentation(settings.augment, data.input_shape)
        self._format = torch.channels_last if settings.channels_last else torch.contiguous_format
        self._bounds = batch_bounds(len(data.train), settings.batch_size)
        smallest = min(stop - start for start, stop in self._bounds)
        model = synchronise_batch_norm(model, ranks, self.device, smallest)
        self.model = model.to(self.device).to(memory_format=self._format)
        ranks.same_weights(self.model)
        self.epoch = 0
        self.step = 0
        self.samples = len(data.train)
        self._data = data
        self._settings = settings
        self._seed = seed
        self._optimizer: Optimizer = make_optimizer(settings.optimizer, model)
        self._keys = MaskKeys(seed=seed)
        self._ranks = ranks
        self._step = TrainingStep(
            self.model, self._optimizer, self._keys, settings, self.device, ranks
        )
        self._best = _Best()
        self._inputs_checked = False

    def run_epoch(self, progress: Progress) -> dict[str, Any]:
        """Train one epoch and evaluate the mean-weight network.

        Args:
            progress: Where to show the steps.

        Returns:
            Line of ``metrics.jsonl``.

        Raises:
            TrainingError: If a loss or a weight is not finite.
        """
        started = time.perf_counter()
        with self._keys.attached(self.model):
            steps, rate = self._train(progress)
        seconds = time.perf_counter() - started
        samples = sum(s.samples for s in steps)
        if not _weights_are_finite(self.model):
            raise TrainingError(
                _not_finite("a weight", self.step, self.epoch, rate, self._settings)
            )
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": sum(s.loss * s.samples for s in steps) / samples,
            "train_accuracy": sum(s.correct for s in steps) / samples,
            "validation_loss": None,
            "validation_accuracy": None,
            "lr": rate,
        }
        if self._data.validation is not None:
            size = self._settings.batch_size
            score = evaluate(self.model, self._data.validation, size, self.device, self._ranks)
            if not isfinite(score.loss_nats):
                what = f"the validation loss ({score.loss_nats})"
                raise TrainingError(_not_finite(what, self.step, self.epoch, rate, self._settings))
            row |= {"validation_loss": score.loss_nats, "validation_accuracy": score.accuracy}
        return row | {"seconds": seconds, "samples_per_second": samples / seconds}

    def _train(self, progress: Progress) -> tuple[list[StepLoss], float]:
        """Run the steps of one epoch; return what they measured and the last learning rate."""
        settings, split = self._settings, self._data.train
        order = epoch_order(len(split), self._seed, self.epoch)
        labels = split.labels[order].to(self.device)
        change = None
        if settings.augment.is_on:
            n = len(split)
            change = Augmentation(settings.augment, n, self._seed, self.epoch, self.device)
        if self.device.type == "cuda":
            order = order.pin_memory()
        steps = min(settings.log_every, len(self._bounds))
        window = LossWindow(steps, self.device, self._ranks)
        done: list[StepLoss] = []
        self.model.train()
        self.epoch += 1
        for start, stop in self._bounds:
            rate = learning_rate(
                settings.schedule,
                settings.optimizer.lr,
                settings.epochs,
                len(self._bounds),
                self.step,
            )
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            first, last = self._ranks.part(start, stop)
            chosen = order[first:last]
            x, y = split.batch(chosen, self.device), labels[first:last]
            if change is not None:
                x = change(x, chosen.to(self.device, non_blocking=True))
            finite = None if self._inputs_checked else x.isfinite().all()
            x = x.contiguous(memory_format=self._format)
            loss, correct = self._step(x, y, self.step, first - start, stop - start)
            window.add(self.step, stop - start, loss, correct, finite)
            self.step += 1
            if window.is_full() or stop == len(split):
                latest = window.drain()
                self._check(latest, rate)
                progress.steps(self.epoch, latest)
                done += latest
        self._inputs_checked = True
        return done, rate

    def _check(self, steps: list[StepLoss], rate: float) -> None:
        """Warn of non-finite inputs, stop at a non-finite loss."""
        unclean = [s.step for s in steps if not s.finite]
        if unclean:
            warnings.warn(
                f"{len(unclean)} batches of the training split hold NaN or infinite inputs (first "
                f"at step {unclean[0]}): clean the data.",
                stacklevel=2,
            )
        bad = next((s for s in steps if s.is_bad), None)
        if bad is not None:
            raise TrainingError(
                _not_finite(f"the loss ({bad.loss})", bad.step, self.epoch, rate, self._settings)
            )

    def save(self, run: RunFolder, meta: CheckpointMeta, row: Mapping[str, Any]) -> None:
        """Save ``best`` if the validation loss is the lowest so far, and ``last`` when it is due.

        Args:
            run: Output folder.
            meta: What the run is.
            row: Metrics of the epoch.
        """
        metrics = {k: v for k, v in row.items() if k not in ("epoch", "step")}
        meta = meta.model_copy(update={"epoch": self.epoch, "step": self.step, "metrics": metrics})
        loss = row["validation_loss"]
        if loss is not None and loss < self._best.loss:
            self._best = _Best(loss, self.epoch)
            save_checkpoint(run.best, self.model, meta)
        if self.epoch % self._settings.checkpoint_every == 0 or self.epoch == self._settings.epochs:
            save_checkpoint(run.last, self.model, meta, self._state())

    def _state(self) -> dict[str, Any]:
        """Return what ``restore`` needs."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._step.scaler.state_dict(),
            "best_loss": self._best.loss,
            "best_epoch": self._best.epoch,
        }

    def restore(self, run: RunFolder, meta: CheckpointMeta) -> None:
        """Go back to the state of ``run.last``.

        Args:
            run: Output folder.
            meta: What the run is now.

        Raises:
            TrainingError: If settings or classes differ from those of the checkpoint.
            CheckpointError: If the checkpoint cannot be read or is no checkpoint of a run.
        """
        saved, weights = load_checkpoint(run.last)
        check_same_run(saved.config, meta.config, run.last)
        if saved.class_names != meta.class_names:
            raise TrainingError(
                f"cannot resume {run.last}: it was trained for {len(saved.class_names)} classes "
                f"{list(saved.class_names)}, the data has {len(meta.class_names)} "
                f"{list(meta.class_names)}. Use the same data, or start a new run in another "
                "output_dir."
            )
        state = load_train_state(run.last)
        load_weights(self.model, weights, run.last / "model.safetensors")
        try:
            check_optimizer_state(state["optimizer"], self._optimizer)
            check_numbers(state["scaler"])
            check_numbers({name: state[name] for name in ("best_loss", "best_epoch")})
            self._optimizer.load_state_dict(state["optimizer"])
            self._step.scaler.load_state_dict(state["scaler"])
            self._best = _Best(state["best_loss"], state["best_epoch"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            why = f"it is not the state of this optimizer ({error!r})"
            raise CheckpointError(unreadable(run.last / STATE_FILE, why)) from error
        self.epoch, self.step = saved.epoch, saved.step


def _weights_are_finite(model: nn.Module) -> bool:
    flags = [p.isfinite().all() for p in model.parameters()]
    return bool(torch.stack(flags).all()) if flags else True


def _not_finite(what: str, step: int, epoch: int, rate: float, settings: TrainConfig) -> str:
    """Return the message for a run that diverged."""
    advice = f"lower train.optimizer.lr (now {settings.optimizer.lr:g}, {rate:g} at this step)"
    if settings.grad_clip is None:
        advice += ", set train.grad_clip (e.g. 1.0)"
    if settings.amp == "fp16":
        advice += ", use amp bf16"
    return (
        f"training stopped: {what} is not finite at step {step} (epoch {epoch}). Nothing was saved "
        f"after the epoch before; {advice}, or look for bad inputs, then start again with "
        "--overwrite."
    )
