"""Launch configuration of the convolution's kernels, and sizes that only a shape decides.

Configurations change speed only: tiles change neither masks nor the order of images and splits,
and integers that do not round give equal bits under all of them.
"""

import functools
import math
import os
from typing import NamedTuple

import torch

from bayes_dc.ops import _device

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

_SLOTS = 2 * 132
"""Programs of the weight gradient that a large GPU runs at once."""
_MAX_PARTIAL_ELEMENTS = 1 << 26
_MAX_ROWS = 2**31 - 2**16
_TOO_MANY_POSITIONS = (
    "A call on the GPU takes at most {most} positions that share a mask and {most} tiles; got "
    "{positions} positions and {tiles} tiles. Pass fewer images, or fewer pass_ids, at a time."
)


class ConvConfig(NamedTuple):
    """Launch configuration of a convolution kernel.

    Attributes:
        rows: Positions per tile.
        outputs: Output channels per tile, a multiple of 32.
        inputs: Weights of an output per tile (input gradient: input channels), a multiple of 16.
        warps: Warps per program.
        stages: Tiles in flight.
        rows_first: 1 to multiply positions by weights, 0 to multiply weights by positions.
        tiles: Tiles of positions per program, where its masked weights fit into one tile.
    """

    rows: int = 128
    outputs: int = 64
    inputs: int = 32
    warps: int = 4
    stages: int = 3
    rows_first: int = 0
    tiles: int = 1


class Taps(NamedTuple):
    """Where the taps of a kernel lie, as compile-time constants.

    Attributes:
        KH: Taps along the height.
        KW: Taps along the width.
        SH: Stride along the height.
        SW: Stride along the width.
        PH: Zeros added above and below.
        PW: Zeros added left and right.
        DH: Distance of taps along the height.
        DW: Distance of taps along the width.
    """

    KH: int
    KW: int
    SH: int
    SW: int
    PH: int
    PW: int
    DH: int
    DW: int

    @property
    def steps(self) -> tuple[int, int]:
        """Every how many taps one meets the positions of an input's phase again."""
        return self.SH // math.gcd(self.SH, self.DH), self.SW // math.gcd(self.SW, self.DW)


def divisor(n: int) -> tuple[int, int]:
    """Numbers with which kernels divide by ``n`` (Granlund & Montgomery 1994, PLDI).

    Args:
        n: At least 1.

    Returns:
        m, as int32, and l with r // n = (2r · m div 2**32) >> l for 0 ≤ r < 2**31.
    """
    shift = max(0, n - 1).bit_length()
    magic = -(-(1 << (31 + shift)) // max(n, 1))
    return magic - (1 << 32 if magic >= 1 << 31 else 0), shift


def taps(
    w: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Taps:
    """Taps of weights ``[N, KH, KW, C]``."""
    return Taps(w.shape[1], w.shape[2], *stride, *padding, *dilation)


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` treats float32: torch's switch for convolutions, as ``F.conv2d`` follows it."""
    if INTERPRETED:
        return "widened"
    tf32 = _device.convolution_tensor_float32()
    return "ieee" if dtype == torch.float32 and not tf32 else "tf32"


def masks_pairs(t: torch.Tensor) -> bool:
    """Whether two weights are masked at once: 16-bit types on an NVIDIA GPU."""
    return t.is_cuda and torch.version.hip is None and t.element_size() == 2


def is_wide(t: torch.Tensor) -> bool:
    """Whether offsets inside an image of ``t`` ``[P, B, H, W, C]`` need 64 bits."""
    (H, W, C), (stride_h, stride_w) = t.shape[2:], t.stride()[2:4]
    # Offsets of what lies in the padding are made too, but they are not read.
    return (H - 1) * stride_h + (W - 1) * stride_w + C > 2**31 - 2**16


def is_direct(groups: int, outputs: int) -> bool:
    """Whether sums are made without matrix products.

    Args:
        groups: Groups of channels.
        outputs: Outputs of a group.

    Returns:
        True for groups so narrow (depthwise: one output) that a tile would be mostly padding.
    """
    return groups > 1 and outputs < 16


@functools.lru_cache
def dw_splits(images: int, N: int, K: int) -> int:
    """Runs of images the weight gradient is split into; a function of the shape alone.

    Split where one program for 64 outputs × 192 weights would leave a large GPU idle: into one to
    eight full rounds of programs, the fewest whose last is nearly full.

    Args:
        images: Images of all passes, P · B.
        N: Outputs.
        K: Weights of an output, KH · KW · C / groups.

    Returns:
        Number of splits, at least 1.
    """
    programs = max(1, -(-N // 64) * -(-K // 192))

    def full(rounds: int) -> float:
        return _SLOTS * rounds // programs * programs / (_SLOTS * rounds)

    # Programs of a kernel of one tap hold two results in place of three.
    fewest = 1 if programs > 2 else 2
    rounds = max(range(fewest, 9), key=lambda rounds: (min(full(rounds), 0.95), -rounds))
    wanted = _SLOTS * rounds // programs
    return max(1, min(wanted, images, _MAX_PARTIAL_ELEMENTS // max(1, N * K)))


def dw_unit(images: int, samples: int, splits: int) -> int:
    """Images whose products are added before they are masked; a function of the shape alone.

    Args:
        images: Images of a pass.
        samples: Masks of a pass: ``images``, or 1.
        splits: What ``dw_splits`` returned.

    Returns:
        1 where every image has its own mask; otherwise about one unit for each split.
    """
    return 1 if samples == images else max(1, -(-images // splits))


def check_sizes(positions: int, tiles: int) -> None:
    """Kernels count positions of a group, with a tile to spare, and tiles in int32."""
    if max(positions, tiles) > _MAX_ROWS:
        raise ValueError(
            _TOO_MANY_POSITIONS.format(most=_MAX_ROWS, positions=positions, tiles=tiles)
        )


def fwd_config(R: int, N: int, C: int, K: int, dtype: torch.dtype, kind: str) -> ConvConfig:
    """Configuration of the forward.

    Args:
        R: Positions that share a mask.
        N: Outputs of a group of channels.
        C: Inputs of a group of channels.
        K: Weights of an output, KH · KW · C.
        dtype: Type of the tensors.
        kind: ``precision(dtype)``.

    Returns:
        One that fits any NVIDIA GPU with 96 KB of shared memory.
    """
    if INTERPRETED:
        return ConvConfig(rows=64, outputs=32, inputs=32)
    rows = _power_of_two(R, 16, 128)
    if _by_cores(dtype, kind):
        return ConvConfig(min(rows, 64), 32, 16, 4, 2, 1)
    depth = 128 // dtype.itemsize
    if depth >= K:
        return ConvConfig(rows, 64, _power_of_two(K, 16, depth), 4, 2, 1, 8)
    warps = max(4, rows // 16)
    if C % 16 == 0:
        return ConvConfig(rows, 64, min(C & -C, depth), warps, 3)
    return ConvConfig(rows, 64, 32, warps, 3)


def dx_config(R: int, N: int, C: int, dtype: torch.dtype, kind: str) -> ConvConfig:
    """Configuration of the input gradient; ``fwd_config``'s arguments."""
    if INTERPRETED:
        return ConvConfig(rows=64, outputs=32, inputs=32)
    rows = _power_of_two(R, 16, 128)
    if _by_cores(dtype, kind):
        return ConvConfig(min(rows, 64), 32, 16, 4, 2, 1)
    depth = 64 if dtype.itemsize == 2 and N % 64 == 0 else 32
    return ConvConfig(rows, depth, _power_of_two(C, 16, 64), max(4, rows // 16), 3)


def dw_config(R: int, N: int, C: int, K: int, dtype: torch.dtype, kind: str) -> ConvConfig:
    """Configuration of the weight gradient; ``fwd_config``'s arguments."""
    if INTERPRETED:
        return ConvConfig(rows=64, outputs=32, inputs=32)
    if _by_cores(dtype, kind):
        return ConvConfig(16, 32, 32 if C % 32 == 0 else 16, 4, 2)
    rows = _power_of_two(R, 16, 64 if dtype.itemsize == 2 else 32)
    if C % 16 == 0:
        return ConvConfig(rows, 64, min(C & -C, 128 // dtype.itemsize), 4, 3)
    return ConvConfig(rows, 64, 32, 4, 3)


def _by_cores(dtype: torch.dtype, kind: str) -> bool:
    """Whether products are single multiply-adds, for which tiles must be small."""
    return dtype == torch.float64 or (dtype == torch.float32 and kind == "ieee")


def _power_of_two(n: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << max(0, n - 1).bit_length()))
