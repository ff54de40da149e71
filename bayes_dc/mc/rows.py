"""Which rows the tensors of a folded forward have: their marks, and the checks of them."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bayes_dc.mc import fold_errors as errors
from bayes_dc.mc.marks import KIND, kind_of
from bayes_dc.mc.mixes import MIXED, mixes
from bayes_dc.mc.moves import moves_first
from bayes_dc.mc.record import Record
from bayes_dc.mc.sizes import fitting_passes
from bayes_dc.ops.dropout import keyed_dropout


class MarkedRows(TorchFunctionMode):
    """Marks of tensors as plain (B rows) and folded (T · B rows, pass after pass).

    Args:
        batch: Number of inputs B.
        passes: Passes folded into this forward.
        record: Results of the plain part, or None.
        max_elements: Largest tensor of folded rows, or None.
        cleared: Numbers of rows for which a layer with masks has been seen to get the inputs along
            its first dimension, though another dimension of that size was brought there.
    """

    def __init__(
        self,
        batch: int,
        passes: int,
        record: Record | None,
        max_elements: int | None,
        cleared: frozenset[int],
    ) -> None:
        super().__init__()
        self.batch, self.passes = batch, passes
        self.record = None if record is None or record.is_dropped else record
        self.max_elements = max_elements
        self._cleared = cleared
        self._moved: set[int] = set()
        self._overwritten: dict[int, torch.UntypedStorage] = {}  # by address, kept from reuse
        self._borrowed: list[weakref.ref[Tensor]] = []  # marked, but not made in this forward
        self._drawn = False
        self._one_dimensional = False

    def is_folded(self, output: Tensor) -> bool:
        """Whether ``output`` carries T · B rows.

        Args:
            output: What the model returned.

        Returns:
            True for a tensor computed from the output of a layer with masks.
        """
        return self._drawn and self._kind_by_rows(output) == "folded"

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

    def _check_rows(self, x: Tensor, elements: int, func: Callable[..., Any]) -> None:
        """A layer sees B plain rows or T · B folded ones, and not too many elements."""
        expected = self.batch * (self.passes if self._kind_by_rows(x) == "folded" else 1)
        rows = x.shape[0] if x.ndim > 1 else 1
        where = "dropout" if func is keyed_dropout else func.__name__
        if isinstance(x, torch.nn.Parameter):  # its rows are no inputs, however many they are
            raise self.row_error(rows, where, mask=True, weight=True)
        if rows != expected:
            raise self.row_error(rows, where, mask=True)
        if rows in self._moved:
            raise errors.FirstDimensionMoved(rows)
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
            raise self.row_error(value.shape[0], "an operation")
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

    def _note_move(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Remember that another dimension, of as many entries, has come to where the rows are."""
        for rows in {self.batch, self.batch * self.passes} - self._cleared - self._moved:
            if moves_first(func, args, kwargs, result, rows):
                self._moved.add(rows)

    def _note_mixing(
        self, func: Callable[..., Any], args: Any, kwargs: Any, inputs: list[Tensor], result: Any
    ) -> None:
        """Refuse rows made of several rows; remember a number of them, until it meets rows."""
        rows = self.batch * self.passes
        if self.passes == 1 or rows in self._moved or not self._drawn:  # not drawn: repeated input
            return
        name = next((getattr(x, MIXED) for x in inputs if hasattr(x, MIXED)), None)
        if name is None and mixes(func, args, kwargs, rows):
            name = getattr(func, "__name__", str(func))
        if name is None:
            return
        for leaf in (result,) if isinstance(result, Tensor) else pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and not any(leaf is x for x in inputs):
                setattr(leaf, MIXED, name)
                if leaf.shape[:1] == (rows,):
                    raise errors.mixed_rows(name, self.passes, self.batch)

    def _refuse_mixed(self, inputs: list[Tensor]) -> None:
        """Refuse a call in which rows meet a number of several rows."""
        rows = self.batch * self.passes
        name = next((getattr(x, MIXED) for x in inputs if hasattr(x, MIXED)), None)
        if name is not None and any(x.shape[:1] == (rows,) for x in inputs):
            raise errors.mixed_rows(name, self.passes, self.batch)

    def row_error(
        self, got: int, where: str, *, mask: bool = False, weight: bool = False
    ) -> errors.RowsDoNotFit:
        """The error for a tensor of other rows than inputs times passes.

        Args:
            got: Its rows.
            where: What met it.
            mask: Whether that draws masks.
            weight: Whether the tensor is a parameter.

        Returns:
            The exception, to be raised.
        """
        return errors.rows_do_not_fit(
            got,
            where,
            self.passes,
            self.batch,
            one_dimensional=self._one_dimensional,
            mask=mask,
            weight=weight,
        )
