"""Two exports of a forward, at two numbers of rows, into one trace whose sizes follow them."""

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from bayes_dc.mc import plan_errors
from bayes_dc.mc.constants import FACTORIES
from bayes_dc.mc.plan_types import Dim, Rows, Site
from bayes_dc.mc.trace_types import Meta, Node, Trace
from bayes_dc.mc.views import packet

ROWS = (2, 31)
"""Rows of the two exports. A size is the same in both, or k times these, or has no plan.

Few and many, even and odd: a forward that chooses by len(x) shows. Not 1, where ``squeeze`` drops
the rows and strides say nothing.
"""

STRUCTURE = (
    f"the forward makes other calls for {ROWS[0]} rows than for {ROWS[1]}",
    "A plan holds for every number of rows; do without a choice by len(x).",
)
"""Why and remedy of a forward that depends on its number of rows."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THE_MODEL = re.compile(r"site-packages/torch/|/torch/nn/|bayes_dc/(nn|ops|mc)/|<frozen")
_FROM_ROWS = (
    "its argument {name!r} is {one} for {rows} rows: it takes its number of rows from the input",
    "Write the model in terms of the tensor at hand (x.flatten(1), x.mean(1)), with a number of "
    "rows only where a shape is asked for.",
)
_BY_DATA = (
    "a size depends on the values of the input",
    "Compute with a mask (torch.where) rather than with a selection of entries.",
)
_NUMBER = (
    "it makes a Python number of a tensor, which may be another at the next call",
    "Keep it a tensor: x * self.scale rather than x * self.scale.item() or float(self.scale).",
)
_OTHER_SIZE = "a size is {one} for {rows} rows and {two} for {others}: it mixes rows"
_MUTATES = (
    "the forward writes into its buffers {names}",
    "Compute into new tensors in evaluation mode; a plan computes the same for every call.",
)
_OUTPUT = (
    "it returns {what} rather than one floating point tensor [rows, classes] with a row for each "
    "input",
    "Wrap the model in a module that picks the class scores.",
)
_SIZES = {"size", "shape", "repeats", "split_sizes", "split_size", "sizes"}
_ENDS = {("aten.slice.Tensor", "end"), ("aten.narrow.default", "length")}


class Merger:
    """Makes the trace.

    Args:
        model: The model.
        one: Its export at ``ROWS[0]`` rows.
        two: The same at ``ROWS[1]``.
        sites: Places that draw masks.
    """

    def __init__(
        self, model: nn.Module, one: ExportedProgram, two: ExportedProgram, sites: list[Site]
    ) -> None:
        self.model, self.program, self.sites = model, one, tuple(sites)
        self.pairs = list(zip(one.graph.nodes, two.graph.nodes, strict=True))
        self.made: dict[fx.Node, Node] = {}

    def trace(self) -> Trace:
        """All nodes that the output depends on, sorted by what they depend on themselves.

        Returns:
            The trace.

        Raises:
            PlanError: If a node does what a plan cannot.
        """
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        self._refuse_mutation()
        used = self._used()
        entry: Node | None = None
        for a, b in self.pairs:
            if a.op == "placeholder" and specs[a.name].kind.name == "USER_INPUT":
                meta = self._meta(a, a.meta["val"], b.meta["val"], folded=False)
                entry = self.made[a] = Node("x", "input", None, outs=[meta], kind="plain")
            elif a.op == "placeholder" and a in used:
                self.made[a] = self._constant(a.name, specs[a.name].target or "")
            elif a.op == "get_attr" and a in used:
                tensor = getattr(self.program.graph_module, str(a.target))
                self.made[a] = Node(a.name, "constant", None, tensor=tensor)
            elif a.op == "call_function" and a in used:
                self.made[a] = self._call(a, b)
        assert entry is not None
        output = self._output()
        order = {"constant": 0, "plain": 1, "folded": 2}
        nodes = sorted(self.made.values(), key=lambda node: order[node.kind])  # stable
        for index, node in enumerate(nodes):
            node.index = index
            for read in node.inputs:
                read.users.append(node)
        return Trace(tuple(nodes), entry, output, self.sites)

    def _used(self) -> set[fx.Node]:
        """Nodes that the output depends on."""
        used: set[fx.Node] = set()
        for a, _ in reversed(self.pairs):
            if a.op == "output" or a in used:
                used.update(a.all_input_nodes)
        return used

    def _constant(self, name: str, target: str) -> Node:
        """A parameter or buffer of the model, or a tensor that it brought along."""
        attribute = target.removeprefix("model.")
        tensor = self.program.constants.get(target)
        if tensor is None:
            owner, _, last = attribute.rpartition(".")
            tensor = getattr(self.model.get_submodule(owner), last)
        assert isinstance(tensor, Tensor)
        if target.startswith("_lifted") or "lifted_tensor" in target:
            attribute = ""
        return Node(name, "constant", None, tensor=tensor.detach(), attribute=attribute)

    def _call(self, a: fx.Node, b: fx.Node) -> Node:
        """A call of an operator."""
        op, source = _name(a), source_of(a)
        if a.target != b.target:
            plan_errors.refuse(op, a.name, source, *STRUCTURE)
        node = Node(a.name, op, a.target, source=source)
        kinds = {self.made[read].kind for read in a.all_input_nodes}
        values: tuple[Any, Any] = (a.meta.get("val"), b.meta.get("val"))
        if isinstance(values[0], (torch.SymFloat, torch.SymInt, torch.SymBool)):
            plan_errors.refuse(op, a.name, source, *_NUMBER)
        node.many = isinstance(values[0], (tuple, list))
        results = list(zip(*values, strict=True)) if node.many else [values]
        if op.startswith("bayes_dc.planned") or "folded" in kinds:
            node.kind = "folded"
        elif "plain" in kinds or any(_shape(one) != _shape(two) for one, two in results):
            node.kind = "plain"
        if node.kind != "constant" and _same_for_all_rows(a, b, *values):
            return _filled(node, values[0], a)
        folded = node.kind == "folded"
        node.outs = [self._meta(a, one, two, folded=folded) for one, two in results]
        schema = getattr(a.target, "_schema", None)
        names = [arg.name for arg in schema.arguments] if schema else [""] * len(a.args)
        node.args = tuple(
            self._argument(a, name, one, two, folded=folded)
            for name, one, two in zip(names, a.args, b.args, strict=False)
        )
        node.kwargs = {
            name: self._argument(a, name, a.kwargs[name], b.kwargs[name], folded=folded)
            for name in a.kwargs
        }
        return node

    def _argument(self, a: fx.Node, name: str, one: Any, two: Any, *, folded: bool) -> Any:
        """An argument: nodes, numbers, and ``Rows`` where numbers follow the rows."""
        if isinstance(one, fx.Node):
            return self.made[one]
        if isinstance(one, (list, tuple)) and len(one) == len(two):
            pairs = zip(one, two, strict=True)
            return [self._argument(a, name, *pair, folded=folded) for pair in pairs]
        if one is two or (one == two and type(one) is type(two)) or (one != one and two != two):
            return one
        per_input = _per_input(one, two)
        if per_input is None or not (name in _SIZES or (str(a.target), name) in _ENDS):
            why = _FROM_ROWS[0].format(name=name, one=one, rows=ROWS[0])
            plan_errors.refuse(_name(a), a.name, source_of(a), why, _FROM_ROWS[1])
        return Rows(per_input, folded)

    def _meta(self, a: fx.Node, one: Any, two: Any, *, folded: bool) -> Meta | None:
        """Shape, dtype and strides of a result in both exports."""
        if not isinstance(one, Tensor):
            return None
        sizes = zip(one.shape, two.shape, strict=True)
        shape = tuple(self._dim(a, *pair, folded=folded) for pair in sizes)
        strides = []
        for x, y in zip(one.stride(), two.stride(), strict=True):
            per_row = (y - x) // (ROWS[1] - ROWS[0])
            strides.append((x - per_row * ROWS[0], per_row))
        return Meta(shape, one.dtype, tuple(strides), folded)

    @staticmethod
    def _dim(a: fx.Node, one: Any, two: Any, *, folded: bool) -> Dim:
        """A size that is the same in both, or follows the rows."""
        if type(one) is int and one == two:
            return one
        if type(one) is not int:
            plan_errors.refuse(_name(a), a.name, source_of(a), *_BY_DATA)
        per_input = _per_input(one, two)
        if per_input is None:
            why = _OTHER_SIZE.format(one=one, two=two, rows=ROWS[0], others=ROWS[1])
            plan_errors.refuse(_name(a), a.name, source_of(a), why, plan_errors.MIXES[1])
        return Rows(per_input, folded)

    def _refuse_mutation(self) -> None:
        """A plan changes nothing but its results."""
        specs = self.program.graph_signature.output_specs
        changed = [spec for spec in specs if spec.kind.name != "USER_OUTPUT"]
        names = [str(spec.target).removeprefix("model.") for spec in changed]
        if changed:
            why = _MUTATES[0].format(names=", ".join(names))
            plan_errors.refuse("the forward", "the model", "", why, _MUTATES[1])

    def _output(self) -> Node:
        """The one tensor that is returned."""
        given = self.pairs[-1][0].args[0]
        leaves = list(given) if isinstance(given, (tuple, list)) else [given]
        spec = self.program.call_spec.out_spec
        if len(leaves) != 1 or (spec is not None and not spec.is_leaf()):
            what = f"{len(leaves)} results" if len(leaves) != 1 else "a container"
        else:
            leaf = leaves[0]
            node = self.made[leaf] if isinstance(leaf, fx.Node) else None
            meta = node.outs[0] if node and node.outs else None
            if node and meta and _is_scores(meta):
                return node
            what = "a constant" if meta is None else f"a tensor {_words(meta)}"
        why = _OUTPUT[0].format(what=what)
        raise plan_errors.PlanError("the forward", "the output", "", why, _OUTPUT[1])


def source_of(node: fx.Node) -> str:
    """Where the model calls an operator.

    Args:
        node: Of an exported graph.

    Returns:
        Name of the module, and file and line where they are not torch's; "" if nothing is known.
    """
    stack = node.meta.get("nn_module_stack") or {}
    names = [path for path, _ in stack.values() if path]
    name = names[-1].removeprefix("model").removeprefix(".") if names else ""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f"{f.rsplit('/', 1)[-1]}:{line}" for f, line in frames if not _NOT_THE_MODEL.search(f)]
    return ", ".join(part for part in (name, own[-1] if own else "") if part)


def _same_for_all_rows(a: fx.Node, b: fx.Node, one: Any, two: Any) -> bool:
    """Whether a call makes equal entries, of another tensor's type and device only."""
    if packet(a.target) not in FACTORIES or one.shape != two.shape:
        return False
    alike = repr(a.args[1:]) == repr(b.args[1:]) and repr(a.kwargs) == repr(b.kwargs)
    return alike and one.is_contiguous()


def _filled(node: Node, like: Tensor, a: fx.Node) -> Node:
    """``x.new_zeros(…)`` and others as a constant."""
    number = a.kwargs.get("fill_value", a.args[-1]) if "full" in node.op else int("ones" in node.op)
    sizes, strides = tuple(like.shape), tuple((stride, 0) for stride in like.stride())
    node.kind, node.target = "constant", torch.ops.aten.full.default
    node.args, node.kwargs = (sizes, number), {"dtype": like.dtype, "device": like.device}
    node.outs = [Meta(sizes, like.dtype, strides, folded=False)]
    return node


def _is_scores(meta: Meta) -> bool:
    """Whether a result is [rows, classes]."""
    rows = meta.shape[0] if len(meta.shape) == 2 else None
    return (
        isinstance(rows, Rows)
        and rows.per_input == 1
        and len(meta.rows) == 1
        and meta.shape[1] != 0
        and meta.dtype.is_floating_point
    )


def _words(meta: Meta) -> str:
    """Dimensions as read: n for rows."""
    words = [f"{d.per_input} n" if isinstance(d, Rows) else str(d) for d in meta.shape]
    return f"[{', '.join(words)}] {meta.dtype}".replace("1 n", "n")


def _name(node: fx.Node) -> str:
    """Name of an operator without torch.ops."""
    return "getitem" if node.target is operator.getitem else str(node.target)


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else None


def _per_input(one: Any, two: Any) -> int | None:
    """K where the two are k times the rows."""
    if type(one) is not int or type(two) is not int or one <= 0 or one % ROWS[0]:
        return None
    per_input = one // ROWS[0]
    return per_input if per_input * ROWS[1] == two else None
