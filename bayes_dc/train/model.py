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
        model = _plain(settings, input_shape, classes)
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


def _plain(settings: ModelConfig, input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the network; widths and images may be of any size."""
    in_features, hidden = prod(input_shape), settings.hidden or ()
    try:
        if settings.name == "mlp":
            return models.mlp(in_features, classes, hidden, dropout=settings.dropout)
        make = getattr(models, settings.name)
        return make(input_shape, classes, dropout=settings.dropout)
    except (RuntimeError, TypeError, MemoryError) as error:  # TypeError: 2**63 and more
        what = f"{settings.name} for images {list(input_shape)}"
        if settings.name == "mlp":
            shown = ", ".join(map(str, hidden[:10])) + (", …" if len(hidden) > 10 else "")
            what = f"a network of {in_features} inputs and hidden layers [{shown}]"
        smaller = "hidden or the images" if settings.name == "mlp" else "the images"
        raise ValueError(f"{what} does not fit in memory. Make {smaller} smaller") from error
