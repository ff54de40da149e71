"""From a trace to steps: constants folded, views looked through, one rule for each operator."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bayes_dc.mc import plan_errors
from bayes_dc.mc.constants import FACTORIES, Constants
from bayes_dc.mc.followers import Followers
from bayes_dc.mc.layouts import same_layout
from bayes_dc.mc.lowering.context import Context, Mode
from bayes_dc.mc.lowering.registry import Rule
from bayes_dc.mc.plan_types import Site, Step, Storage, Value
from bayes_dc.mc.trace_types import Node, Trace, mapped
from bayes_dc.mc.views import VIEWS, argument, check_rows, packet, place_rows, view

Rules = Callable[[object, str], Rule | None]
"""Gives the rule of an operator on a type of device, or None."""

_NO_RULE = (
    "there is no rule for it on {device}",
    f"Register one with bayes_dc.mc.lowering.lowering, or {plan_errors.FOLDED}.",
)
_RANDOM = "it draws from torch's generator"
_NOT_COMPUTED = "its result {index} is not computed in a plan"
_NOTHING_DRAWN = (
    "no layer with masks comes before it, so every pass would be equal",
    "Convert the model with p > 0 (bayes_dc.convert), or use nn.Dropout with p > 0.",
)
_MOVED = "it moves a tensor from {one} to {other}"
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
_COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy"})


@dataclass(frozen=True)
class Built:
    """Steps and storages; offsets and lifetimes are not known yet.

    Attributes:
        steps: Those of a call, then those of a chunk of passes.
        storages: All of the arena.
        constants: Parameters, buffers and what is derived from them, sources first.
        input: The input.
        output: The result.
        in_place: How many results are written over an operand.
    """

    steps: tuple[Step, ...]
    storages: tuple[Storage, ...]
    constants: tuple[Storage, ...]
    input: Value
    output: Value
    in_place: int


class Builder(Constants, Followers):
    """Lowers the nodes of a trace in order.

    Args:
        trace: The trace.
        device: Where it runs.
        mode: Whether libraries may allocate.
        rules: Gives the rules.
    """

    def __init__(self, trace: Trace, device: torch.device, mode: Mode, rules: Rules) -> None:
        tensors = (node.tensor for node in trace.nodes if node.tensor is not None)
        first = next((t for t in tensors if t.ndim), None)
        Constants.__init__(self, device if first is None else first.device)
        Followers.__init__(self, trace.output)
        self.trace, self.device, self.mode, self.rules = trace, device, mode, rules
        self.sites: tuple[Site, ...] = trace.sites
        self.in_place = 0
        self._steps: dict[str, list[Step]] = {"once": [], "passes": []}
        self._storages: list[Storage] = []
        self._env: dict[Node, Any] = {}
        self._holders: dict[Storage, list[Node]] = {}

    def build(self) -> Built:
        """Lower every node.

        Returns:
            The steps.

        Raises:
            PlanError: If a node cannot be planned.
        """
        last = self.trace.output
        if last.kind != "folded":
            plan_errors.refuse(last.op, last.name, last.source, *_NOTHING_DRAWN)
        with torch.no_grad():
            for node in self.trace.nodes:
                if node not in self.fused:
                    self._hold(node, self._lower(node))
                    for follower in self.fused_by.get(node, ()):
                        self._hold(follower, self._env[node])
        output = self._env[last]
        if not output.storage.in_arena:
            plan_errors.refuse(last.op, last.name, last.source, *_NOTHING_DRAWN)
        output.storage.kind = "output"
        steps = (*self._steps["once"], *self._steps["passes"])
        used = {v.storage for s in steps for v in (*s.reads, *s.writes, *s.scratch)}
        used.add(self._env[self.trace.input].storage)
        return Built(
            steps,
            tuple(storage for storage in self._storages if storage in used),
            tuple(self.constants),
            self._env[self.trace.input],
            output,
            self.in_place,
        )

    def own(self, value: Value) -> Value:
        """Take a value of new memory into the plan.

        Args:
            value: In a storage of its own.

        Returns:
            The value.
        """
        self._storages.append(value.storage)
        return value

    def add(self, step: Step) -> None:
        """Append a step to its phase.

        Args:
            step: The step.
        """
        self._steps[step.phase].append(step)

    def dies(self, x: Value, node: Node) -> bool:
        """Whether the memory of an operand may be written by a node.

        Args:
            x: The operand.
            node: The node.

        Returns:
            False where it is read later, through any view, or is not the plan's to write.
        """
        if x.storage.kind != "arena":
            return False
        operands = [v for read in node.inputs for v in _values(self._env[read])]
        if not all(same_layout(v.layout, x.layout) for v in operands if v.storage is x.storage):
            return False
        holders = self._holders.get(x.storage, [])
        return all(self._last_use(holder) <= node.index for holder in holders)

    def value_of(self, leaf: Any) -> Any:
        """The value of a node that has been lowered.

        Args:
            leaf: A node, or anything else.

        Returns:
            Its value; anything else as it is.
        """
        return self._env[leaf] if isinstance(leaf, Node) else leaf

    def _last_use(self, node: Node) -> int:
        """Index of the last node that reads a result."""
        if node is self.trace.output:
            return len(self.trace.nodes)
        return max((user.index for user in node.users), default=node.index)

    def _hold(self, node: Node, result: Any) -> None:
        """Note the result of a node."""
        self._env[node] = result
        for value in _values(result):
            self._holders.setdefault(value.storage, []).append(node)

    def _lower(self, node: Node) -> Any:
        """The result of a node."""
        if node.op == "input":
            meta = node.outs[0]
            assert meta is not None
            storage = Storage("x", "input", "input")
            return self.own(Value(storage, meta.shape, meta.dtype, meta.layout, "plain"))
        if node.op == "constant":
            return self.parameter(node)
        if node.target is operator.getitem:
            return self._item(*node.args)
        name = packet(node.target)
        operands = [v for read in node.inputs for v in _values(self._env[read])]
        if name in VIEWS:
            return self._view(node, operands[0])
        if operands:
            check_rows(node, operands[0])
        node.outs = place_rows(node, node.outs, operands)
        rule = self.rules(node.target, self.device.type)
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if name in _RECURRENT:
            random = False  # their dropout was refused, or left off, when it was called
        if random and (rule is None or node.kind == "constant"):
            plan_errors.refuse(node.op, node.name, node.source, _RANDOM)
        if node.kind == "constant":
            return self.folded(node, self.value_of)
        if name in FACTORIES:
            return self.filled(node)
        if name in _COPIES:
            return self._copied(node, operands[-1])
        if rule is None:
            why = _NO_RULE[0].format(device=self.device.type)
            plan_errors.refuse(node.op, node.name, node.source, why, _NO_RULE[1])
        args, kwargs = mapped((node.args, node.kwargs), self.value_of)
        return rule(Context(self, node), *args, **kwargs)

    def _item(self, of: Node, index: int) -> Any:
        """One result of several."""
        item = self._env[of][index]
        if item is None:
            why = _NOT_COMPUTED.format(index=index)
            plan_errors.refuse(of.op, of.name, of.source, why)
        return item

    def _view(self, node: Node, x: Value) -> Any:
        """A view; of a copy where there is none of the operand."""
        result = view(node, x)
        if result is None:
            if x.constant:
                x = self.derive(lambda t: t.contiguous(), [x], f"{node.name}.copy", node.op)
            else:
                c = Context(self, node)
                whole = c.out(x.shape, x.dtype, kind=x.kind)
                c.copy(x, whole)
                x = whole
            result = view(node, x)
        return result

    def _copied(self, node: Node, x: Value) -> Value:
        """A copy; the operand itself where strides and dtype stay."""
        meta, device = node.outs[0], argument(node, "device")
        assert meta is not None
        if device is not None and torch.device(device).type != self.memory.type:
            why = _MOVED.format(one=self.memory.type, other=device)
            plan_errors.refuse(node.op, node.name, node.source, why)
        alike = x.dtype == meta.dtype and x.kind == node.kind and x.shape == meta.shape
        if alike and same_layout(lambda b, p: x.layout(b, p)._replace(offset=0), meta.layout):
            return x
        c = Context(self, node)
        out = c.out()
        c.copy(x, out)
        return out


def _values(result: Any) -> list[Value]:
    """Values of a result of one or several."""
    items = result if isinstance(result, (tuple, list)) else [result]
    return [item for item in items if isinstance(item, Value)]
