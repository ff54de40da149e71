"""Few rows for each mask on Hopper: launches the kernel whose weights serve several groups."""

from typing import Any

import triton
from torch import Tensor

from bayes_dc.ops import _device, _launch, _parts
from bayes_dc.ops._hopper import by_tma, describe, describe_parts
from bayes_dc.ops.linear.triton_wgmma_parts_kernel import masked_parts_kernel


def suits(x: Tensor, w: Tensor, out: Tensor, config: _parts.PartsConfig) -> bool:
    """Whether the kernel can read and write these tensors in place with this configuration."""
    return (
        _device.on_hopper(x.device)
        and _parts.suits_parts(config, x.dtype)
        and by_tma(x)
        and by_tma(w)
        and x.shape[3] > 0
        and out.stride(3) == 1
    )


def launch(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    config: _parts.PartsConfig,
    ending: dict[str, Any] | None = None,
) -> None:
    """Write the forward into ``out``; ``suits`` must hold and no dimension be 0.

    ``ending``: of ``_epilogue.options``.
    """
    P, S, R, K = x.shape
    N = w.shape[0]
    by_sample = _parts.parts_are_samples(P, S, x.stride(0) == 0)
    parts, others = (S, P) if by_sample else (P, S)
    padded = 1 << (config.parts - 1).bit_length()
    depth = 128 // x.element_size()
    runs = triton.cdiv(parts, config.parts)
    grid = (triton.cdiv(N, config.outputs) * triton.cdiv(R, config.rows) * runs * others,)
    with _launch.on_device_of(x):
        masked_parts_kernel[grid](
            describe_parts(x, (1, padded) if by_sample else (padded, 1), config.rows, depth),
            describe(w, config.outputs, depth),
            bias if bias is not None else w,
            key,
            sample_ids,
            pass_ids,
            out,
            P,
            S,
            R,
            N,
            K,
            *(int(x.stride(d) > 0) for d in (0, 1)),
            bias.stride(0) if bias is not None else 0,
            sample_ids.stride(0),
            pass_ids.stride(0),
            *out.stride()[:3],
            KEEP=keep,
            BITS=bits,
            SCALE=scale,
            HAS_BIAS=bias is not None,
            BM=config.outputs,
            PARTS=config.parts,
            BY_SAMPLE=by_sample,
            STAGES=config.stages,
            **(ending or {}),
            num_warps=config.warps,
        )
