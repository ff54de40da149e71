"""DropConnect in place of ``nn.Conv2d``."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayes_dc.nn.module import DropConnectModule
from bayes_dc.ops import _arguments, dropconnect_conv2d
from bayes_dc.types import MaskScale, MaskScope, Sampler

_PADDED = (
    "padding_mode={mode!r} with padding {padding} needs images of at least {least}; x has {got}. "
    "Use larger images, less padding, or padding_mode='zeros', which takes any size."
)


class DropConnectConv2d(DropConnectModule, nn.Conv2d):
    """``nn.Conv2d`` that drops weights, with a mask of its own for every image.

    In training mode, and wherever ``MaskKeys`` are attached, see
    :func:`bayes_dc.dropconnect_conv2d`. In evaluation mode it is exactly the mean-weight layer
    W * x + b (with ``scale="none"``: keep · W * x + b). Without attached keys masks are drawn from
    torch's generator, as in :class:`bayes_dc.DropConnectLinear`.

    Parameters, their names and their initialisation are those of ``nn.Conv2d``; state dicts load
    both ways.

    Args:
        in_channels: C.
        out_channels: N.
        kernel_size: One number or (height, width).
        stride: Step of the kernel, one number or (height, width).
        padding: One number, (height, width), ``"same"`` or ``"valid"``.
        dilation: Distance of neighbouring taps, one number or (height, width).
        groups: Groups of channels.
        bias: Whether to add a bias; it is never dropped.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        device: As in ``nn.Conv2d``.
        dtype: As in ``nn.Conv2d``.
        p: Drop probability in [0, 1).
        scope: ``"sample"`` one mask per image, ``"pass"`` one for the whole batch.
        scale: ``"inverted"`` divides by the keep probability, ``"none"`` does not.
        sampler: ``"bernoulli"``; there is no other for convolutions.

    Raises:
        TypeError: If ``p`` is not a number.
        ValueError: If ``p`` or an option is out of range.

    Example:
        >>> layer = DropConnectConv2d(3, 8, 3, padding=1, p=0.25)
        >>> layer(torch.ones(2, 3, 32, 32)).shape
        torch.Size([2, 8, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Any = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        p: float = 0.5,
        scope: MaskScope = "sample",
        scale: MaskScale = "inverted",
        sampler: Sampler = "bernoulli",
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.configure(p=p, scope=scope, scale=scale, sampler=sampler)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: ``[rows, C, H, W]`` or ``[C, H, W]``; see :func:`bayes_dc.dropconnect_conv2d` for
                folded passes.

        Returns:
            ``[rows, N, OH, OW]`` or ``[N, OH, OW]``.
        """
        if self.masks is None and not self.training:
            return self._conv_forward(x, self.mean_weight(), self.bias)
        _arguments.check_types(x=x)
        key, sample_ids, pass_ids = self.mask_coordinates(x.device)
        padding: str | Sequence[int] = self.padding
        if self.padding_mode != "zeros" and x.ndim in {3, 4}:
            x = self._padded(x)
            padding = 0, 0
        return dropconnect_conv2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            p=self.p,
            key=key,
            sample_ids=sample_ids,
            pass_ids=pass_ids,
            scope=self.scope,
            scale=self.scale,
            sampler=self.sampler,
        )

    def _padded(self, x: Tensor) -> Tensor:
        """``F.pad`` in the mode of the layer, for images that are large enough."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        pads = max(top, bottom), max(left, right)
        # A reflection leaves the edge out, a circle may come round once, an edge must be there.
        least = [
            {"reflect": pad + 1, "circular": max(pad, 1)}.get(self.padding_mode, 1) for pad in pads
        ]
        if x.shape[-2] < least[0] or x.shape[-1] < least[1]:
            size, got, padding = (f"{a} × {b}" for a, b in (least, x.shape[-2:], pads))
            message = _PADDED.format(mode=self.padding_mode, padding=padding, least=size, got=got)
            raise ValueError(message)
        return F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)

    def extra_repr(self) -> str:
        """Arguments as shown by ``print(model)``.

        Returns:
            One line.
        """
        return f"{super().extra_repr()}, {self.options_repr()}"
