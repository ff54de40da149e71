"""What the plain part of a forward computed, kept for the chunks of passes to come."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bayes_dc.mc.guards import version_of
from bayes_dc.mc.marks import kind_of

_ORDER = (
    "The part of the model before its first layer with masks made other calls in the second chunk "
    "of passes than in the first ({got} where {expected} was expected): it is not a pure function "
    "of its input. Pass chunk=T to run all passes in one forward."
)


class _Slot:
    """A tensor of a result: itself where its values are needed again, else its description."""

    def __init__(self, t: Tensor) -> None:
        self.seen, self.held = weakref.ref(t), None
        self.shape, self.dtype, self.device = t.shape, t.dtype, t.device

    seen: weakref.ref[Tensor]
    held: Tensor | None

    def tensor(self) -> Tensor:
        """The tensor, or one of its shape, type and device that nothing computes with."""
        if self.held is not None:
            return self.held
        known = self.dtype.is_floating_point or self.dtype.is_complex
        value = torch.nan if known else 0
        return torch.full((), value, dtype=self.dtype, device=self.device).expand(self.shape)


class Record:
    """Calls of the plain part, in order, with their results.

    The first forward fills it; in later ones the calls are not made again. Of the results only
    those stay in memory that something which runs in every chunk has read: layers with masks, and
    calls that mix plain and folded tensors. A result that is written in place
    (``nn.ReLU(inplace=True)``) is kept with its last values, which is right as long as nothing of
    that kind has read it before. Where this cannot be known the record is dropped, and every chunk
    computes the plain part.

    Args:
        model: Whose forwards they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self.is_dropped = False
        tensors = (*model.parameters(), *model.buffers())
        self._constants = {id(t): weakref.ref(t) for t in tensors}
        self._calls: list[tuple[Callable[..., Any], Any]] = []
        self._replaying = False
        self._position = 0
        self._slots: dict[int, _Slot] = {}  # by id of the tensor, the latest of that id
        self._held: list[_Slot] = []
        # Memory by address, held so that no address is used again: of the input and of tensors
        # that the model brought along, and what runs in every chunk has read.
        self._others: dict[int, torch.UntypedStorage] = {}
        self._read: dict[int, torch.UntypedStorage] = {}

    def start(self, x: Tensor) -> None:
        """Begin a forward.

        Args:
            x: The input of the model, of this forward only.
        """
        self._replaying = bool(self._calls)
        self._position = 0
        if not self._replaying:
            _hold(self._others, x)

    @property
    def is_replaying(self) -> bool:
        """Whether results are taken from the record."""
        return self._replaying

    def replay(self, func: Callable[..., Any]) -> Any:
        """The result of the next call.

        Args:
            func: What is called.

        Returns:
            What it returned in the first forward.

        Raises:
            RuntimeError: If something else was called there.
        """
        known = self._position < len(self._calls)
        recorded, result = self._calls[self._position] if known else ("no call", None)
        if recorded != func:
            raise RuntimeError(_ORDER.format(expected=recorded, got=func))
        self._position += 1
        return _filled(result)

    def compute(
        self, func: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]
    ) -> Any:
        """Call a function and keep its result.

        Args:
            func: What is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            leaves: The tensors among them.

        Returns:
            Its result.
        """
        before = [(leaf, version_of(leaf), kind_of(leaf) == "plain") for leaf in leaves]
        result = func(*args, **kwargs)
        for leaf, version, ours in before:
            address = _address(leaf)
            if version_of(leaf) != version and (
                not ours or address in self._others or address in self._read
            ):
                self.drop()  # the input, a buffer, or what later chunks must read as it was
            if not ours:
                _hold(self._others, leaf)
        if not self.is_dropped:
            self._calls.append((func, self._emptied(result)))
        return result

    def note_read(self, leaf: Tensor) -> None:
        """Something that runs in every chunk reads a plain tensor.

        Args:
            leaf: What it reads.
        """
        _hold(self._read, leaf)
        slot = self._slots.get(id(leaf))
        if slot is not None and slot.seen() is leaf:
            slot.held = leaf
            self._held.append(slot)

    def note_other(self, result: Any) -> None:
        """Something was computed from no plain or folded tensor, and will be in every chunk.

        Args:
            result: What it returned.
        """
        if self._replaying or self.is_dropped:
            return
        for t in _tensors(result):
            _hold(self._others, t)
            self._constants[id(t)] = weakref.ref(t)

    def check_seen(self, leaf: Tensor) -> None:
        """Drop the record if a tensor of the batch was computed unseen, from what is not known.

        Args:
            leaf: A tensor with a row for each input that has no mark.
        """
        known = self._constants.get(id(leaf))
        if known is None or known() is not leaf:
            self.drop()

    def replace(self, original: Tensor) -> None:
        """Keep the present values of a tensor that is about to become another.

        Args:
            original: A result that has been read and will get other memory.
        """
        for slot in self._held:
            if slot.held is original:
                slot.held = original.detach()  # other tensor, same memory

    def drop(self) -> None:
        """Keep nothing for later chunks: they compute the plain part."""
        self.is_dropped = True
        if not self._replaying:
            self._calls = []

    def _emptied(self, result: Any) -> Any:
        """A result with slots in place of its tensors."""
        if isinstance(result, Tensor):
            return self._slot(result)
        leaves, spec = pytree.tree_flatten(result)
        return _Many(spec, [self._slot(t) if isinstance(t, Tensor) else t for t in leaves])

    def _slot(self, t: Tensor) -> _Slot:
        """The slot of a tensor, which may be the result of several calls."""
        slot = self._slots.get(id(t))
        if slot is None or slot.seen() is not t:
            slot = self._slots[id(t)] = _Slot(t)
        return slot


class _Many(NamedTuple):
    """A result of several parts."""

    spec: pytree.TreeSpec
    parts: list[Any]


def _filled(result: Any) -> Any:
    """A result with its tensors."""
    if isinstance(result, _Slot):
        return result.tensor()
    parts = [part.tensor() if isinstance(part, _Slot) else part for part in result.parts]
    return pytree.tree_unflatten(parts, result.spec)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _hold(held: dict[int, torch.UntypedStorage], t: Tensor) -> None:
    storage = t.untyped_storage()
    held[storage.data_ptr()] = storage
