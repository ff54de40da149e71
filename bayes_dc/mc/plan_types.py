"""What a plan is made of: dimensions that follow the batch, storages, values and steps.

A plan holds for every number of inputs b ≤ capacity and of passes P with b · P ≤ rows. *Plain*
values have rows of the inputs, b of them, and are computed once for a call; *folded* ones have
P · b rows, pass after pass, and are computed for every chunk of passes; *constant* ones are
computed from parameters and buffers only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from bayes_dc.types import MaskScope, Sampler

Kind = Literal["constant", "plain", "folded"]
Phase = Literal["once", "passes"]
StorageKind = Literal["arena", "scratch", "input", "output", "constant", "derived"]


@dataclass(frozen=True)
class Rows:
    """A dimension of ``per_input`` entries for each row: of b, or of P · b rows where folded.

    Entry (o · n + row) · inner + i of n rows, with o < outer and i < inner = per_input / outer.

    Attributes:
        per_input: Entries for each row.
        folded: Whether there are P · b rows, pass after pass, or b.
        outer: Of the entries, how many come before the rows in the order of the index; 1 for
            ``[n · L]``, L for ``[L · n]``.
    """

    per_input: int
    folded: bool
    outer: int = 1

    @property
    def inner(self) -> int:
        """Entries that follow each other and belong to one row."""
        return self.per_input // self.outer


@dataclass(frozen=True)
class Passes:
    """A dimension of P entries, one for each pass of a chunk (``Context.aligned``)."""


Dim = int | Rows | Passes


def size_of(dim: Dim, b: int, passes: int) -> int:
    """Entries of a dimension.

    Args:
        dim: The dimension.
        b: Inputs.
        passes: Passes of the chunk.

    Returns:
        Their number.
    """
    if isinstance(dim, Rows):
        return dim.per_input * b * (passes if dim.folded else 1)
    return passes if isinstance(dim, Passes) else dim


class Layout(NamedTuple):
    """Where the elements of a value are in its storage; all in elements of its dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def end(self) -> int:
        """Elements from the start of the storage to the last one used, that included.

        Returns:
            0 for an empty value.
        """
        if 0 in self.sizes:
            return 0
        steps = zip(self.sizes, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps) + 1


@dataclass(eq=False)
class Storage:
    """Memory of one or more values.

    Attributes:
        name: Name in reports: that of the node that made it.
        op: What made it.
        kind: ``"arena"``, ``"scratch"``, ``"input"`` and ``"output"`` lie in the arena, at
            ``offset``; ``"constant"`` is a parameter or buffer of the model and ``"derived"`` is
            computed from such, both are ``tensor``.
        nbytes: Bytes at the capacity.
        start: First step that uses it, -1 for the input; steps count through both phases.
        end: Last step that uses it.
        offset: Bytes from the start of the arena.
        tensor: The memory of a constant.
        compute: Derived only: what computes its values from the tensors of ``sources``.
        sources: Derived only: values it is computed from, constants all.
        target: Constant only: name of the parameter or buffer in the model; "" for a tensor that is
            neither.
    """

    name: str
    op: str
    kind: StorageKind
    nbytes: int = 0
    start: int = 1 << 62
    end: int = -(1 << 62)
    offset: int | None = None
    tensor: Tensor | None = None
    compute: Callable[..., Tensor] | None = None
    sources: "tuple[Value, ...]" = ()
    target: str = ""

    @property
    def in_arena(self) -> bool:
        """Whether it lies in the arena."""
        return self.kind not in {"constant", "derived"}


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the plan: a view of a storage.

    Attributes:
        storage: Its memory.
        shape: Dimensions; at most one of them is ``Rows``.
        dtype: Type of the elements.
        layout: (b, passes) → sizes, strides and offset.
        kind: Whether it is constant, plain or folded. A constant that is expanded to the rows is
            plain.
    """

    storage: Storage
    shape: tuple[Dim, ...]
    dtype: torch.dtype
    layout: Callable[[int, int], Layout]
    kind: Kind

    @property
    def folded(self) -> bool:
        """Whether it has P · b rows."""
        return self.kind == "folded"

    @property
    def plain(self) -> bool:
        """Whether it has b rows."""
        return self.kind == "plain"

    @property
    def constant(self) -> bool:
        """Whether it depends on no input."""
        return self.kind == "constant"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def rows_dim(self) -> int | None:
        """Position of the dimension that is ``Rows``; None where there is none."""
        return next((d for d, dim in enumerate(self.shape) if isinstance(dim, Rows)), None)

    def nbytes(self, b: int, passes: int) -> int:
        """Bytes of the storage up to its last element.

        Args:
            b: Inputs.
            passes: Passes of the chunk.

        Returns:
            Bytes.
        """
        return self.layout(b, passes).end() * self.dtype.itemsize


class SiteIds(NamedTuple):
    """Coordinates of the masks of one site, in memory that the engine writes before each chunk.

    Attributes:
        key: int64 ``[2]``, key words of the layer.
        sample_ids: int64 ``[b]``.
        pass_ids: int64 ``[passes]``.
    """

    key: Tensor
    sample_ids: Tensor
    pass_ids: Tensor


@dataclass(frozen=True)
class Site:
    """A place of the forward that draws masks.

    Attributes:
        index: Its number, the last argument of the marker operator and the index into
            ``Bind.sites``.
        name: Name of the module, or of the call of a function.
        kind: What it is.
        p: Drop probability asked for.
        keep: Numerator of the keep probability over 2**bits (``rng.keep_digits``).
        bits: Digits; never 0, such a site is no site.
        factor: What a kept product is multiplied with: 1 / keep probability, 1, or that of alpha
            dropout.
        key: Where its key words come from: ``("layer", number)``, ``("dropout", number, call)`` or
            ``("function", call)``.
        scope: Rows that share a mask; for dropout ``"sample"``.
        sampler: How the output is drawn.
        channels: Dropout only: one bit for a channel.
        stride: Convolutions only, (height, width).
        padding: Convolutions only, symmetric.
        dilation: Convolutions only.
        groups: Convolutions only.
    """

    index: int
    name: str
    kind: Literal["linear", "conv2d", "dropout"]
    p: float
    keep: int
    bits: int
    factor: float
    key: tuple[str | int, ...]
    scope: MaskScope = "sample"
    sampler: Sampler = "bernoulli"
    channels: bool = False
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]
"""Executed as ``f(*args, **kwargs)``; what it returns is ignored."""


class Bind(Protocol):
    """The plan at one (b, passes): tensors in place of values."""

    b: int
    passes: int

    @property
    def sites(self) -> Sequence[SiteIds]:
        """Coordinates of the masks, by number of the site."""

    def __call__(self, value: Value) -> Tensor:
        """The tensor of a value: a view of the arena, or a constant."""

    def size(self, dim: Dim) -> int:
        """Entries of a dimension."""


@dataclass(eq=False)
class Step:
    """Something that is computed.

    Attributes:
        name: Name of its node.
        op: Its operator.
        source: File and line of the model, or "".
        phase: ``"once"`` for a call of the engine, or for every chunk of ``"passes"``.
        reads: Values it reads.
        writes: Values it writes; one may be in the storage of one it reads.
        scratch: Values it needs for itself.
        emit: What gives its calls.
        library_workspace: Whether a library may allocate in it (mode ``"workspace"``).
        sites: Numbers of the sites whose masks it draws.
        rounds: Whether it has no memory for convolutions of full float32 precision.
    """

    name: str
    op: str
    source: str
    phase: Phase
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    scratch: tuple[Value, ...]
    emit: Callable[[Bind], list[Call]]
    library_workspace: bool = False
    sites: tuple[int, ...] = field(default=())
    rounds: bool = False
