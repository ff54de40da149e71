"""Convolution and its input gradient by the Hopper kernel: when, its tiles, and the launch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops import _device, _launch
from bayes_dc.ops._hopper import (
    VIEWS_MAY_OVERLAP,
    describe_images,
    describe_taps,
    images_by_tma,
)
from bayes_dc.ops.conv2d.triton_hopper_kernel import masked_conv_kernel

_DEPTH_BYTES = 128


class HopperConfig(NamedTuple):
    """Launch configuration: positions are a box of images, rows and columns, powers of two.

    Attributes:
        images: Images per program.
        height: Rows of an image per program.
        width: Columns.
        outputs: Results per program and position: 64, 128 or 256.
        warps: Warps per program, 4 or 8.
        stages: Tiles of weights in flight, 2 or more.
        slots: Tiles of positions in flight; 0: as of weights.
        down: Taps of a column, whose positions are copied at once, or 1.
        by_warp: 1 to multiply warp by warp, 0 by four warps at a time.
    """

    images: int
    height: int
    width: int
    outputs: int
    warps: int
    stages: int
    slots: int = 0
    down: int = 1
    by_warp: int = 0


def suits(
    source: Tensor,
    w: Tensor,
    out: Tensor,
    *,
    stride: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    transposed: bool,
) -> bool:
    """Whether the kernel can read and write these tensors in place."""
    step, depth = stride[0], _DEPTH_BYTES // source.element_size()
    channels, results = source.shape[4], out.shape[4]
    return (
        _device.on_hopper(source.device)
        and groups == 1
        and stride in {(1, 1), (2, 2)}
        and (
            source.dtype in {torch.bfloat16, torch.float16}
            or (source.dtype == torch.float32 and _device.convolution_tensor_float32())
        )
        # Smaller tiles than the portable kernel's would be mostly padding here.
        and results > 32
        and -(-channels // depth) * depth <= 2 * channels
        and images_by_tma(source, 1 if transposed else step)
        and w.is_contiguous()
        and w.data_ptr() % 16 == 0
        and w.shape[3] * w.element_size() % 16 == 0
        and (step == 1 or transposed or channels % depth == 0)
        and (step == 1 or not transposed or dilation == (1, 1))
        and out.stride(4) == 1
        and 256 * out.stride(1) < 2**31
    )


def config(
    out: Tensor,
    w: Tensor,
    samples: int,
    *,
    stride: tuple[int, int],
    dilation: tuple[int, int],
    transposed: bool,
) -> HopperConfig:
    """Tiles for results ``[P, B, OH, OW, M]`` with ``samples`` masks in a pass.

    Measured on an H200: two programs to a processor hide each other's waiting, so that tiles are
    as large as half of its registers and of its shared memory allow.
    """
    B, OH, OW, M = out.shape[1:]
    phases = stride[0] if transposed else 1
    height, width = (_power_of_two(-(-size // phases)) for size in (OH, OW))
    width = min(width, 32)
    height = max(min(height, 256 // width), -(-16 // width))
    positions = height * width
    outputs = 64 if M <= 64 else 128
    if samples == 1 and B > 1:
        images = min(256 // positions, _power_of_two(B))
        warps = 8 if outputs == 128 and images * positions > 128 else 4
        return HopperConfig(images, height, width, outputs, warps, 3 if outputs == 128 else 2)
    edge = (w.shape[1] - 1) * dilation[0]
    if (
        positions == 256
        and stride == (1, 1)
        and edge in {2, 4}
        and width >= 8
        and VIEWS_MAY_OVERLAP
    ):
        return HopperConfig(1, height, width, 64, 4, 3, 2, w.shape[1])
    if positions == 256 and outputs == 128:
        height, positions = max(1, height // 2), 128
    if positions >= 128:
        return HopperConfig(1, height, width, outputs, 4, 3 if outputs == 128 else 2)
    # As many images as there is room for sums: [outputs, positions] of each.
    images = min(128 * 128 // (outputs * positions), 8, _power_of_two(B))
    if positions <= 16:
        return HopperConfig(images, height, width, outputs, 4, 2, by_warp=1)
    return HopperConfig(images, height, width, outputs, 4, 3 if outputs == 128 else 2)


def dense_config(
    out: Tensor, w: Tensor, *, stride: tuple[int, int], dilation: tuple[int, int]
) -> HopperConfig:
    """Tiles for a forward without masks of 16 bits, results ``[P, B, OH, OW, M]``.

    Measured on an H200, 3 × 3 taps: 0.9 to 1.2 times cuDNN's speed.
    """
    B, OH, OW, M = out.shape[1:]
    width = min(_power_of_two(OW), 32)
    height = max(min(_power_of_two(OH), 256 // width), -(-16 // width))
    edge = (w.shape[1] - 1) * dilation[0]
    whole = height * width == 256 and width >= 8
    if whole and stride == (1, 1) and edge in {2, 4} and VIEWS_MAY_OVERLAP:
        return HopperConfig(1, height, width, 64, 4, 3, 2, w.shape[1])
    height = min(height, 128 // width)
    images = min(128 // (height * width), _power_of_two(B))
    if M > 128:
        return HopperConfig(images, height, width, 256, 8, 3)
    return HopperConfig(images, height, width, 64 if M <= 64 else 128, 4, 3 if M <= 64 else 2)


def launch(
    source: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor | None,
    sample_ids: Tensor | None,
    pass_ids: Tensor | None,
    out: Tensor,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    keep: int,
    bits: int,
    scale: float,
    transposed: bool,
    tiles: HopperConfig | None = None,
    ending: dict[str, Any] | None = None,
) -> None:
    """Write the convolution, or its input gradient, into ``out``; ``suits`` must hold.

    With ``bits`` = 0 key and ids are not read, and may be None; ``ending``: of
    ``_epilogue.options``.
    """
    P, B, OH, OW, M = out.shape
    if out.numel() == 0:
        return
    if bits == 0:
        key = sample_ids = pass_ids = None
    S, step = 1 if sample_ids is None else sample_ids.shape[0], stride[0]
    if tiles is None and bits == 0 and not transposed and w.element_size() == 2:
        tiles = dense_config(out, w, stride=stride, dilation=dilation)
    tiles = tiles or config(out, w, S, stride=stride, dilation=dilation, transposed=transposed)
    depth = _DEPTH_BYTES // w.element_size()
    phases = step if transposed else 1
    down, slots = tiles.down, tiles.slots or tiles.stages
    edge = (down - 1) * dilation[0]
    box = (1 if edge else tiles.images, tiles.height, tiles.width)
    block = (depth, tiles.outputs) if transposed else (tiles.outputs, depth)
    described, per_pass = describe_images(source, box, depth, 1 if transposed else step)
    programs = -(-M // tiles.outputs) * phases**2 * P * -(-B // tiles.images)
    programs *= -(-OH // (phases * tiles.height)) * -(-OW // (phases * tiles.width))
    with _launch.on_device_of(source):
        masked_conv_kernel[(programs,)](
            described,
            describe_images(source, (1, edge, tiles.width), depth, 1)[0] if edge else described,
            describe_taps(w, *block),
            *(w if t is None else t for t in (bias, key, sample_ids, pass_ids)),
            out,
            B,
            per_pass,
            OH,
            OW,
            M,
            source.shape[4],
            w.shape[3] // 4,
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0) if sample_ids is not None and S > 1 else 0,
            pass_ids.stride(0) if pass_ids is not None else 0,
            *out.stride()[:4],
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            HAS_BIAS=bias is not None,
            TRANSPOSED=transposed,
            TAPS=(w.shape[2], step, *padding, *dilation),
            KH=w.shape[1],
            BM=tiles.outputs,
            IMAGES=tiles.images,
            DOWN=down,
            SLOTS=slots,
            PARTS=tiles.images if S > 1 else 1,
            STAGES=tiles.stages,
            BY_WARP=bool(tiles.by_warp),
            **(ending or {}),
            num_warps=tiles.warps,
        )


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
