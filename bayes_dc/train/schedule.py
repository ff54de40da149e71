"""Optimizer, learning rate and order of the samples: all functions of settings, seed and step."""

from hashlib import sha256
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from bayes_dc.train.settings import OptimizerConfig, ScheduleConfig


def make_optimizer(settings: OptimizerConfig, model: nn.Module) -> Optimizer:
    """Return the optimizer of a network.

    Args:
        settings: Section ``train.optimizer``.
        model: Network, already on its device.

    Returns:
        torch's optimizer; on a GPU the fused form, one kernel per step.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = True if parameters and parameters[0].is_cuda else None
    decay = settings.weight_decay
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": decay}]
    if settings.decay == "weights":
        parts = [[p for p in parameters if (p.ndim > 1) is weights] for weights in (True, False)]
        groups = [
            {"params": part, "weight_decay": amount}
            for part, amount in zip(parts, (decay, 0.0), strict=True)
            if part
        ]
    if settings.name == "sgd":
        momentum = settings.momentum
        return SGD(groups, settings.lr, momentum, nesterov=settings.nesterov, fused=fused)
    return (Adam if settings.name == "adam" else AdamW)(groups, settings.lr, fused=fused)


def learning_rate(
    settings: ScheduleConfig, peak: float, epochs: int, steps_per_epoch: int, step: int
) -> float:
    """Return the learning rate of one step.

    With t = step / steps_per_epoch, w the warm-up and E the epochs::

        t < w       peak · (step + 1) / (w · steps_per_epoch)
        constant    peak
        cosine      peak · (1 + cos(π (t − w) / (E − w))) / 2
        multistep   peak · gamma ^ (number of milestones ≤ t)

    Args:
        settings: Section ``train.schedule``.
        peak: ``train.optimizer.lr``.
        epochs: Epochs of the whole run.
        steps_per_epoch: Steps of one epoch.
        step: Steps already done, from 0.

    Returns:
        Learning rate of this step.
    """
    warmup = settings.warmup_epochs
    t = step / steps_per_epoch
    if t < warmup:
        return peak * (step + 1) / (warmup * steps_per_epoch)
    if settings.name == "cosine":
        return peak * (1 + cos(pi * (t - warmup) / (epochs - warmup))) / 2
    if settings.name == "multistep":
        return peak * settings.gamma ** sum(m <= t for m in settings.milestones)
    return peak


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of one epoch.

    Args:
        samples: Number of samples.
        seed: Seed of the run.
        epoch: Epoch, from 0.

    Returns:
        A permutation of 0 … samples − 1, int64 on the CPU; a function of the arguments only, so a
        resumed run needs no generator state.
    """
    digest = sha256(f"order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.randperm(samples, generator=generator)


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """Cut 0 … samples into batches; none is dropped.

    Args:
        samples: Number of samples.
        batch_size: Samples per batch.

    Returns:
        ``(start, stop)`` of every batch. The last one is smaller; a single left-over sample joins
        the batch before it, because batch normalisation cannot train on one.
    """
    starts = list(range(0, samples, batch_size))
    if batch_size > 1 and len(starts) > 1 and samples - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], samples], strict=True))
