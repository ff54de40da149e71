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

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bayes_dc.mc import fold_errors as errors
from bayes_dc.mc.dropout import Dropout, FunctionCall
from bayes_dc.mc.guards import version_of
from bayes_dc.mc.marks import CASTS, FACTORIES, KIND, READS, kind_of, tensors_among
from bayes_dc.mc.record import Record
from bayes_dc.mc.sizes import elements_of_a_row, fitting_passes

_COPY: Callable[..., Any] = Tensor.copy_


class FoldedPasses(TorchFunctionMode):
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
    ) -> None:
        super().__init__()
        self.batch, self.passes = batch, passes
        self.record = None if record is None or record.is_dropped else record
        self.max_elements = max_elements
        self.dropout = dropout
        self.repeat = repeat
        self._overwritten: dict[int, torch.UntypedStorage] = {}  # by address, kept from reuse
        self._borrowed: list[weakref.ref[Tensor]] = []  # marked, but not made in this forward
        self._drawn = False
        self._one_dimensional = False

    def start(self, x: Tensor) -> Tensor:
        """Mark the input of the model.

        Args:
            x: ``[B, …]``.

        Returns:
            A copy of ``x`` that the model may write into, marked as plain; of all passes' rows and
            marked as folded if it is to be repeated.
        """
        self._one_dimensional = x.ndim == 1
        marked = x.repeat(self.passes, *[1] * (x.ndim - 1)) if self.repeat else x.clone()
        self._check_size(marked)
        setattr(marked, KIND, "folded" if self.repeat else "plain")
        if self.record:
            self.record.start(marked)
        return marked

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        for borrowed in self._borrowed:
            if (tensor := borrowed()) is not None and kind_of(tensor) is not None:
                delattr(tensor, KIND)

    def is_folded(self, output: Tensor) -> bool:
        """Whether ``output`` carries T · B rows.

        Args:
            output: What the model returned.

        Returns:
            True for a tensor computed from the output of a layer with masks.
        """
        return self._drawn and self._kind_by_rows(output) == "folded"

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
        leaves = tensors_among(args, kwargs)
        kinds = [self._kind(a) for a in leaves]
        elements = elements_of_a_row(func, args, kwargs)
        if elements is not None:
            self._check_rows(args[0], elements, func)
            self._drawn = True
            self._note_reads(leaves, kinds, by_mask=True)
            return self._mark(func(*args, **kwargs), "folded", leaves)
        by_torch = self.dropout.foreign_call(func, args, kwargs) if self.dropout else None
        if by_torch is not None:
            return self._drawn_by_torch(func, *by_torch, leaves)
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
            return call.x
        func, options = self.dropout.keyed(call)
        y = self.__torch_function__(func, (), (call.x,), options)
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
        result = func(*args, **kwargs)
        for (original, written), version in zip(tensors, versions, strict=True):
            if version_of(written) != version:
                self._overwrite(original, written)
        self._check_size(result)
        return self._mark(result, "folded", leaves)

    def _check_size(self, result: Any) -> None:
        """Fewer passes, from the next try on, if they have made too large a tensor."""
        if self.max_elements is not None:
            fitting = fitting_passes(result, self.passes, self.max_elements)
            if fitting < self.passes:
                raise errors.PassesDoNotFit(fitting)

    def _overwrite(self, original: Tensor, written: Tensor) -> None:
        """``original``, or the repeated ``written`` in its place, got folded values."""
        if kind_of(original) == "plain":
            if self.record:  # it may hold the tensor
                self.record.drop() if written is original else self.record.replace(original)
            if original.numel():  # all empty memory has one address
                storage = original.untyped_storage()
                self._overwritten[storage.data_ptr()] = storage
            if written is not original:
                original.data = written
        if kind_of(original) is None:
            self._borrowed.append(weakref.ref(original))
        setattr(original, KIND, "folded")

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

    def _check_rows(self, x: Tensor, elements: int, func: Callable[..., Any]) -> None:
        """A layer sees B plain rows or T · B folded ones, and not too many elements."""
        expected = self.batch * (self.passes if self._kind_by_rows(x) == "folded" else 1)
        rows = x.shape[0] if x.ndim > 1 else 1
        # The rows of a parameter (prototypes) are no inputs, however many they are.
        if rows != expected or isinstance(x, torch.nn.Parameter):
            raise self._row_error(rows, func.__name__)
        one_pass = self.batch * elements
        if self.max_elements is not None and self.passes * one_pass > self.max_elements:
            fitting = max(1, self.max_elements // one_pass)
            if fitting < self.passes:
                raise errors.PassesDoNotFit(fitting)

    def _kind(self, x: Tensor) -> str | None:
        """The mark of ``x``; that of its values where plain memory has been overwritten."""
        kind = kind_of(x)
        if kind != "plain" or not self._overwritten:
            return kind
        if x.untyped_storage().data_ptr() not in self._overwritten:
            return kind
        if self.passes > 1:
            raise ValueError(errors.OVERWRITTEN.format(passes=self.passes))
        return "folded"

    def _kind_by_rows(self, x: Tensor) -> str | None:
        """The kind of ``x``; of an unmarked tensor after the first draw, the one its rows tell."""
        kind = self._kind(x)
        if kind is None and self._drawn and x.shape[:1] == (self.batch * self.passes,):
            return "folded"
        return kind

    def _is_constant(self, x: Tensor) -> bool:
        """Whether an unmarked tensor is the same for any batch, as far as can be told."""
        return isinstance(x, torch.nn.Parameter) or x.shape[:1] != (self.batch,)

    def _repeat(self, value: Any) -> Any:
        """A plain tensor repeated for every pass; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if kind_of(value) != "plain" or value.ndim == 0:
            return value
        if value.shape[0] != self.batch:
            raise self._row_error(value.shape[0], "an operation")
        repeated = value.unsqueeze(0).expand(self.passes, *value.shape)
        return repeated.reshape(self.passes * self.batch, *value.shape[1:])

    def _mark(self, result: Any, kind: str, inputs: list[Tensor]) -> Any:
        """Mark every tensor of a result; one that was there before only for this forward."""
        for leaf in (result,) if isinstance(result, Tensor) else pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                if kind_of(leaf) is None and any(leaf is tensor for tensor in inputs):
                    self._borrowed.append(weakref.ref(leaf))
                setattr(leaf, KIND, kind)
        return result

    def _row_error(self, got: int, where: str) -> errors.RowsDoNotFit:
        return errors.rows_do_not_fit(got, where, self.passes, self.batch, self._one_dimensional)
