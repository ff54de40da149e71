"""What a trace holds: nodes of one pass, with sizes that follow the number of inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bayes_dc.mc.layouts import Layouts, by_rows
from bayes_dc.mc.plan_types import Dim, Kind, Rows, Site


@dataclass(frozen=True)
class Meta:
    """A tensor of the exported graph.

    Attributes:
        shape: Dimensions.
        dtype: Type of its elements.
        strides: For each dimension, what is fixed and what is multiplied with the number of rows.
        folded: Whether its rows are those of all passes.
    """

    shape: tuple[Dim, ...]
    dtype: torch.dtype
    strides: tuple[tuple[int, int], ...]
    folded: bool

    @property
    def layout(self) -> Layouts:
        """Its layouts, as exported."""
        return by_rows(self.shape, self.strides, folded=self.folded)

    @property
    def rows(self) -> list[Rows]:
        """Its dimensions that follow the rows."""
        return [dim for dim in self.shape if isinstance(dim, Rows)]


@dataclass(eq=False, repr=False)
class Node:
    """A node of the exported graph.

    Attributes:
        name: Its name.
        op: Name of its operator; ``"input"``, ``"constant"``.
        target: The operator; None for the input and constants.
        args: Arguments, with nodes, ``Rows`` and containers of them.
        kwargs: The same by name.
        outs: Its results; None for what is no tensor.
        many: Whether it returns a tuple.
        kind: Whether it is constant, plain or folded.
        source: Module, file and line of the model.
        index: Position in the order of execution.
        users: Nodes that read it.
        tensor: The tensor of a constant.
        attribute: Name of a constant in the model, or "".
    """

    name: str
    op: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outs: list[Meta | None] = field(default_factory=list)
    many: bool = False
    kind: Kind = "constant"
    source: str = ""
    index: int = -1
    users: "list[Node]" = field(default_factory=list)
    tensor: Tensor | None = None
    attribute: str = ""

    def __repr__(self) -> str:
        return self.name

    @property
    def inputs(self) -> "list[Node]":
        """Nodes among its arguments."""
        found: list[Node] = []
        mapped((self.args, self.kwargs), lambda leaf: _collect(leaf, found))
        return found


@dataclass(frozen=True)
class Trace:
    """A forward of one pass.

    Attributes:
        nodes: In an order of execution: constants, plain ones, folded ones.
        input: The model's input.
        output: What it returns.
        sites: Places that draw masks, by number.
    """

    nodes: tuple[Node, ...]
    input: Node
    output: Node
    sites: tuple[Site, ...]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with every leaf changed.

    Args:
        value: Arguments: tuples, lists and dictionaries of leaves.
        change: Gives the new leaf.

    Returns:
        New containers, lists for sequences inside.
    """
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([mapped(item, change) for item in value])
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return change(value)


def _collect(leaf: Any, found: list[Node]) -> Any:
    if isinstance(leaf, Node) and leaf not in found:
        found.append(leaf)
    return leaf
