"""What draws from torch's generators in a forward, and the generators for the time of a call."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

_COMPOSED: frozenset[Callable[..., Any]] = frozenset({
    F.gumbel_softmax,
    F.fractional_max_pool2d,
    F.fractional_max_pool3d,
    F.fractional_max_pool2d_with_indices,
    F.fractional_max_pool3d_with_indices,
})
"""Functions written in Python that draw inside, where a function mode does not look."""
_DROPOUT: frozenset[Callable[..., Any]] = frozenset({
    *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
    F.scaled_dot_product_attention,
})
"""Draw dropout only, which is turned on or off for them."""


@functools.cache
def may_draw(func: Callable[..., Any]) -> bool:
    """Whether a function of torch is one that can draw from a generator.

    Args:
        func: What is called.

    Returns:
        True for ``torch.randn_like``, ``Tensor.normal_``, ``F.rrelu`` and their like, by the tag
        that torch gives the operator of that name.
    """
    if func in _COMPOSED:
        return True
    if func in _DROPOUT:
        return False
    name = getattr(func, "__name__", "").split(".")[0]
    if not name or name.startswith("__"):
        return False
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(packet, overload).tags for overload in packet.overloads())


class Seeded:
    """The generators of the CPU and of a device between a seed and their former states.

    Args:
        generators: They.
    """

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._generators = generators
        self._states = [generator.get_state() for generator in generators]

    def drew(self) -> bool:
        """Whether one of them has been drawn from since it was seeded.

        Returns:
            True if its state is another.
        """
        pairs = zip(self._generators, self._states, strict=True)
        return any(not torch.equal(g.get_state(), state) for g, state in pairs)


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[Seeded]:
    """Torch's generators seeded for a call; they are afterwards as before.

    Args:
        device: Where the call draws; the generator of the CPU is seeded too.
        seed: Unsigned 64-bit number.

    Yields:
        Whether the call has drawn.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    cudnn = torch.backends.cudnn.enabled
    # cuDNN keeps a generator of its own for recurrent dropout, which cannot be seeded.
    torch.backends.cudnn.enabled = False
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield Seeded(generators)
    finally:
        torch.backends.cudnn.enabled = cudnn
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
