"""Views of values: where their rows are, and what would mix them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc import plan_errors
from bayes_dc.mc.layouts import SAMPLES, viewed
from bayes_dc.mc.plan_types import Dim, Rows, Value, size_of
from bayes_dc.mc.trace_types import Meta, Node

_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "flatten", "unflatten", "view_as"})
_ONES = frozenset({"unsqueeze", "squeeze"})
_MOVES = frozenset({"transpose", "permute", "t", "movedim", "swapaxes", "numpy_T", "mT"})
_PARTS = frozenset({"select", "slice", "narrow", "diagonal", "unfold"})
_PIECES = frozenset({"split", "split_with_sizes", "chunk", "unbind", "tensor_split"})
_SAME = frozenset({"alias", "detach", "lift", "lift_fresh", "lift_fresh_copy", "positive"})
_EXPANDS = frozenset({"expand", "expand_as", "broadcast_to"})
VIEWS = _RESHAPES | _ONES | _MOVES | _PARTS | _PIECES | _SAME | _EXPANDS
"""Names of operators whose results are views, or the operand itself."""

_ALONG = ("dim", "dim1", "dim2", "dimension")
_NOT_ALONG = frozenset({"stack"})
"""Operators whose argument dim is no dimension of the operand."""


def packet(target: Any) -> str:
    """Name of an operator without namespace and overload.

    Args:
        target: The operator.

    Returns:
        E.g. ``"view"``; "" for what is none of ATen.
    """
    parts = str(target).split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "aten" else ""


def argument(node: Node, name: str) -> Any:
    """An argument of a node by name, or its default.

    Args:
        node: The node.
        name: Name in the schema of its operator.

    Returns:
        None where there is none of the name.
    """
    if name in node.kwargs:
        return node.kwargs[name]
    schema = getattr(node.target, "_schema", None)
    for position, known in enumerate(schema.arguments if schema else ()):
        if known.name == name:
            given = position < len(node.args)
            return node.args[position] if given else known.default_value
    return None


def check_rows(node: Node, x: Value) -> None:
    """Refuse an operation along the rows of its operand.

    Args:
        node: The node; looked at are its arguments dim and dims.
        x: Its first operand.

    Raises:
        PlanError: If it works along the rows.
    """
    if x.rows_dim is None or packet(node.target) in _NOT_ALONG:
        return
    dims: list[int] = []
    for name in (*_ALONG, "dims"):
        given = argument(node, name)
        dims += [given] if isinstance(given, int) else list(given or ())
    if x.rows_dim in [dim % x.ndim for dim in dims]:
        plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)


def place_rows(node: Node, metas: Sequence[Meta | None], values: Sequence[Value]) -> list[Any]:
    """Results with their rows placed as in the operands, for operations that are no views.

    Args:
        node: The node.
        metas: Its results.
        values: Its operands.

    Returns:
        New metas.

    Raises:
        PlanError: If rows have been mixed: no dimension follows them, or two do, or operands have
            them in different orders.
    """
    known = {dim for value in values for dim in value.shape if isinstance(dim, Rows)}
    placed: list[Meta | None] = []
    for meta in metas:
        # BatchNorm in evaluation mode returns statistics too: on a GPU those of the channels.
        unread = placed and packet(node.target) == "_native_batch_norm_legit_no_training"
        if meta is None or 0 in meta.shape or unread:
            placed.append(meta)
            continue
        if node.kind != "constant" and len(meta.rows) != 1:
            plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
        shape = list[Dim](meta.shape)
        for at, dim in enumerate(shape):
            if isinstance(dim, Rows) and dim.per_input > 1 and known:
                outers = {rows.outer for rows in known if rows.per_input == dim.per_input}
                if len(outers) != 1:
                    plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
                shape[at] = Rows(dim.per_input, dim.folded, outers.pop())
        placed.append(Meta(tuple(shape), meta.dtype, meta.strides, meta.folded))
    return placed


def view(node: Node, x: Value) -> Value | tuple[Value, ...] | None:
    """The results of a view.

    Args:
        node: A node with one of ``VIEWS``.
        x: Its operand.

    Returns:
        Values in the storage of ``x``; None where it takes a copy.

    Raises:
        PlanError: If it mixes rows.
    """
    name = packet(node.target)
    metas = [meta for meta in node.outs if meta is not None]
    if name in _PARTS | _PIECES and _is_along_rows(node, x):
        if name in {"select", "diagonal", "unfold", "unbind"} or not _is_whole(node, x):
            plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
        return (x,) if node.many else x
    if name in _SAME:
        return x
    made = []
    for index, meta in enumerate(metas):
        shape = _shape(node, x, meta, reordered=name in _MOVES)
        layout = viewed(x, _taken(node, name, shape, index))
        try:
            for sample in SAMPLES:
                layout(*sample)
        except RuntimeError:  # strides that no view has
            return None
        made.append(Value(x.storage, shape, meta.dtype, layout, node.kind))
    return tuple(made) if node.many else made[0]


def _is_along_rows(node: Node, x: Value) -> bool:
    """Whether the dimension that is cut is that of the rows."""
    given = [argument(node, name) for name in _ALONG]
    return x.rows_dim in [dim % x.ndim for dim in given if isinstance(dim, int)]


def _is_whole(node: Node, x: Value) -> bool:
    """Whether a cut along the rows takes all of them."""
    metas = [meta for meta in node.outs if meta is not None]
    rows = x.shape[x.rows_dim or 0]
    assert isinstance(rows, Rows)
    same = len(metas) == 1 and [r.per_input for r in metas[0].rows] == [rows.per_input]
    return same and argument(node, "step") in {None, 1}


def _shape(node: Node, x: Value, meta: Meta, *, reordered: bool) -> tuple[Dim, ...]:
    """Dimensions of a view, with the place of its rows."""
    at = [d for d, dim in enumerate(meta.shape) if isinstance(dim, Rows)]
    if not at and node.kind == "constant":
        return meta.shape
    if len(at) != 1:
        plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
    found = meta.shape[at[0]]
    was = None if x.rows_dim is None else x.shape[x.rows_dim]
    assert isinstance(found, Rows)
    if not isinstance(was, Rows):  # a constant is expanded: no entry depends on the row
        return meta.shape
    outer = was.outer
    if packet(node.target) in _RESHAPES | _ONES:
        # Entries before the rows in the order of the elements, which a reshape keeps.
        before = outer * _entries(x.shape[: x.rows_dim])
        now = _entries(meta.shape[: at[0]])
        outer, rest = divmod(before, now)
        inner = was.inner * _entries(x.shape[(x.rows_dim or 0) + 1 :])
        if (
            rest
            or outer * inner != found.per_input * _entries(meta.shape[at[0] + 1 :])
            or (found.per_input % outer)
        ):
            plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
    elif found.per_input != was.per_input:
        plan_errors.refuse(node.op, node.name, node.source, *plan_errors.MIXES)
    placed = Rows(found.per_input, found.folded, outer)
    return (*meta.shape[: at[0]], placed, *meta.shape[at[0] + 1 :])


def _entries(dims: Sequence[Dim]) -> int:
    return prod(dim for dim in dims if isinstance(dim, int))


def _taken(
    node: Node, name: str, shape: Sequence[Dim], index: int
) -> Callable[[Tensor, int, int], Tensor]:
    """What takes the view of a tensor."""

    def sizes(b: int, passes: int) -> list[int]:
        return [size_of(dim, b, passes) for dim in shape]

    if name in _RESHAPES | _ONES:
        return lambda t, b, passes: t.view(sizes(b, passes))
    if name in _EXPANDS:
        return lambda t, b, passes: t.expand(sizes(b, passes))

    def take(t: Tensor, b: int, passes: int) -> Tensor:
        result = node.target(t, *node.args[1:], **node.kwargs)
        assert isinstance(result, (Tensor, tuple, list))
        return result if isinstance(result, Tensor) else result[index]

    return take


def expanded(value: Value, meta: Meta, kind: Any) -> Value:
    """A constant of one entry in the shape of a result.

    Args:
        value: A constant without dimensions.
        meta: The result.
        kind: Its kind.

    Returns:
        A view with zero strides.
    """

    def take(t: Tensor, b: int, passes: int) -> Tensor:
        return t.expand([size_of(dim, b, passes) for dim in meta.shape])

    return Value(value.storage, meta.shape, meta.dtype, viewed(value, take), kind)


def tensor_of(value: Value, b: int = 1, passes: int = 1) -> Tensor:
    """The tensor of a value in the storage of a constant.

    Args:
        value: The value; of a constant there is one for any batch.
        b: Inputs.
        passes: Passes of a chunk.

    Returns:
        A view of its storage.
    """
    held = value.storage.tensor
    assert held is not None
    at = value.layout(b, passes)
    if at.offset == 0 and at.sizes == held.shape and at.strides == held.stride():
        return held
    return torch.as_strided(held, at.sizes, at.strides, held.storage_offset() + at.offset)
