"""Run T passes in one forward: the deterministic part on B rows, the stochastic part on T · B.

``FoldedPasses`` is a torch function mode. It follows two kinds of tensor through the model:
*plain* ones, computed from the input alone (B rows), and *folded* ones, computed from the output of
a DropConnect or dropout layer (T · B rows, pass after pass). The first such layer reads its plain
input with a zero stride over the passes. Where both kinds meet (a skip connection around the first
layer), the plain one is repeated. When the passes come in several chunks, the results of the plain
part are kept from the first chunk. What a function mode does not see (TorchScript) comes out
unmarked and is known by its number of rows. A plain tensor that is written with folded values
(``x += h``) becomes a folded one; other views of its memory cannot, and are refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayes_dc.mc import fold_errors as errors
from bayes_dc.mc.by_torch import drawn_by_torch
from bayes_dc.mc.dropout import Dropout, FunctionCall
from bayes_dc.mc.generators import may_draw
from bayes_dc.mc.guards import version_of
from bayes_dc.mc.marks import CASTS, FACTORIES, KIND, READS, tensors_among
from bayes_dc.mc.moves import MOVES
from bayes_dc.mc.record import Record
from bayes_dc.mc.rows import MarkedRows
from bayes_dc.mc.sizes import elements_of_a_row

_COPY: Callable[..., Any] = Tensor.copy_


class FoldedPasses(MarkedRows):
    """Fold ``passes`` into the rows of a forward; see the module.

    Args:
        batch: Number of inputs B.
        passes: Passes folded into this forward.
        record: Results of the plain part, of an earlier chunk or to be filled for later ones; it
            may be dropped. None keeps nothing.
        max_elements: Largest tensor of folded rows; ``PassesDoNotFit`` is raised above it, unless
            one pass alone is. None sets no limit.
        dropout: Draws the masks of dropout functions; None leaves them as they are called.
        repeat: Repeat the input for all passes, for a model that reads its number of rows before
            the first mask and uses it after. Nothing is plain then.
        cleared: As for ``MarkedRows``.
    """

    def __init__(
        self,
        batch: int,
        passes: int,
        record: Record | None = None,
        max_elements: int | None = None,
        dropout: Dropout | None = None,
        *,
        repeat: bool = False,
        cleared: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(batch, passes, record, max_elements, cleared)
        self.dropout = dropout
        self.repeat = repeat

    def start(self, x: Tensor) -> Tensor:
        """Mark the input of the model.

        Args:
            x: ``[B, …]``.

        Returns:
            A copy of ``x`` that the model may write into, marked as plain; of all passes' rows and
            marked as folded if it is to be repeated.
        """
        self._one_dimensional = x.ndim == 1
        self._device = x.device
        marked = x.repeat(self.passes, *[1] * (x.ndim - 1)) if self.repeat else x.clone()
        self._check_size(marked)
        setattr(marked, KIND, "folded" if self.repeat else "plain")
        if self.record:
            self.record.start(marked)
        return marked

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS:
            return func(*args, **kwargs)
        call = self.dropout.function_call(func, args, kwargs) if self.dropout else None
        if call is not None:
            return self._dropout_function(call)
        if self.dropout and may_draw(func):
            return self._at_random(func, args, kwargs)
        result = self._compute(func, args, kwargs)
        if func in MOVES:
            self._note_move(func, args, kwargs, result)
        return result

    def _compute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of a call, by the kinds of its arguments."""
        leaves = tensors_among(args, kwargs)
        kinds = [self._kind(a) for a in leaves]
        elements = elements_of_a_row(func, args, kwargs)
        if elements is not None:
            self._check_rows(args[0], elements, func)
            self._drawn = True
            self._note_reads(leaves, kinds, by_mask=True)
            return self._mark(func(*args, **kwargs), "folded", leaves)
        by_torch = drawn_by_torch(func, args, kwargs) if self.dropout else None
        if self.dropout and by_torch:
            if self.dropout.active:
                self.dropout.note_foreign(by_torch)
                return self._drawn_by_torch(func, *by_torch.on, leaves)
            args, kwargs = by_torch.off
        if func in CASTS and kinds[0] is None and self._is_constant(leaves[0]):
            return self._other(func, args, kwargs)
        self._note_reads(leaves, kinds)
        if "folded" in kinds:
            return self._folded(func, args, kwargs, leaves, "plain" in kinds)
        if func in FACTORIES and kinds[0] == "plain":
            result = self._other(func, args, kwargs)
            repeatable = self.passes > 1 and result.shape[:1] == (self.batch,)
            return self._mark(result, "plain", leaves) if repeatable else result
        if "plain" in kinds:
            return self._plain(func, args, kwargs, leaves)
        return self._other(func, args, kwargs)

    def _dropout_function(self, call: FunctionCall) -> Any:
        """Keyed masks in place of those of a dropout function."""
        assert self.dropout is not None
        if not self.dropout.draws(call):
            return (call.x, torch.ones_like(call.x).bool()) if call.kind.with_mask else call.x
        func, options = self.dropout.keyed(call)
        y = self.__torch_function__(func, (), (call.x,), options)
        if call.kind.with_mask:
            ones = self.__torch_function__(torch.ones_like, (), (call.x,))
            return y, self.__torch_function__(func, (), (ones,), options).bool()
        return self.__torch_function__(_COPY, (), (call.x, y)) if call.in_place else y

    def _drawn_by_torch(
        self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]
    ) -> Any:
        """Compute what draws dropout inside torch, from folded rows or in a single pass."""
        assert self.dropout is not None
        kinds = [self._kind_by_rows(leaf) for leaf in leaves]
        if self.passes > 1 and "folded" not in kinds:
            if self.max_elements is None:
                text = errors.DRAWN_BY_TORCH.format(name=func.__name__, passes=self.passes)
                raise ValueError(text)
            raise errors.PassesDoNotFit(1)
        self._drawn = True
        self._note_reads(leaves, kinds, by_mask=True)
        with self.dropout.seeded(leaves[0].device):
            return self._folded(func, args, kwargs, leaves, "plain" in kinds)

    def _at_random(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute what may draw from torch's generator, with a draw for every pass if it does."""
        assert self.dropout is not None
        leaves = tensors_among(args, kwargs)
        with self.dropout.seeded(self._device) as generators:
            result = self._compute(func, args, kwargs)
            if not generators.drew():
                return result
        self.dropout.note_random(func)
        if self.record:
            self.record.drop()
        rows = self.batch * self.passes
        made = isinstance(result, Tensor) and self._drawn and result.shape[:1] == (rows,)
        if self.passes > 1 and not made and "folded" not in map(self._kind_by_rows, leaves):
            if self.max_elements is None:
                name = func.__name__
                raise ValueError(errors.RANDOM.format(name=name, passes=self.passes))
            raise errors.PassesDoNotFit(1)
        return result

    def _folded(
        self,
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        leaves: list[Tensor],
        mixed: bool,
    ) -> Any:
        """Compute from folded tensors, and plain ones, where there are any, repeated."""
        tensors = [(leaf, leaf) for leaf in leaves]
        if mixed and self.passes > 1:
            given, spec = pytree.tree_flatten((args, kwargs))
            taken = [self._repeat(value) for value in given]
            tensors = [(a, b) for a, b in zip(given, taken, strict=True) if isinstance(b, Tensor)]
            args, kwargs = pytree.tree_unflatten(taken, spec)
        versions = [version_of(b) for _, b in tensors]
        self._refuse_mixed([b for _, b in tensors])
        result = func(*args, **kwargs)
        self._note_mixing(func, args, kwargs, [b for _, b in tensors], result)
        for (original, written), version in zip(tensors, versions, strict=True):
            if version_of(written) != version:
                self._overwrite(original, written)
        self._check_size(result)
        return self._mark(result, "folded", leaves)

    def _plain(self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]) -> Any:
        """Compute, or take from the record, a result that no mask has touched."""
        if self.record and self.record.is_replaying:
            result = self.record.replay(func)
        elif self.record is None or self.record.is_dropped:
            result = func(*args, **kwargs)
        else:
            result = self.record.compute(func, args, kwargs, leaves)
        return self._mark(result, "plain", leaves)

    def _other(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute what depends on no input."""
        result = func(*args, **kwargs)
        if self.record:
            self.record.note_other(result)
        return result

    def _note_reads(
        self, leaves: list[Tensor], kinds: list[str | None], *, by_mask: bool = False
    ) -> None:
        """Tell the record what is read by calls that every chunk makes, and by unseen ones."""
        if self.record is None or self.record.is_dropped or self.record.is_replaying:
            return
        for leaf, kind in zip(leaves, kinds, strict=True):
            if kind == "plain" and (by_mask or "folded" in kinds):
                self.record.note_read(leaf)
            if kind is None and leaf.is_floating_point() and not self._is_constant(leaf):
                self.record.check_seen(leaf)
