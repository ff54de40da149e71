"""Run T passes in one forward: the deterministic part on B rows, the stochastic part on T · B.

``FoldedPasses`` is a torch function mode. It follows two kinds of tensor through the model:
*plain* ones, computed from the input alone (B rows), and *folded* ones, computed from the output of
a DropConnect layer (T · B rows, pass after pass). The first DropConnect layer reads its plain input
with a zero stride over the passes. Where both kinds meet (a skip connection around the first
DropConnect layer), the plain one is repeated. When the passes come in several chunks, the results
of the plain part are kept from the first chunk. What a function mode does not see (TorchScript)
comes out unmarked and is known by its number of rows.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bayes_dc.mc.guards import version_of
from bayes_dc.ops import dropconnect_linear

_STOCHASTIC: frozenset[Callable[..., Any]] = frozenset({dropconnect_linear})
_KIND = "_bayes_dc_kind"

_ORDER = (
    "The part of the model before its first DropConnect layer made other calls in the second chunk "
    "of passes than in the first ({got} where {expected} was expected): it is not a pure function "
    "of its input. Pass chunk=T to run all passes in one forward."
)
_ROWS = """\
A tensor of {got} rows met passes folded into {expected} rows ({passes} passes × {batch} inputs) in
{where}: the model uses the batch size of its input by hand or mixes rows. {remedy}
"""
_SIZE_AT_HAND = (
    "Pass chunk=1, which runs one pass at a time, or write the model in terms of the size of the "
    "tensor at hand (x.flatten(1), x.shape[0])."
)
_FIRST_DIMENSION = (
    "Keep the inputs along the first dimension, e.g. [B, L, K] rather than [B · L, K] for L tokens."
)


class FoldedPasses(TorchFunctionMode):
    """Fold ``passes`` into the rows of a forward; see the module.

    Args:
        batch: Number of inputs B.
        passes: Passes folded into this forward.
        record: Calls and results of the plain part of an earlier chunk, or an empty list to be
            filled. None keeps nothing. After the forward the attribute ``record`` is None if the
            plain part writes in place, and must be computed again for every chunk.
    """

    def __init__(self, batch: int, passes: int, record: list[Any] | None = None) -> None:
        super().__init__()
        self.batch, self.passes = batch, passes
        self.record = record
        self._replaying = bool(record)
        self._position = 0
        self._drawn = False

    def start(self, x: Tensor) -> Tensor:
        """Mark the input of the model.

        Args:
            x: ``[B, …]``.

        Returns:
            ``x``, marked as plain; a copy that the model may write into, unless all is replayed.
        """
        marked = x.view_as(x) if self._replaying else x.clone()
        setattr(marked, _KIND, "plain")
        return marked

    def is_folded(self, output: Tensor) -> bool:
        """Whether ``output`` carries T · B rows.

        Args:
            output: What the model returned.

        Returns:
            True for a tensor computed from a DropConnect layer's output.
        """
        return self._kind_by_rows(output) == "folded"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        leaves = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        kinds = {_kind(a) for a in leaves}
        if func in _STOCHASTIC:
            self._check_rows(args[0], func)
            self._drawn = True
            return _mark(func(*args, **kwargs), "folded")
        if "folded" in kinds:
            if "plain" in kinds:
                args, kwargs = pytree.tree_map(self._repeat, (args, kwargs))
            return _mark(func(*args, **kwargs), "folded")
        if "plain" in kinds:
            return self._plain(func, args, kwargs, leaves)
        return func(*args, **kwargs)

    def _plain(self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]) -> Any:
        """Compute, or take from the record, a result that no mask has touched."""
        if self.record is None:
            return _mark(func(*args, **kwargs), "plain")
        if self._replaying:
            known = self._position < len(self.record)
            recorded, result = self.record[self._position] if known else ("no call", None)
            if recorded != func:
                raise RuntimeError(_ORDER.format(expected=recorded, got=func))
            self._position += 1
            return result
        versions = [version_of(leaf) for leaf in leaves]
        result = _mark(func(*args, **kwargs), "plain")
        if versions == [version_of(leaf) for leaf in leaves]:
            self.record.append((func, result))
        else:  # written in place: an earlier entry no longer holds its value
            self.record = None
        return result

    def _check_rows(self, x: Tensor, func: Callable[..., Any]) -> None:
        """A DropConnect layer sees B plain rows or T · B folded ones."""
        expected = self.batch * (self.passes if self._kind_by_rows(x) == "folded" else 1)
        rows = x.shape[0] if x.ndim > 1 else 1
        if rows != expected:
            raise self._row_error(rows, func.__name__)

    def _kind_by_rows(self, x: Tensor) -> str | None:
        """The kind of ``x``; of an unmarked tensor after the first draw, the one its rows tell."""
        if _kind(x) is None and self._drawn and x.shape[:1] == (self.batch * self.passes,):
            return "folded"
        return _kind(x)

    def _repeat(self, value: Any) -> Any:
        """A plain tensor repeated for every pass; anything else as it is."""
        if not isinstance(value, Tensor) or _kind(value) != "plain" or value.ndim == 0:
            return value
        if value.shape[0] != self.batch:
            raise self._row_error(value.shape[0], "an operation")
        repeated = value.unsqueeze(0).expand(self.passes, *value.shape)
        return repeated.reshape(self.passes * self.batch, *value.shape[1:])

    def _row_error(self, got: int, where: str) -> ValueError:
        return ValueError(
            _ROWS.format(
                got=got,
                expected=self.batch * self.passes,
                passes=self.passes,
                batch=self.batch,
                where=where,
                remedy=_SIZE_AT_HAND if self.passes > 1 else _FIRST_DIMENSION,
            )
        )


def _kind(tensor: Tensor) -> str | None:
    return getattr(tensor, _KIND, None)


def _mark(result: Any, kind: str) -> Any:
    """Mark every tensor of a result."""
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor):
            setattr(leaf, _KIND, kind)
    return result
