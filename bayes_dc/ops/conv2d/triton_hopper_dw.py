"""Weight gradient of a convolution by the Hopper kernel: when, with which tiles, and the launch."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops import _device, _launch
from bayes_dc.ops._hopper import by_tma, describe_box, describe_images, images_by_tma
from bayes_dc.ops.conv2d.triton_hopper_dw_kernel import conv_dw_kernel
from bayes_dc.ops.conv2d.triton_hopper_dw_steps import CHUNK

_CHANNELS = 64
_LEAST = 32
"""Fewer channels or outputs would leave more than half of a tile empty."""


class DwConfig(NamedTuple):
    """Launch configuration.

    Attributes:
        rows: Positions per tile: a power of two, 16 or more.
        taps: Rows of the kernel per program.
        blocks: Blocks of 16 · warps outputs per program; at most three results of taps × blocks.
        warps: Warps per program, 4 or 8.
        stages: Tiles in flight, 2 or more.
    """

    rows: int = 64
    taps: int = 3
    blocks: int = 1
    warps: int = 4
    stages: int = 3


def suits(gy: Tensor, x: Tensor, out: Tensor, *, stride: tuple[int, int], groups: int) -> bool:
    """Whether the kernel can read and write these tensors in place.

    ``out``: the gradient or its splits, ``[…, N, KH, KW, C]``.
    """
    return (
        _device.on_hopper(gy.device)
        and gy.dtype in {torch.bfloat16, torch.float16}
        and groups == 1
        and stride in {(1, 1), (2, 2)}
        and gy.shape[4] >= _LEAST
        and x.shape[4] >= _LEAST
        and x.shape[4] % 4 == 0
        and by_tma(gy)
        and all(s > 0 for s, n in zip(gy.stride(), gy.shape, strict=True) if n > 1)
        and images_by_tma(x, stride[0])
        and out.is_contiguous()
    )


@lru_cache
def config(N: int, KH: int) -> DwConfig:
    """Tiles for N outputs and KH rows of the kernel: two programs of a GPU's processor at once."""
    taps = 3 if KH % 3 == 0 or KH > 4 else min(KH, 2)
    # The most blocks of those that leave the least empty.
    blocks = min(range(3 // taps, 0, -1), key=lambda blocks: -(-N // (64 * blocks)) * blocks)
    return DwConfig(64, taps, blocks, 4, 3)


@lru_cache
def box(rows: int, size: tuple[int, int], images: int, *, shared: bool) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of ``rows`` positions of outputs of this size.

    Of images with a mask of their own at most four, 16 positions each or more.
    """
    width = min(rows, _power_of_two(size[1]))
    height = max(min(rows // width, _power_of_two(size[0])), 16 // width)
    most = rows // (width * height) if shared else min(rows // (width * height), CHUNK.value)
    return min(most, _power_of_two(images)), height, width


def launch(
    gy: Tensor,
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    keep: int,
    bits: int,
    scale: float,
    tiles: DwConfig | None = None,
) -> None:
    """Write the splits of the gradient into ``out`` [splits, N, KH, KW, C]; ``suits`` holds."""
    P, B, OH, OW, N = gy.shape
    C = x.shape[4]
    splits, _, KH, KW, _ = out.shape
    shared = sample_ids.shape[0] != B
    tiles = tiles or config(N, KH)
    images, height, width = box(tiles.rows, (OH, OW), B, shared=shared)
    outputs = 16 * tiles.warps
    packs = _cdiv(B, images) * (1 if shared else P)
    described, per_pass = describe_images(x, (images, height, width), _CHANNELS, stride[0])
    programs = _cdiv(C, _CHANNELS) * KW * _cdiv(KH, tiles.taps) * splits
    with _launch.on_device_of(gy):
        conv_dw_kernel[(programs * _cdiv(N, outputs * tiles.blocks),)](
            describe_box(gy, (1, images, height, width, outputs)),
            described,
            key,
            sample_ids,
            pass_ids,
            out,
            P,
            B,
            OH,
            OW,
            N,
            C,
            _cdiv(packs, splits),
            per_pass,
            sample_ids.stride(0),
            pass_ids.stride(0),
            out.stride(0),
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            KH=KH,
            KW=KW,
            SH=stride[0],
            SW=stride[1],
            PH=padding[0],
            PW=padding[1],
            DH=dilation[0],
            DW=dilation[1],
            TAPS=tiles.taps,
            NB=tiles.blocks,
            RUN=(shared, P == 1, OH <= height and OW <= width, OW <= width),
            STAGES=tiles.stages,
            num_warps=tiles.warps,
        )


def _cdiv(a: int, b: int) -> int:
    """a / b rounded up; Triton's takes a microsecond."""
    return -(-a // b)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
