"""What a rule asks about the rows of its operands, and views under which they meet."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from bayes_dc.mc import plan_errors
from bayes_dc.mc.layouts import split_rows, viewed
from bayes_dc.mc.plan_types import Dim, Kind, Rows, Value

_INPUTS_FIRST = (
    "masks are keyed by the inputs, which are not along its first dimension",
    "Keep the inputs along the first dimension, [B, L, K] rather than [L, B, K] or [B · L, K] for "
    "L tokens (batch_first=True).",
)


class Rowwise:
    """Rows of the operands of one node."""

    @abstractmethod
    def new(self, name: str, shape: Sequence[Dim], dtype: torch.dtype, kind: Kind) -> Value:
        """New contiguous memory."""

    @abstractmethod
    def copy(self, x: Value, out: Value) -> None:
        """A step that copies."""

    @abstractmethod
    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Say that this node has no plan."""

    def rows_first(self, x: Value) -> Value:
        """``x``, whose first dimension must be the inputs, with one entry for each.

        Args:
            x: An operand that masks are drawn for.

        Returns:
            ``x``.
        """
        first = x.shape[0] if x.shape else None
        if not isinstance(first, Rows) or first.per_input != 1:
            self.refuse(*_INPUTS_FIRST)
        return x

    def within_rows(self, x: Value, dims: int | Sequence[int]) -> tuple[int, ...]:
        """Dimensions that an operation works along, none of which may be the rows.

        Args:
            x: The operand.
            dims: One or several, negative ones from the end.

        Returns:
            Them, from 0 on.
        """
        given = (dims,) if isinstance(dims, int) else tuple(dims)
        taken = tuple(d % x.ndim if x.ndim else 0 for d in given)
        if x.rows_dim in taken:
            self.refuse(*plan_errors.MIXES)
        return taken

    def aligned(self, *xs: Value) -> tuple[Value, ...]:
        """Views under which folded and plain values broadcast against each other.

        Where both kinds are among ``xs``, the dimension of the rows becomes passes and inputs (two
        dimensions; between an outer and an inner one where a row has several entries), and a plain
        value has a zero stride along the passes. Constants get dimensions of one entry where they
        have that dimension. Else all stay as they are. Dimensions after the rows keep their numbers
        from the end.

        Args:
            xs: Results and operands of an elementwise operation. A kind that occurs only in the
                result counts too.

        Returns:
            One view for each.
        """
        kinds = {x.kind for x in xs}
        if not {"plain", "folded"} <= kinds:
            return xs
        places = {
            (x.ndim - x.rows_dim, x.shape[x.rows_dim].outer, x.shape[x.rows_dim].inner)  # type: ignore[union-attr]
            for x in xs
            if x.rows_dim is not None
        }
        assert len(places) == 1, "operands with rows in different places have been refused"
        ((from_end, outer, inner),) = places
        more = (outer > 1) + (inner > 1)

        def split(x: Value) -> Value:
            if x.rows_dim is not None:
                return split_rows(x, x.rows_dim)
            at = x.ndim - from_end
            if at < 0:
                return x
            shape = (*x.shape[:at], *[1] * (2 + more), *x.shape[at + 1 :])
            return self.view(x, lambda t, b, p: _with_ones(t, at, 1 + more), shape)

        return tuple(split(x) for x in xs)

    def repeated(self, x: Value) -> Value:
        """A plain value copied for every pass, for operations that take no zero stride.

        Args:
            x: A plain value; a folded or constant one is returned as it is.

        Returns:
            A folded value in new memory.
        """
        if not x.plain:
            return x
        out = self.new("repeated", [_folded(dim) for dim in x.shape], x.dtype, "folded")
        self.copy(x, out)
        return out

    def view(
        self,
        x: Value,
        view: Callable[[Tensor, int, int], Tensor],
        shape: Sequence[Dim],
        kind: Kind | None = None,
    ) -> Value:
        """A view of a value.

        Args:
            x: What is viewed.
            view: ``view(tensor, b, passes)`` takes it of a tensor laid out as ``x``.
            shape: Its dimensions.
            kind: Its kind; default that of ``x``.

        Returns:
            A value in the same storage.
        """
        return Value(x.storage, tuple(shape), x.dtype, viewed(x, view), kind or x.kind)


def _folded(dim: Dim) -> Dim:
    return Rows(dim.per_input, True, dim.outer) if isinstance(dim, Rows) else dim


def _with_ones(t: Tensor, at: int, more: int) -> Tensor:
    """``t`` with further dimensions of one entry beside dimension ``at``."""
    for _ in range(more):
        t = t.unsqueeze(at)
    return t
