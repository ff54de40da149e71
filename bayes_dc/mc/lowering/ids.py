"""What launchers of layers with masks read: operands they can view, and ids of rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import SAMPLES
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.lowering.sizes import bare
from bayes_dc.mc.plan_types import Bind, Call, Rows, Site, Value


def packed_unless(c: Context, x: Value, fits: Callable[[Tensor], bool]) -> tuple[Value, list[Any]]:
    """``x`` where its layout fits, or scratch with a copy of it.

    Args:
        c: The node.
        x: An operand.
        fits: Whether a tensor without memory, laid out as ``x``, can be read as it is.

    Returns:
        What to read; and (scratch, ``x``), to be copied first, or nothing.
    """
    if all(fits(bare(x, b, passes)) for b, passes in SAMPLES):
        return x, []
    room = c.scratch(x.shape, x.dtype, "packed")
    if x.kind != room.kind:  # plain rows that every pass reads: one copy for all
        room = c.kept(x.shape, x.dtype, "packed")
        c.copy(x, room)
        return room, []
    return room, [(room, x)]


def ids_of_positions(c: Context, site: Site, per_input: int) -> Value:
    """Ids of the positions of every input, id · L + position, made once in a call.

    Args:
        c: The node.
        site: The site.
        per_input: L, positions of an input.

    Returns:
        int64 ``[b · L]``.
    """
    ids = c.kept((Rows(per_input, folded=False),), torch.int64, "ids")
    factor = c.scalar(per_input, torch.int64)
    positions = c.constant(
        lambda one: torch.arange(per_input, dtype=torch.int64, device=one.device), factor
    )

    def emit(bind: Bind) -> list[Call]:
        room = bind(ids).view(bind.b, per_input)
        samples = bind.sites[site.index].sample_ids[:, None]
        return [(torch.add, (bind(positions), samples), {"alpha": per_input, "out": room})]

    c.step(emit, [], [ids])
    return ids


def one_id(c: Context) -> Value:
    """The id 0, shared by all inputs of a pass.

    Args:
        c: The node.

    Returns:
        int64 ``[1]``, a constant.
    """
    return c.view(c.scalar(0, torch.int64), lambda t, b, p: t.view(1), (1,))
