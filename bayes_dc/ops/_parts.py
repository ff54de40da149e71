"""Launch configurations for masks of few rows, and for few outputs: who takes which kernel.

A mask that serves few rows costs more than its products, and every group reads all weights: there a
tile of weights serves several groups ("parts"). Few outputs make one tile of outputs, and programs
that wait for themselves: there the inputs are shared out. Both change speed, and masks never.
"""

import math
from typing import NamedTuple

import torch

from bayes_dc.ops import _device

_FEW_OUTPUTS, _MOST_ROWS = 16, 64


class PartsConfig(NamedTuple):
    """Launch configuration of the Hopper kernel whose tiles of weights serve several groups.

    Attributes:
        rows: Rows of a group per tile.
        outputs: Outputs per tile.
        parts: Groups that share a tile.
        warps: Warps per program.
        stages: Tiles in flight.
    """

    rows: int = 16
    outputs: int = 64
    parts: int = 7
    warps: int = 4
    stages: int = 4


class NarrowConfig(NamedTuple):
    """Launch configuration of the kernel for few outputs.

    Attributes:
        rows: Rows of a group per tile.
        outputs: Outputs per tile: all.
        inputs: Inputs per step of a range.
        ranges: Ranges of inputs, a warp for each.
    """

    rows: int = 16
    outputs: int = 16
    inputs: int = 64
    ranges: int = 8


def parts_are_samples(P: int, S: int, shared: bool) -> bool:
    """Whether groups that share a tile of weights are samples of a pass, not passes of a sample.

    Args:
        P: Passes.
        S: Samples.
        shared: Whether passes share their rows, which are then copied once.

    Returns:
        True where that makes longer runs, but not at the cost of copies.
    """
    return P == 1 or (S > P and not shared)


def suits_parts(config: PartsConfig, dtype: torch.dtype) -> bool:
    """Whether the Hopper kernel of several groups has tiles of this shape.

    Args:
        config: Launch configuration.
        dtype: Type of the tensors.

    Returns:
        True if sums fit into registers and stages into shared memory.
    """
    rows, outputs, parts, warps, stages = config
    padded = 1 << (parts - 1).bit_length()
    words = 2 * max(4 * 4 * 32 * warps, padded * outputs * (128 // dtype.itemsize) // 8)
    return (
        dtype in {torch.bfloat16, torch.float16, torch.float32}
        and rows in {16, 32, 64, 128}
        and outputs in {64, 128, 256}
        and warps in {4, 8}
        and outputs % (16 * warps) == 0
        and parts >= 2
        and parts * rows * outputs <= 128 * 32 * warps
        and stages >= 2
        and stages * (padded * rows + outputs) * 128 + words + 1024 <= 227 * 1024
    )


def fwd_config(
    P: int,
    S: int,
    R: int,
    N: int,
    K: int,
    shared: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> PartsConfig | NarrowConfig | None:
    """Configuration of the forward where a kernel of this page takes it.

    Args:
        P: Passes.
        S: Samples.
        R: Rows of a group.
        N: Outputs.
        K: Inputs.
        shared: Whether passes share their rows.
        dtype: Type of the tensors.
        device: Where they are.

    Returns:
        None where a group is better off by itself. Few outputs are a matter of R and N alone, so
        that chunks of passes change no bit; parts have the bits of the kernel for one group.
    """
    if R > _MOST_ROWS or not _device.on_hopper(device):
        return None
    if N <= _FEW_OUTPUTS:
        return NarrowConfig(inputs=128)
    if R > 32:
        tiles = [PartsConfig(64, 128, 2, 4, 3)]
    elif R > 16:
        tiles = [PartsConfig(32, 64, parts) for parts in (4, 2)]
    else:
        tiles = [PartsConfig(parts=parts) for parts in range(7, 1, -1)]
    groups, others = (S, P) if parts_are_samples(P, S, shared) else (P, S)
    processors = _device.gpu(device).processors
    rounds = {
        tile: -(-groups // tile.parts) * others * -(-N // tile.outputs) / processors
        for tile in tiles
    }
    # Where most processors would have nothing to do, a program for each group is done earlier.
    busy = [tile for tile in tiles if tile.parts <= groups and rounds[tile] >= 0.5]
    return min(busy, key=lambda tile: math.ceil(rounds[tile]) * (tile.parts + 2), default=None)
