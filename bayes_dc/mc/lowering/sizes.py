"""Sizes and layouts that rules ask for when a plan is made."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.plan_types import Value


def bare(x: Value, b: int, passes: int) -> Tensor:
    """``x`` at (b, passes), without memory.

    Args:
        x: Any value.
        b: Inputs.
        passes: Passes.

    Returns:
        A tensor on the device ``meta``.
    """
    at = x.layout(b, passes)
    return torch.empty_strided(at.sizes, at.strides, dtype=x.dtype, device="meta")


def is_dense(x: Value, *, last: bool | None = None) -> bool:
    """Whether images lie in memory without holes, channels first or last.

    Args:
        x: ``[rows, C, H, W]``.
        last: True for channels last only, False for channels first only.

    Returns:
        Whether they do for any number of rows.
    """
    formats = {True: torch.channels_last, False: torch.contiguous_format}
    wanted = list(formats.values()) if last is None else [formats[last]]
    samples = [bare(x, b, passes) for b, passes in SAMPLES]
    return any(all(t.is_contiguous(memory_format=f) for t in samples) for f in wanted)


def fixed_sizes(x: Value) -> tuple[int, ...]:
    """Sizes behind the first dimension.

    Args:
        x: ``[rows, …]``.

    Returns:
        Numbers.
    """
    return tuple(size for size in x.shape[1:] if isinstance(size, int))


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of what may be one number.

    Args:
        size: One number, or one or two in a sequence.

    Returns:
        Both.
    """
    values = (size,) if isinstance(size, int) else tuple(size)
    return (values[0], values[-1])


def strides_like(t: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of images without holes, with channels last where ``t`` has them so.

    Args:
        t: ``[rows, C, H, W]``.
        shape: ``[rows, C, H, W]``, other sizes.

    Returns:
        Four strides.
    """
    _, channels, height, width = shape
    if t.is_contiguous():
        return channels * height * width, height * width, width, 1
    return channels * height * width, 1, width * channels, channels
