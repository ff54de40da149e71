"""DropConnect in place of ``nn.Linear``."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayes_dc.nn.module import DropConnectModule
from bayes_dc.ops import _arguments, dropconnect_linear
from bayes_dc.types import MaskScale, MaskScope, Sampler


class DropConnectLinear(DropConnectModule, nn.Linear):
    """``nn.Linear`` that drops weights, with a mask of its own for every row.

    In training mode, and wherever ``MaskKeys`` are attached, see
    :func:`bayes_dc.dropconnect_linear`. In evaluation mode it is exactly the mean-weight layer
    W x + b (with ``scale="none"``: keep · W x + b).

    Without attached keys each training forward draws its layer key from torch's generator of the
    input's device: fresh masks every time, reproducible by ``torch.manual_seed``, and the same
    again when activation checkpointing repeats the forward.

    Parameters, their names and their initialisation are those of ``nn.Linear``; state dicts load
    both ways.

    Args:
        in_features: K.
        out_features: N.
        bias: Whether to add a bias; it is never dropped.
        device: As in ``nn.Linear``.
        dtype: As in ``nn.Linear``.
        p: Drop probability in [0, 1).
        scope: Which rows share a mask: ``"row"`` none, ``"sample"`` the positions of one entry of
            the first dimension, ``"pass"`` the whole batch.
        scale: ``"inverted"`` divides by the keep probability, ``"none"`` does not.
        sampler: ``"bernoulli"`` masks weights; ``"gaussian"`` draws the output from the normal
            distribution with the same mean and variance, and needs ``scope="row"``.

    Raises:
        TypeError: If ``p`` is not a number.
        ValueError: If ``p`` or an option is out of range.

    Example:
        >>> layer = DropConnectLinear(8, 4, p=0.25)
        >>> layer(torch.ones(2, 8)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        p: float = 0.5,
        scope: MaskScope = "row",
        scale: MaskScale = "inverted",
        sampler: Sampler = "bernoulli",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.configure(p=p, scope=scope, scale=scale, sampler=sampler)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: ``[rows, …, K]``; see :func:`bayes_dc.dropconnect_linear` for folded passes.

        Returns:
            ``[rows, …, N]``.
        """
        if self.masks is None and not self.training:
            return F.linear(x, self.mean_weight(), self.bias)
        _arguments.check_types(x=x)
        key, sample_ids, pass_ids = self.mask_coordinates(x.device)
        return dropconnect_linear(
            x,
            self.weight,
            self.bias,
            p=self.p,
            key=key,
            sample_ids=sample_ids,
            pass_ids=pass_ids,
            scope=self.scope,
            scale=self.scale,
            sampler=self.sampler,
        )

    def extra_repr(self) -> str:
        """Arguments as shown by ``print(model)``.

        Returns:
            One line.
        """
        return f"{super().extra_repr()}, {self.options_repr()}"
