"""Run T passes in one forward: the deterministic part on B rows, the stochastic part on T · B.

``FoldedPasses`` is a torch function mode. It follows two kinds of tensor through the model:
*plain* ones, computed from the input alone (B rows), and *folded* ones, computed from the output of
a DropConnect layer (T · B rows, pass after pass). The first DropConnect layer reads its plain input
with a zero stride over the passes. Where both kinds meet (a skip connection around the first
DropConnect layer), the plain one is repeated. When the passes come in several chunks, the results
of the plain part are kept from the first chunk. What a function mode does not see (TorchScript)
comes out unmarked and is known by its number of rows. A plain tensor that is written with folded
values (``x += h``) becomes a folded one; other views of its memory cannot, and are refused.
"""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bayes_dc.mc.guards import version_of
from bayes_dc.ops import dropconnect_linear

_STOCHASTIC: frozenset[Callable[..., Any]] = frozenset({dropconnect_linear})
_CASTS: frozenset[Callable[..., Any]] = frozenset({Tensor.to, Tensor.type_as})
"""Take type and device from another tensor, but no values."""
_FACTORIES: frozenset[Callable[..., Any]] = frozenset({
    Tensor.new_empty,
    Tensor.new_full,
    Tensor.new_ones,
    Tensor.new_tensor,
    Tensor.new_zeros,
})
_READS: frozenset[Callable[..., Any]] = frozenset({
    *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "ndim", "shape")),
    *(Tensor.dim, Tensor.is_floating_point, Tensor.numel, Tensor.size, Tensor.stride),
})
"""Return no tensor: nothing to mark, and nothing to keep for the next chunk."""
_PLAIN_VALUES = (int, float, str, type(None), torch.dtype, torch.device)
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
_OVERWRITTEN = (
    "Memory computed from the input alone was overwritten with the values of {passes} folded "
    "passes, and is read again through another view, which has no room for them. Pass chunk=1, "
    "which runs one pass at a time, or write into a new tensor (y = x + h rather than x += h)."
)
_ONE_INPUT = " If x is one input, give it a first dimension: x[None]."
_FIRST_DIMENSION = (
    "Keep the inputs along the first dimension, e.g. [B, L, K] rather than [B · L, K] for L tokens."
)


class PassesDoNotFit(Exception):
    """A DropConnect layer would make a tensor above the limit; ``fitting`` passes would not."""

    def __init__(self, fitting: int) -> None:
        super().__init__(f"{fitting} passes fit")
        self.fitting = fitting


class FoldedPasses(TorchFunctionMode):
    """Fold ``passes`` into the rows of a forward; see the module.

    Args:
        batch: Number of inputs B.
        passes: Passes folded into this forward.
        record: Calls and results of the plain part of an earlier chunk, or an empty list to be
            filled. None keeps nothing. After the forward the attribute ``record`` is None if the
            plain part writes in place or is written into, and must be computed again for every
            chunk.
        max_elements: Largest input or output of a DropConnect layer; ``PassesDoNotFit`` is raised
            above it, unless one pass alone is. None sets no limit.
    """

    def __init__(
        self,
        batch: int,
        passes: int,
        record: list[Any] | None = None,
        max_elements: int | None = None,
    ) -> None:
        super().__init__()
        self.batch, self.passes = batch, passes
        self.record = record
        self.max_elements = max_elements
        self._overwritten: dict[int, torch.UntypedStorage] = {}  # by address, kept from reuse
        self._borrowed: list[weakref.ref[Tensor]] = []  # marked, but not made in this forward
        self._replaying = bool(record)
        self._position = 0
        self._drawn = False
        self._one_dimensional = False

    def start(self, x: Tensor) -> Tensor:
        """Mark the input of the model.

        Args:
            x: ``[B, …]``.

        Returns:
            A copy of ``x``, marked as plain, that the model may write into.
        """
        self._one_dimensional = x.ndim == 1
        marked = x.clone()
        setattr(marked, _KIND, "plain")
        return marked

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        for borrowed in self._borrowed:
            if (tensor := borrowed()) is not None and _kind(tensor) is not None:
                delattr(tensor, _KIND)

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
        if func in _READS:
            return func(*args, **kwargs)
        leaves = _tensors(args, kwargs)
        kinds = [self._kind(a) for a in leaves]
        if func in _STOCHASTIC:
            self._check_rows(args[0], args[1], func)
            self._drawn = True
            return self._mark(func(*args, **kwargs), "folded", leaves)
        if func in _CASTS and kinds[0] is None and self._is_constant(leaves[0]):
            return func(*args, **kwargs)
        if "folded" in kinds:
            return self._folded(func, args, kwargs, leaves, "plain" in kinds)
        if func in _FACTORIES and kinds[0] == "plain":
            result = func(*args, **kwargs)
            repeatable = self.passes > 1 and result.shape[:1] == (self.batch,)
            return self._mark(result, "plain", leaves) if repeatable else result
        if "plain" in kinds:
            return self._plain(func, args, kwargs, leaves)
        return func(*args, **kwargs)

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
        return self._mark(result, "folded", leaves)

    def _overwrite(self, original: Tensor, written: Tensor) -> None:
        """``original``, or the repeated ``written`` in its place, got folded values."""
        if _kind(original) == "plain":
            self.record = None  # it may hold the tensor
            if original.numel():  # all empty memory has one address
                storage = original.untyped_storage()
                self._overwritten[storage.data_ptr()] = storage
            if written is not original:
                original.data = written
        if _kind(original) is None:
            self._borrowed.append(weakref.ref(original))
        setattr(original, _KIND, "folded")

    def _plain(self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]) -> Any:
        """Compute, or take from the record, a result that no mask has touched."""
        if self.record is None:
            return self._mark(func(*args, **kwargs), "plain", leaves)
        if self._replaying:
            known = self._position < len(self.record)
            recorded, result = self.record[self._position] if known else ("no call", None)
            if recorded != func:
                raise RuntimeError(_ORDER.format(expected=recorded, got=func))
            self._position += 1
            return self._mark(result, "plain", leaves)
        versions = [version_of(leaf) for leaf in leaves]
        result = self._mark(func(*args, **kwargs), "plain", leaves)
        if versions == [version_of(leaf) for leaf in leaves]:
            self.record.append((func, result))
        else:  # written in place: an earlier entry no longer holds its value
            self.record = None
        return result

    def _check_rows(self, x: Tensor, weight: Tensor, func: Callable[..., Any]) -> None:
        """A DropConnect layer sees B plain rows or T · B folded ones, and not too many elements."""
        expected = self.batch * (self.passes if self._kind_by_rows(x) == "folded" else 1)
        rows = x.shape[0] if x.ndim > 1 else 1
        # The rows of a parameter (prototypes) are no inputs, however many they are.
        if rows != expected or isinstance(x, torch.nn.Parameter):
            raise self._row_error(rows, func.__name__)
        one_pass = self.batch * x.shape[1:-1].numel() * max(weight.shape)
        if self.max_elements is not None and self.passes * one_pass > self.max_elements:
            fitting = max(1, self.max_elements // one_pass)
            if fitting < self.passes:
                raise PassesDoNotFit(fitting)

    def _kind(self, x: Tensor) -> str | None:
        """The mark of ``x``; that of its values where plain memory has been overwritten."""
        kind = _kind(x)
        if kind != "plain" or not self._overwritten:
            return kind
        if x.untyped_storage().data_ptr() not in self._overwritten:
            return kind
        if self.passes > 1:
            raise ValueError(_OVERWRITTEN.format(passes=self.passes))
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
        if _kind(value) != "plain" or value.ndim == 0:
            return value
        if value.shape[0] != self.batch:
            raise self._row_error(value.shape[0], "an operation")
        repeated = value.unsqueeze(0).expand(self.passes, *value.shape)
        return repeated.reshape(self.passes * self.batch, *value.shape[1:])

    def _mark(self, result: Any, kind: str, inputs: list[Tensor]) -> Any:
        """Mark every tensor of a result; one that was there before only for this forward."""
        for leaf in (result,) if isinstance(result, Tensor) else pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                if _kind(leaf) is None and any(leaf is tensor for tensor in inputs):
                    self._borrowed.append(weakref.ref(leaf))
                setattr(leaf, _KIND, kind)
        return result

    def _row_error(self, got: int, where: str) -> ValueError:
        return ValueError(
            _ROWS.format(
                got=got,
                expected=self.batch * self.passes,
                passes=self.passes,
                batch=self.batch,
                where=where,
                remedy=(_SIZE_AT_HAND if self.passes > 1 else _FIRST_DIMENSION)
                + (_ONE_INPUT if self._one_dimensional else ""),
            )
        )


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors among the arguments; containers are looked into."""
    values = (*args, *kwargs.values())
    if all(isinstance(value, (Tensor, *_PLAIN_VALUES)) for value in values):
        return [value for value in values if isinstance(value, Tensor)]
    return [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]


def _kind(tensor: Tensor) -> str | None:
    return getattr(tensor, _KIND, None)
