"""DropConnect convolution with explicit masks, in plain torch: the definition of the kernels.

Shapes: x [P, B, H, W, C] (passes, images, channels last), w [N, KH, KW, C / groups], bias [N],
gy and y [P, B, OH, OW, N], mask [P, S, N, K] of booleans with K = KH · KW · C / groups and
k = (kh · KW + kw) · C / groups + c. S = B: every image has its own mask; S = 1: all share one.
Give float64 tensors for an oracle. Differentiable.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayes_dc.ops.linear.reference import explicit_masks

__all__ = ["Geometry", "explicit_masks", "forward", "grad_input", "grad_weight", "patches"]


class Geometry(NamedTuple):
    """How the kernel moves over the image, as for ``F.conv2d``; padding is symmetric.

    Attributes:
        stride: Along height and width.
        padding: Zeros on both sides.
        dilation: Distance of neighbouring taps.
        groups: Groups of channels.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def out_size(self, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output.

        Args:
            size: Height and width of the input.
            kernel: Height and width of the kernel.

        Returns:
            OH and OW.
        """
        height, width = (
            (n + 2 * pad - gap * (k - 1) - 1) // step + 1
            for n, k, step, pad, gap in zip(
                size, kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return height, width


def patches(x: Tensor, kernel: tuple[int, int], S: int, at: Geometry) -> Tensor:
    """The inputs of every output position, in the order of the mask.

    Args:
        x: ``[P, B, H, W, C]``.
        kernel: KH and KW.
        S: Masks of a pass, B or 1.
        at: Geometry.

    Returns:
        ``[P, S, R, groups, K]`` with R = OH · OW positions (times B for S = 1).
    """
    P, B, H, W, C = x.shape
    images = x.reshape(P * B, H, W, C).permute(0, 3, 1, 2)
    columns = F.unfold(images, kernel, at.dilation, at.padding, at.stride)  # [P·B, C·KH·KW, OH·OW]
    split = columns.view(P, B, at.groups, C // at.groups, kernel[0] * kernel[1], columns.shape[-1])
    ordered = split.permute(0, 1, 5, 2, 4, 3)  # [P, B, OH·OW, groups, KH·KW, C / groups]
    R = B // max(S, 1) * columns.shape[-1]
    return ordered.reshape(P, S, R, at.groups, kernel[0] * kernel[1] * (C // at.groups))


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, mask: Tensor, scale: float, at: Geometry
) -> Tensor:
    """y[p, b, i, j, n] = scale · Σ_k mask[p, s, n, k] w[n, k] patch[p, b, i, j, k] + bias[n].

    Args:
        x: ``[P, B, H, W, C]``.
        w: ``[N, KH, KW, C / groups]``.
        bias: ``[N]`` or None.
        mask: Boolean ``[P, S, N, K]``. A dropped weight is selected away, not multiplied by 0.
        scale: Factor on the masked product.
        at: Geometry.

    Returns:
        ``[P, B, OH, OW, N]``.
    """
    N, KH, KW, _ = w.shape
    found = patches(x, (KH, KW), mask.shape[1], at)
    y = scale * torch.einsum("psrgk,psgnk->psrgn", found, _masked(w, mask, at))
    y = y.reshape(*x.shape[:2], *at.out_size((x.shape[2], x.shape[3]), (KH, KW)), N)
    return y if bias is None else y + bias


def grad_input(
    gy: Tensor, w: Tensor, mask: Tensor, scale: float, at: Geometry, size: tuple[int, int]
) -> Tensor:
    """Input gradient: dx = scale · Σ mask w gy over all outputs that read the input.

    Args:
        gy: ``[P, B, OH, OW, N]``.
        w: ``[N, KH, KW, C / groups]``.
        mask: Boolean ``[P, S, N, K]``.
        scale: Factor on the masked product.
        at: Geometry.
        size: H and W.

    Returns:
        ``[P, B, H, W, C]``.
    """
    P, B = gy.shape[:2]
    _, KH, KW, Cg = w.shape
    products = torch.einsum("psrgn,psgnk->psrgk", _rows(gy, mask, at), _masked(w, mask, at))
    split = products.reshape(P, B, gy.shape[2] * gy.shape[3], at.groups, KH * KW, Cg)
    columns = split.permute(0, 1, 3, 5, 4, 2).reshape(
        P * B, at.groups * Cg * KH * KW, split.shape[2]
    )
    images = F.fold(scale * columns, size, (KH, KW), at.dilation, at.padding, at.stride)
    return images.view(P, B, at.groups * Cg, *size).permute(0, 1, 3, 4, 2)


def grad_weight(
    gy: Tensor, x: Tensor, mask: Tensor, scale: float, at: Geometry, kernel: tuple[int, int]
) -> Tensor:
    """dw[n, k] = scale · Σ_{p, s} mask[p, s, n, k] Σ_r gy[p, s, r, n] patch[p, s, r, k].

    Args:
        gy: ``[P, B, OH, OW, N]``.
        x: ``[P, B, H, W, C]``.
        mask: Boolean ``[P, S, N, K]``.
        scale: Factor on the masked product.
        at: Geometry.
        kernel: KH and KW.

    Returns:
        ``[N, KH, KW, C / groups]``.
    """
    found = patches(x, kernel, mask.shape[1], at)
    products = torch.einsum("psrgn,psrgk->psgnk", _rows(gy, mask, at), found)
    zero = torch.zeros((), dtype=products.dtype, device=products.device)
    dw = scale * torch.where(mask.view(products.shape), products, zero).sum(dim=(0, 1))
    return dw.reshape(gy.shape[-1], *kernel, x.shape[-1] // at.groups)


def _masked(w: Tensor, mask: Tensor, at: Geometry) -> Tensor:
    """Masked weights [P, S, groups, N / groups, K]."""
    zero = torch.zeros((), dtype=w.dtype, device=w.device)
    masked = torch.where(mask, w.flatten(1), zero)
    P, S, N, K = masked.shape
    return masked.view(P, S, at.groups, N // at.groups, K)


def _rows(gy: Tensor, mask: Tensor, at: Geometry) -> Tensor:
    """The rows of gy as [P, S, R, groups, N / groups]."""
    P, B, OH, OW, N = gy.shape
    S = mask.shape[1]
    return gy.reshape(P, S, B // max(S, 1) * OH * OW, at.groups, N // at.groups)
