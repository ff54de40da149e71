"""Nodes that are computed together with the one before them: BatchNorm, ReLU and pooling."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayes_dc.mc.plan_types import Value
from bayes_dc.mc.trace_types import Node
from bayes_dc.mc.views import packet

if TYPE_CHECKING:
    from bayes_dc.mc.lowering.context import Context

_NORMS = {"_native_batch_norm_legit_no_training", "batch_norm", "native_batch_norm"}
_AFTER = {"relu", "relu_"}
_POOLING = (None, None, (), 0, 1, False)
"""Arguments of ``max_pool2d`` by default."""


class Followers:
    """Which nodes have been fused into others.

    Args:
        output: The node whose result is returned.
    """

    def __init__(self, output: Node) -> None:
        self._output = output
        self.fused: set[Node] = set()
        self.fused_by: dict[Node, list[Node]] = {}

    def followers(
        self, c: "Context", channel_dim: int, pools: bool
    ) -> tuple[Value | None, Value | None, bool, bool, Node]:
        """BatchNorm, ReLU and pooling that alone read a node.

        Args:
            c: The context of the node.
            channel_dim: Dimension of its result that BatchNorm must normalise along.
            pools: Whether the node can write the largest of 2 × 2 results.

        Returns:
            Scale and shift ``[channels]``, whether ReLU and then pooling follow, and the last
            follower.
        """
        node, last = c.node, c.node
        meta = c.meta()
        scale, shift, relu = None, None, False
        user = self._only_user(last)
        if user and packet(user.target) in _NORMS and channel_dim % len(meta.shape) == 1:
            affine = self._affine(c, user)
            first = self._only_user(user)
            if affine and first is not None and first.args[1:] == (0,):
                scale, shift = affine
                self._fuse(node, user, first)
                last = first
        user = self._only_user(last)
        if user and packet(user.target) in _AFTER:
            relu, last = True, user
            self._fuse(node, user)
        if last is not node:
            final = last.outs[0]
            assert final is not None
            last.outs[0] = replace(final, shape=meta.shape)
        user = self._only_user(last)
        pool = pools and user is not None and _takes_largest_of_four(user)
        if user and pool:
            last = user
            self._fuse(node, user)
        return scale, shift, relu, pool, last

    def _fuse(self, node: Node, *followers: Node) -> None:
        self.fused.update(followers)
        self.fused_by.setdefault(node, []).extend(followers)

    def _only_user(self, node: Node) -> Node | None:
        """The one node that reads a result."""
        users = set(node.users)
        return users.pop() if len(users) == 1 and node is not self._output else None

    @staticmethod
    def _affine(c: "Context", norm: Node) -> tuple[Value, Value] | None:
        """Scale and shift of BatchNorm with its running statistics."""
        at = {"batch_norm": (7, 5), "native_batch_norm": (7, 5)}.get(packet(norm.target), (6, None))
        epsilon, training = norm.args[at[0]], at[1]
        tensors: list[Any] = list(norm.args[1:5])
        if (training is not None and norm.args[training]) or None in tensors[2:]:
            return None
        if any(isinstance(t, Node) and t.kind != "constant" for t in tensors):
            return None
        weight, bias, mean, variance = (c.value_of(t) for t in tensors)
        assert mean is not None
        assert variance is not None
        kept = [v for v in (variance, weight) if v is not None]
        scale = c.constant(lambda *t: _scale(epsilon, *t), *kept, name=f"{norm.name}.scale")
        kept = [v for v in (mean, scale, bias) if v is not None]
        return scale, c.constant(_shift, *kept, name=f"{norm.name}.shift")


def _takes_largest_of_four(node: Node) -> bool:
    """Whether a node is the maximum over windows of 2 × 2 side by side, none of which overhangs."""
    if packet(node.target) != "max_pool2d" or node.kwargs:
        return False
    given: list[Any] = [*node.args, *_POOLING[len(node.args) :]]
    _, size, step, padding, dilation, beyond = given
    sizes, steps, pads, gaps = (_pair(v) for v in (size, step or size, padding, dilation))
    return sizes == steps == (2, 2) and pads == (0, 0) and gaps == (1, 1) and not beyond


def _pair(given: int | Sequence[int]) -> tuple[int, ...]:
    both = (given,) if isinstance(given, int) else tuple(given)
    return both * (3 - len(both))


def _scale(epsilon: float, variance: Tensor, weight: Tensor | None = None) -> Tensor:
    wide = variance.to(torch.promote_types(variance.dtype, torch.float32))
    scale = torch.rsqrt(wide + epsilon)
    return scale if weight is None else scale * weight


def _shift(mean: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shift = -mean * scale
    return shift if bias is None else shift + bias
