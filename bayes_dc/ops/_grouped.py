"""Launch configuration of the tensor-core kernels, and when they are used.

Configurations change speed only: tiles change neither masks nor the order of groups and splits,
and integers that do not round give equal bits under all of them.
"""

import os
from typing import NamedTuple

import torch

from bayes_dc.ops import _device, _tuned

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

MIN_ROWS = 16
"""Rows that must share a mask for a tensor-core tile to be worth its padding."""

_TARGET_PROGRAMS = 256
_MAX_PARTIAL_ELEMENTS = 1 << 26


class GroupedConfig(NamedTuple):
    """Launch configuration of a tensor-core kernel.

    Attributes:
        rows: Rows of a group per tile.
        outputs: Outputs per tile, a multiple of 32.
        inputs: Inputs per tile, a multiple of 16.
        warps: Warps per program.
        stages: Tiles in flight.
    """

    rows: int = 64
    outputs: int = 64
    inputs: int = 32
    warps: int = 4
    stages: int = 2


def uses_tensor_cores(R: int, dtype: torch.dtype) -> bool:
    """Whether R rows that share a mask go to the tensor cores.

    Args:
        R: Rows of a group.
        dtype: Type of the tensors.

    Returns:
        True for at least 16 rows in 16 bits, or in float32 where torch may use TensorFloat-32.
    """
    if R < MIN_ROWS:
        return False
    if dtype == torch.float32:
        return _device.tensor_float32()
    return dtype in {torch.bfloat16, torch.float16}


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` treats float32: torch's own switch, as ``F.linear`` follows it."""
    if INTERPRETED:
        return "widened"
    return "ieee" if dtype == torch.float32 and not _device.tensor_float32() else "tf32"


def suits_wgmma(
    rows: int, columns: int, depth: int, warps: int, stages: int, dtype: torch.dtype
) -> bool:
    """Whether the Hopper kernels have tiles of this shape.

    Args:
        rows: Rows of the tile.
        columns: Columns of the result.
        depth: Columns of the rows multiplied in a step.
        warps: Warps per program.
        stages: Tiles in flight.
        dtype: Type of the tensors.

    Returns:
        True if a step is 128 bytes deep, every group of four warps has 64 columns, and the stages
        fit into shared memory.
    """
    size = dtype.itemsize
    words = 2 * max(4 * 4 * 32 * warps, depth * columns // 8)
    return (
        dtype in {torch.bfloat16, torch.float16, torch.float32}
        and rows in {16, 32, 64, 128, 256}
        and columns in {64, 128, 256}
        and depth * size == 128
        and warps in {4, 8}
        and columns % (16 * warps) == 0
        and rows * columns <= 128 * 32 * warps
        and stages >= 2
        and stages * (rows + columns) * 128 + words + 1024 <= 227 * 1024
    )


def suits_wgmma_dw(config: GroupedConfig, dtype: torch.dtype) -> bool:
    """Whether the Hopper kernel of the weight gradient has tiles of this shape.

    Args:
        config: Launch configuration.
        dtype: Type of the tensors.

    Returns:
        True if its products fit into registers and its stages into shared memory.
    """
    columns = config.outputs + config.inputs
    stage = columns * config.rows * dtype.itemsize
    words = 2 * config.outputs * config.inputs // 8
    return (
        dtype in {torch.bfloat16, torch.float16, torch.float32}
        and (config.rows == 32 if dtype == torch.float32 else config.rows in {32, 64, 128})
        and config.outputs in {64, 128, 256}
        and config.inputs in {64, 128, 256}
        and config.warps in {4, 8}
        and config.outputs % (16 * config.warps) == 0
        and config.outputs * config.inputs <= 64 * 32 * config.warps
        and config.stages >= 2
        and config.stages * stage + words + 1024 <= 227 * 1024
    )


def reads_along_rows(t: torch.Tensor) -> bool:
    """Whether the weight gradient wants ``t`` with its rows as neighbours in memory.

    Hopper multiplies TensorFloat-32 only along the contiguous dimension, here the rows of a group.

    Args:
        t: Rows ``[P, S, R, …]``.

    Returns:
        True for float32 on such a GPU.
    """
    return t.dtype == torch.float32 and _device.on_hopper(t.device)


def room_along_rows(t: torch.Tensor) -> torch.Tensor:
    """Memory for a copy of ``t`` whose rows are neighbours; what groups share is copied once.

    Args:
        t: Rows ``[P, S, R, C]``.

    Returns:
        Uninitialised, shape ``[P or 1, S or 1, R, C]``, stride 1 along R, 16-byte aligned columns.
    """
    P, S, R, C = t.shape
    p, s = (size if t.stride(d) else min(size, 1) for d, size in enumerate((P, S)))
    return t.new_empty((p, s, C, -(-R // 4) * 4))[..., :R].transpose(2, 3)


def fwd_config(
    G: int, R: int, N: int, K: int, dtype: torch.dtype, device: torch.device
) -> GroupedConfig:
    """Configuration of the forward: measured on this GPU, or one that fits any."""
    return _config("linear_grouped_fwd", G, R, N, K, dtype, device)


def dx_config(
    G: int, R: int, N: int, K: int, dtype: torch.dtype, device: torch.device
) -> GroupedConfig:
    """Configuration of the input gradient."""
    return _config("linear_grouped_dx", G, R, N, K, dtype, device)


def dw_config(
    G: int, R: int, N: int, K: int, dtype: torch.dtype, device: torch.device
) -> GroupedConfig:
    """Configuration of the weight gradient."""
    return _config("linear_grouped_dw", G, R, N, K, dtype, device)


def dw_splits(G: int, N: int, K: int) -> int:
    """Runs of groups the weight gradient is split into; a function of the shape alone.

    Split where one program per 128 × 128 tile would leave a large GPU idle.
    """
    programs = max(1, -(-N // 128) * -(-K // 128))
    wanted = min(_TARGET_PROGRAMS // programs, G)
    return max(1, min(wanted, _MAX_PARTIAL_ELEMENTS // max(1, N * K)))


def portable_config(op: str, R: int, dtype: torch.dtype) -> GroupedConfig:
    """Configuration that any NVIDIA GPU with 96 KB of shared memory can run.

    Args:
        op: Name of the operator, as in the files of ``_tuned``.
        R: Rows of a group.
        dtype: Type of the tensors.

    Returns:
        Three stages of 24 KB; small tiles in the interpreter.
    """
    if INTERPRETED:
        return GroupedConfig(rows=16, outputs=32, inputs=16)
    depth = 128 // dtype.itemsize
    rows = max(16, min(128, 1 << max(0, R - 1).bit_length()))
    if op == "linear_grouped_fwd":
        return GroupedConfig(rows, 64, depth, 4, 3)
    if op == "linear_grouped_dx":
        return GroupedConfig(rows, depth, 64, 4, 3)
    return GroupedConfig(min(rows, depth), 64, 128, 4, 3)


def for_portable_kernel(
    op: str, config: GroupedConfig, R: int, dtype: torch.dtype, device: torch.device
) -> GroupedConfig:
    """Configuration for tensors that no Hopper kernel takes, on any GPU.

    Args:
        op: Name of the operator, as in the files of ``_tuned``.
        config: What ``fwd_config``, ``dx_config`` or ``dw_config`` returned.
        R: Rows of a group.
        dtype: Type of the tensors.
        device: Where they are.

    Returns:
        ``config``, tuned or not; ``portable_config`` for one with the tiles of a Hopper kernel on
        such a GPU: it was chosen for that kernel, and may be too large for the portable one.
    """
    if not _device.on_hopper(device):
        return config
    if op == "linear_grouped_dw":
        tiles = suits_wgmma_dw(config, dtype)
    else:
        columns, depth = config.outputs, config.inputs
        if op == "linear_grouped_dx":
            columns, depth = depth, columns
        tiles = suits_wgmma(config.rows, columns, depth, config.warps, config.stages, dtype)
    return portable_config(op, R, dtype) if tiles else config


def _config(
    op: str, G: int, R: int, N: int, K: int, dtype: torch.dtype, device: torch.device
) -> GroupedConfig:
    tuned = _tuned.lookup(op, device, dtype, G=G, R=R, N=N, K=K)
    if tuned is not None:
        return GroupedConfig(**tuned)
    if INTERPRETED or not _device.on_hopper(device):
        return portable_config(op, R, dtype)
    depth = 128 // dtype.itemsize
    if op == "linear_grouped_dw":
        if N <= 64:
            return GroupedConfig(depth, 64, 128, 4, 4)
        if R >= 128 and dtype != torch.float32:
            return GroupedConfig(128, 128, 128, 8, 3)
        return GroupedConfig(depth, 128, 128, 8, 4)
    columns = N if op == "linear_grouped_fwd" else K
    # Tiles of 256 rows run at 1.16 times the speed of those of 128, unless they are padding.
    whole = -(-R // 256) * 256 * 0.86 <= -(-R // 128) * 128
    if columns <= 64:
        rows, columns, warps, stages = (128 if R > 64 else 64), 64, 4, 4
    elif R > 128 and whole:
        rows, columns, warps, stages = 256, 128, 8, 4
    else:
        rows, columns, warps, stages = (128 if R > 64 else 64), 128, 4, 3
    if op == "linear_grouped_fwd":
        return GroupedConfig(rows, columns, depth, warps, stages)
    return GroupedConfig(rows, depth, columns, warps, stages)
