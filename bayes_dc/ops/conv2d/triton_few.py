"""Convolution with few channels by the kernel that keeps its weights: when, its tiles, launch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayes_dc.ops import _conv, _device, _launch
from bayes_dc.ops.conv2d.triton_few_kernel import few_channels_kernel

_MOST_OUTPUTS = 32
_WEIGHT_REGISTERS = 96
"""Most registers of a thread that hold weights."""
_ENOUGH_PROGRAMS = 2 * 132 * 16
"""Programs of one warp with which a large GPU is busy."""


class FewConfig(NamedTuple):
    """Launch configuration.

    Attributes:
        passes: Passes per program, a power of two, of images that passes share.
        tiles: Tiles of positions per program.
        rows: Positions per tile and warp, 16 or 32; with pooling 32.
        warps: Warps per program.
        pairs: 1 to take two neighbouring elements of float32 together.
        registers: Highest number of registers per lane, 0 for the compiler's choice.
    """

    passes: int
    tiles: int
    rows: int = 16
    warps: int = 1
    pairs: int = 0
    registers: int = 0


def suits(w: Tensor, groups: int, device: torch.device) -> bool:
    """Whether the kernel computes such a convolution on ``device``: by its shape, not by strides.

    Without a GPU: whether it would.
    """
    return (
        device.type == "cuda"
        and (not torch.cuda.is_available() or _device.gpu(device).capability >= (8, 0))
        and (w.dtype != torch.float32 or _device.convolution_tensor_float32())
        and fits(w, groups)
    )


def fits(w: Tensor, groups: int) -> bool:
    """Whether weights ``[N, KH, KW, C / groups]`` can be kept in registers.

    Not for whole 16 channels, which the portable kernel reads in vectors.
    """
    return (
        groups == 1
        and w.shape[3] % 16 > 0
        and w.dtype in {torch.float32, torch.bfloat16, torch.float16}
        and w.shape[0] <= _MOST_OUTPUTS
        and _registers(w) <= _WEIGHT_REGISTERS
    )


def _registers(w: Tensor) -> int:
    """Registers of a thread that hold weights [N, KH, KW, C]."""
    inputs = -(-w[0].numel() // 16) * 16
    return inputs * _outputs(w.shape[0]) * w.element_size() // 128


def _outputs(n: int) -> int:
    return max(8, _power_of_two(n))


def config(x: Tensor, w: Tensor, out: Tensor, samples: int, pool: bool) -> FewConfig:
    """Tiles of a launch with ``samples`` masks in a pass; measured on an H200."""
    P, B = x.shape[:2]
    shared = P > 1 and x.stride(0) == 0
    passes = min(8, _WEIGHT_REGISTERS // _registers(w), P) if shared else 1
    passes = 1 << (max(1, passes).bit_length() - 1)
    rows = 32 if pool else 16
    positions = B // samples * out.shape[2] * out.shape[3] * (4 if pool else 1)
    tiles = -(-positions // rows)
    groups = samples * -(-P // passes)
    chunks = max(-(-tiles // 16), min(-(-tiles // 4), -(-_ENOUGH_PROGRAMS // groups)))
    # Of eight passes the compiler would spill a few rather than take 172 registers.
    registers = 200 if pool and passes == 8 else 0
    return FewConfig(passes, -(-tiles // chunks), rows, registers=registers)


def launch(
    x: Tensor,
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
    tiles: FewConfig | None = None,
    ending: dict[str, Any] | None = None,
    pool: bool = False,
) -> None:
    """Write the convolution into ``out``; ``suits`` must hold.

    With ``bits`` = 0 key and ids are not read, and may be None; ``ending``: of
    ``_epilogue.options``; ``pool``: ``out`` takes the largest of 2 × 2 results.
    """
    P, B, H, W, C = x.shape
    N, KH, KW, _ = w.shape
    if bits == 0:
        key = sample_ids = pass_ids = None
    S = 1 if sample_ids is None else sample_ids.shape[0]
    height, width = (
        (size + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for size, pad, gap, taps, step in zip(
            (H, W), padding, dilation, (KH, KW), stride, strict=True
        )
    )
    tiles = tiles or config(x, w, out, S, pool)
    positions = B // S * out.shape[2] * out.shape[3]
    units = tiles.rows * tiles.warps // (4 if pool else 1)
    chunks = -(-positions // (units * tiles.tiles))
    programs = chunks * S * -(-P // tiles.passes)
    _conv.check_sizes(positions, programs)
    wide = _conv.is_wide(x)
    dense = not wide and dilation[1] == 1 and _is_dense(x)
    align = 2 if dense and _is_even(x) else 1
    with _launch.on_device_of(x):
        few_channels_kernel[(programs,)](
            x,
            w,
            *(w if t is None else t for t in (bias, key, sample_ids, pass_ids)),
            out,
            P,
            S,
            B // S,
            chunks,
            tiles.tiles,
            x.stride(0) // align,
            x.stride(1) // align,
            *x.stride()[2:4],
            *(t.stride(0) if t is not None else 0 for t in (bias, sample_ids, pass_ids)),
            H=H,
            W=W,
            C=C,
            OH=height,
            OW=width,
            N=N,
            KH=KH,
            KW=KW,
            SH=stride[0],
            SW=stride[1],
            PH=padding[0],
            PW=padding[1],
            DH=dilation[0],
            DW=dilation[1],
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            HAS_BIAS=bias is not None,
            ONE=B == S,
            POOL=pool,
            PASSES=tiles.passes,
            BM=tiles.rows * tiles.warps,
            BN=_outputs(N),
            DENSE=dense,
            WIDE=wide,
            ALIGN=align,
            WIDTH=2 if tiles.pairs else 4 // x.element_size(),
            **(ending or {}),
            num_warps=tiles.warps,
            maxnreg=tiles.registers or None,
        )


def _is_dense(x: Tensor) -> bool:
    """Whether every image [H, W, C] is contiguous."""
    H, W, C = x.shape[2:]
    return (x.stride(3) == C or W == 1) and (x.stride(2) == W * C or H == 1)


def _is_even(x: Tensor) -> bool:
    """Whether pairs of channels are aligned wherever a pixel begins."""
    return (
        x.shape[4] % 2 == 0
        and x.data_ptr() % (2 * x.element_size()) == 0
        and all(s % 2 == 0 or n == 1 for s, n in zip(x.stride()[:2], x.shape[:2], strict=True))
    )


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
