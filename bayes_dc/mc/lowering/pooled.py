"""Convolutions with masks that write the largest of 2 × 2 results, on a GPU."""

from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.kernels import plain_kernel
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.plan_types import Bind, Call, Dim, Site, Value
from bayes_dc.ops.conv2d import op as conv2d_op


def pools(c: Context, site: Site, images: Value, w: Value) -> bool:
    """Whether the shapes are such that a kernel can write the largest of 2 × 2 results.

    Args:
        c: The node.
        site: The site.
        images: ``[P, b, C, H, W]``.
        w: ``[N, KH, KW, C / groups]``.

    Returns:
        Whether it can, of the right type of products (see ``Pooled.choose``).
    """
    if c.device != "cuda":
        return False
    x, weights = (bare(v, *SAMPLES[0]) for v in (images, w))
    return conv2d_op.pools(x.permute(0, 1, 3, 4, 2), weights, site.groups)


class Pooled:
    """Memory and calls of such a convolution.

    Args:
        c: The node.
        shape: ``[N, OH, OW]`` of the results before they are pooled.
        out: The pooled result.

    Attributes:
        rooms: Scratch: in float32 products may have to be of full precision when the plan runs,
            which the kernel that pools does not have.
    """

    def __init__(self, c: Context, shape: list[int], out: Value) -> None:
        N, OH, OW = shape
        assert bare(out, *SAMPLES[0]).is_contiguous(memory_format=torch.channels_last)
        dims: tuple[Dim, ...] = (out.shape[0], OH, OW, N)
        self.rooms = [c.scratch(dims, out.dtype, "unpooled")] if out.dtype.itemsize > 2 else []
        self._out = out

    def choose(
        self, bind: Bind, images: Tensor, w: Tensor, result: Tensor, site: Site
    ) -> tuple[Tensor, dict[str, Any], list[Call]]:
        """What the launcher writes, by the switch of TensorFloat-32 as it is now.

        Args:
            bind: Gives tensors.
            images: ``[P, b, H, W, C]``.
            w: ``[N, KH, KW, C / groups]``.
            result: ``[P, b, OH, OW, N]``, pooled.
            site: The site.

        Returns:
            Where it writes, its options, and calls that follow.
        """
        if conv2d_op.pools(images, w, site.groups):
            return result, {"pool": True}, []
        room = bind(self.rooms[0])
        args = (room.permute(0, 3, 1, 2), bind(self._out))
        options = {"kernel_size": (2, 2), "stride": (2, 2)}
        whole = room.unflatten(0, result.shape[:2])
        return whole, {}, [(plain_kernel("launch_max_pool2d"), args, options)]
