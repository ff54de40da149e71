"""From settings to a network with the same initial weights on every device."""

from math import prod

import torch
from torch import nn

from bayes_dc import models
from bayes_dc.nn import convert
from bayes_dc.train.settings import ModelConfig
from bayes_dc.types import torch_seed


def build_model(
    settings: ModelConfig, input_shape: tuple[int, int, int], classes: int, *, seed: int = 0
) -> nn.Module:
    """Build a network and give it DropConnect.

    Args:
        settings: Section ``model`` of a configuration; ``p: 0`` leaves the network plain.
        input_shape: ``(C, H, W)`` of one input.
        classes: Number of outputs.
        seed: Chooses the initial weights. The global generators are left as they were.

    Returns:
        The network, float32 on the CPU, in training mode.

    Raises:
        ValueError: If the network is larger than memory or takes no such images, a name in
            ``select`` means no layer, ``p`` is so near to 0 or 1 that no mask can have it, or
            ``select`` and ``exclude_last`` leave no layer to convert.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed))
        if settings.name == "mlp":
            model = _mlp(settings, prod(input_shape), classes)
        else:
            make = getattr(models, settings.name)
            model = make(input_shape, classes, dropout=settings.dropout)
        if settings.p > 0:
            convert(
                model,
                settings.p,
                select=settings.select,
                scope=settings.scope,
                scale=settings.scale,
                sampler=settings.sampler,
                exclude_last=settings.exclude_last,
            )
    return model


def _mlp(settings: ModelConfig, in_features: int, classes: int) -> nn.Module:
    """Build a perceptron, whose hidden layers may be of any width."""
    hidden = settings.hidden or ()
    try:
        return models.mlp(in_features, classes, hidden, dropout=settings.dropout)
    except (RuntimeError, TypeError, MemoryError) as error:  # TypeError: 2**63 and more
        raise ValueError(
            f"a network of {in_features} inputs and hidden layers {list(hidden)} does not fit in "
            "memory. Make hidden or the images smaller"
        ) from error
