"""From settings to a network with the same initial weights on every device."""

from math import prod

import torch
from torch import nn

from bayes_dc.models import mlp
from bayes_dc.nn import convert
from bayes_dc.train.settings import ModelConfig


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
        ValueError: If the network is larger than memory, ``p`` is so near to 0 or 1 that no mask
            can have it, or ``exclude_last`` leaves no layer to convert.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model = mlp(prod(input_shape), classes, settings.hidden)
        except (RuntimeError, TypeError, MemoryError) as error:  # TypeError: 2**63 and more
            raise ValueError(
                f"a network of {prod(input_shape)} inputs and hidden layers "
                f"{list(settings.hidden)} does not fit in memory. Make hidden or the images smaller"
            ) from error
        if settings.p > 0:
            convert(
                model,
                settings.p,
                scope=settings.scope,
                scale=settings.scale,
                sampler=settings.sampler,
                exclude_last=settings.exclude_last,
            )
    return model
