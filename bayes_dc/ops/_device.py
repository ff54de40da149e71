"""What a GPU offers, and whether float32 products may use TensorFloat-32 on it."""

import functools
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    """Properties that the launchers ask for in every call.

    Attributes:
        capability: Compute capability; (0, 0) for a GPU that is not NVIDIA's.
        processors: Number of streaming multiprocessors.
        shared_memory_bytes: Most shared memory of one program; 0 if torch does not know.
    """

    capability: tuple[int, int]
    processors: int
    shared_memory_bytes: int


def gpu(device: torch.device) -> Gpu:
    """Properties of a CUDA device.

    Args:
        device: The device; without an index, the current one is meant.

    Returns:
        Its properties, asked for once.
    """
    return _gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _gpu(index: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    nvidia = torch.version.hip is None
    memory = getattr(found, "shared_memory_per_block_optin", 0)
    capability = (found.major, found.minor) if nvidia else (0, 0)
    return Gpu(capability, found.multi_processor_count, memory)


def on_hopper(device: torch.device) -> bool:
    """Whether the kernels written for compute capability 9.0 run on ``device``."""
    return device.type == "cuda" and gpu(device).capability == (9, 0)


def tensor_float32() -> bool:
    """Whether torch's own float32 products may use TensorFloat-32.

    ``allow_tf32``, the older interface, raises once ``fp32_precision`` has been set; this one knows
    what either of them set.

    Returns:
        Torch's switch for matrix products on CUDA devices.
    """
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def convolution_tensor_float32() -> bool:
    """Whether torch's own float32 convolutions may use TensorFloat-32.

    Returns:
        cuDNN's switch, on unless it was turned off; see ``tensor_float32``.
    """
    return torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
