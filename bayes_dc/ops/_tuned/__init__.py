"""Launch configurations measured on known GPUs: data, chosen offline by scripts/tune.py.

A file is named after its GPU, in lower case with dashes ("NVIDIA H200" → nvidia-h200.yaml); see
``format``. Nothing is measured at run time. A configuration changes speed only, so that of a near
shape will do; where there is none, the launchers have defaults of their own. Files are read at the
first launch on a GPU, not at import.
"""

import contextlib
import importlib.resources
import math
import re
from collections.abc import Iterator
from functools import lru_cache

import torch

from bayes_dc.ops._tuned.format import OPS, Entry, Tuned, parse

__all__ = ["file_name", "ignored", "load", "lookup"]

_ignored = False

_NEAR = 4
"""Factor by which each size may differ from the measured one: best tiles change with the shape."""

_OPERATOR = "Launch configurations are known for {known}, not for {op!r}: look one of those up."
_SIZES = "{op} is looked up by the sizes {expected}, got {got}."


def lookup(
    op: str, device: torch.device | None, dtype: torch.dtype, **sizes: int
) -> dict[str, int] | None:
    """Return the launch configuration measured for the nearest shape.

    Nearest is the least Σ (log size − log measured size)², the first of equals, among shapes no
    size of which is more than four times larger or smaller than the one asked for.

    Args:
        op: Operator, a key of ``format.OPS``.
        device: Where it is launched. Without an index, the current CUDA device is meant.
        dtype: Type of the input.
        **sizes: Its shape: every size of the operator.

    Returns:
        The configuration by field, a new dictionary; None if the device is None or not a CUDA GPU,
        if its file has nothing near for ``op`` and ``dtype``, and inside ``ignored``.

    Raises:
        ValueError: If ``op`` is unknown, if ``sizes`` are not those of the operator, or if the
            GPU's file is malformed; the message names file and key.
    """
    if op not in OPS:
        raise ValueError(_OPERATOR.format(op=op, known=", ".join(OPS)))
    if device is None or device.type != "cuda" or _ignored:
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    found = _nearest(op, index, dtype, *sizes.items())
    return None if found is None else dict(found)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Let every lookup find nothing, so that the launchers' defaults show.

    Yields:
        Nothing; afterwards lookups find what they found before.
    """
    global _ignored
    before, _ignored = _ignored, True
    try:
        yield
    finally:
        _ignored = before


def file_name(gpu: str) -> str:
    """Return the name of a GPU's file.

    Args:
        gpu: Name of the GPU, as torch reports it.

    Returns:
        The name in lower case with dashes, and the suffix ``.yaml``.
    """
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".yaml"


def load(gpu: str) -> Tuned | None:
    """Return what was measured on a GPU.

    Args:
        gpu: Name of the GPU, as torch reports it.

    Returns:
        The content of its file, or None if there is no file.

    Raises:
        ValueError: If the file is malformed; the message names file and key.
    """
    file = importlib.resources.files(__name__) / file_name(gpu)
    return parse(file.read_text(encoding="utf-8"), str(file)) if file.is_file() else None


# The same few layers are launched again and again; batches of any length must not fill the memory.
@lru_cache(maxsize=4096)
def _nearest(
    op: str, index: int, dtype: torch.dtype, *sizes: tuple[str, int]
) -> dict[str, int] | None:
    """The configuration for one shape on device ``index``; later calls find it in the cache."""
    wanted = dict(sizes)
    if set(wanted) != set(OPS[op].sizes):
        expected, got = ", ".join(OPS[op].sizes), ", ".join(wanted)
        raise ValueError(_SIZES.format(op=op, expected=expected, got=got))
    tuned = _of_device(index)
    entries = tuned.configs.get(op, []) if tuned is not None else []
    near = [e for e in entries if e.dtype == dtype and max(_ratios(e, wanted)) <= _NEAR]

    def distance(entry: Entry) -> float:
        return sum(math.log(ratio) ** 2 for ratio in _ratios(entry, wanted))

    return min(near, key=distance).config if near else None


def _ratios(entry: Entry, wanted: dict[str, int]) -> list[float]:
    """By what factor, at least 1, each size of ``entry`` differs from the wanted one."""
    pairs = [(max(1, n), entry.sizes[name]) for name, n in wanted.items()]
    return [max(a / b, b / a) for a, b in pairs]


@lru_cache(maxsize=64)
def _of_device(index: int) -> Tuned | None:
    """The file of device ``index``, read once."""
    return load(torch.cuda.get_device_name(index))
