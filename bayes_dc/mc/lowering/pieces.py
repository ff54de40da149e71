"""Large scratch in pieces, so that it does not decide the size of the arena."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bayes_dc.mc.layouts import contiguous
from bayes_dc.mc.lowering.context import Context
from bayes_dc.mc.plan_types import Bind, Call, Dim, Layout, Value, size_of

PIECE_BYTES = 1 << 20
"""Scratch of one step, unless a single row needs more."""
SHORT_TYPES = {torch.bfloat16, torch.float16}


def rows_together(row_bytes: int) -> int:
    """Entries of the first dimension that a step computes together.

    Args:
        row_bytes: Scratch of one entry.

    Returns:
        At least 1.
    """
    return max(1, PIECE_BYTES // max(1, row_bytes))


def scratch_of_piece(
    c: Context, rows: Dim, together: int, rest: Sequence[int], dtype: torch.dtype, name: str
) -> Value:
    """Scratch for the entries of a piece, or for all where there are fewer.

    Args:
        c: The node.
        rows: First dimension of what is cut into pieces.
        together: Entries of a piece.
        rest: Other dimensions.
        dtype: Its type.
        name: What it is, for reports.

    Returns:
        ``[≤ together, …]``.
    """
    room = c.scratch((together, *rest), dtype, name)

    def layout(b: int, passes: int) -> Layout:
        return contiguous((min(together, size_of(rows, b, passes)), *rest))(b, passes)

    return replace(room, layout=layout)


def pieces(rows: int, together: int) -> Iterator[tuple[int, int]]:
    """First entry and number of entries of each piece.

    Args:
        rows: Entries.
        together: Those of a piece.

    Yields:
        Both numbers.
    """
    for first in range(0, rows, together):
        yield first, min(together, rows - first)


def in_full_precision(
    c: Context,
    x: Value,
    out: Value,
    calls: Callable[[Bind, Tensor, Tensor], list[Call]],
    scratch: Sequence[Value] = (),
) -> None:
    """A step on a CPU that computes 16-bit types in float32, a piece of the rows at a time.

    Args:
        c: The node.
        x: The operand, its rows in the first dimension.
        out: The result, of its shape; may be ``x``.
        calls: ``calls(bind, x, y)`` for tensors of the same shape; both may be one tensor.
        scratch: What ``calls`` uses, with an entry for each row of ``x``.
    """
    if x.dtype not in SHORT_TYPES:
        c.step(lambda bind: calls(bind, bind(x), bind(out)), [x], [out], scratch)
        return
    rows, *rest = x.shape
    if not all(isinstance(size, int) for size in rest):
        c.refuse(
            f"it computes {x.dtype} along other dimensions than the inputs'",
            "Keep the inputs along the first dimension, or use float32.",
        )
    bytes_of_row = torch.Size(rest).numel() * 4  # type: ignore[arg-type]
    together = rows_together(bytes_of_row)
    room = scratch_of_piece(c, rows, together, rest, torch.float32, "float32")  # type: ignore[arg-type]

    def emit(bind: Bind) -> list[Call]:
        source, to, wide = bind(x), bind(out), bind(room)
        result: list[Call] = []
        for first, count in pieces(len(source), together):
            part = wide[:count]
            result.append((part.copy_, (source[first : first + count],), {}))
            result += calls(bind, part, part)
            result.append((to[first : first + count].copy_, (part,), {}))
        return result

    c.step(emit, [x], [out], [room, *scratch])
