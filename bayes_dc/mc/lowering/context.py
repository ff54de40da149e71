"""What a rule has at hand: new values, memory of its inputs, constants, steps, fused followers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from bayes_dc.mc import plan_errors
from bayes_dc.mc.layouts import contiguous, same_layout
from bayes_dc.mc.lowering.rowwise import Rowwise
from bayes_dc.mc.plan_types import Bind, Call, Dim, Kind, Phase, Site, Step, Storage, Value

if TYPE_CHECKING:
    from bayes_dc.mc.build import Builder
    from bayes_dc.mc.trace_types import Meta, Node

Mode = Literal["strict", "workspace"]


class Epilogue(NamedTuple):
    """What follows a product and can be computed with it: y · scale + shift, ReLU, then pooling.

    Attributes:
        scale: ``[channels]`` or None.
        shift: ``[channels]`` or None.
        relu: Whether negative results become 0.
        pool: Whether the largest of 2 × 2 results is taken.
    """

    scale: Value | None
    shift: Value | None
    relu: bool
    pool: bool = False


class Context(Rowwise):
    """One node, seen by its rule.

    Args:
        builder: What builds the plan.
        node: The node.

    Attributes:
        node: The node.
        place: The device.
        device: Its type, ``"cpu"`` or ``"cuda"``.
        mode: ``"strict"``: no step may allocate; ``"workspace"``: libraries may, and it is
            reported (``step(..., library_workspace=True)``).
        kind: Whether the result is plain or folded.
        phase: When its steps run.
    """

    def __init__(self, builder: "Builder", node: "Node") -> None:
        self.node = node
        self._builder = builder
        self._last = node
        self.place, self.mode = builder.device, builder.mode
        self.device = builder.device.type
        self.kind: Kind = node.kind
        self.phase: Phase = "passes" if node.kind == "folded" else "once"

    # -- values ------------------------------------------------------------------------------------

    def meta(self, index: int = 0) -> "Meta":
        """Shape, dtype and layout of a result, as exported.

        Args:
            index: Which, of several.

        Returns:
            Those of the last follower, if some have been fused.
        """
        meta = self._last.outs[index]
        assert meta is not None
        return meta

    def out(
        self,
        shape: Sequence[Dim] | None = None,
        dtype: torch.dtype | None = None,
        *,
        index: int = 0,
        kind: Kind | None = None,
    ) -> Value:
        """New memory for a result.

        Args:
            shape: Its dimensions, laid out contiguously; default: shape and strides as exported
                (channels may be last), which later views rely on.
            dtype: Default as exported.
            index: Which result, of several.
            kind: Default that of the node.

        Returns:
            The value, to be written by a step.
        """
        meta = self.meta(index)
        layout = meta.layout if shape is None else contiguous(shape)
        dims = meta.shape if shape is None else tuple(shape)
        storage = Storage(self._last.name, self.node.op, "arena")
        value = Value(storage, dims, dtype or meta.dtype, layout, kind or self.kind)
        return self._builder.own(value)

    def in_place(self, x: Value, index: int = 0) -> Value | None:
        """The result in the memory of an operand that is not needed afterwards.

        For operations that read an element before they write it, and read no other of ``x`` after.
        ``out = c.in_place(x) or c.out()``.

        Args:
            x: An operand.
            index: Which result, of several.

        Returns:
            None where ``x`` is needed later (by any view of its memory, or by the next chunk of
            passes), belongs to the caller, is a constant, or differs from the result in shape,
            strides or dtype.
        """
        meta = self.meta(index)
        if x.kind != self.kind or x.dtype != meta.dtype or x.shape != meta.shape:
            return None
        if not same_layout(lambda b, p: x.layout(b, p)._replace(offset=0), meta.layout):
            return None
        if not self._builder.dies(x, self.node):
            return None
        self._builder.in_place += 1
        return Value(x.storage, x.shape, x.dtype, x.layout, self.kind)

    def new(self, name: str, shape: Sequence[Dim], dtype: torch.dtype, kind: Kind) -> Value:
        """New memory beside that of a result.

        Args:
            name: What it is, for reports.
            shape: Its dimensions, laid out contiguously.
            dtype: Its type.
            kind: Plain or folded.

        Returns:
            The value.
        """
        storage = Storage(f"{self.node.name}.{name}", self.node.op, "arena")
        return self._builder.own(Value(storage, tuple(shape), dtype, contiguous(shape), kind))

    def scratch(self, shape: Sequence[Dim], dtype: torch.dtype, name: str = "scratch") -> Value:
        """Memory for one step (``step(..., scratch=…)``).

        Args:
            shape: Its dimensions, laid out contiguously; ``Rows`` where they follow the batch.
            dtype: Its type.
            name: What it is, for reports.

        Returns:
            The value.
        """
        storage = Storage(f"{self.node.name}.{name}", self.node.op, "scratch")
        value = Value(storage, tuple(shape), dtype, contiguous(shape), self.kind)
        return self._builder.own(value)

    def constant(self, compute: Callable[..., Tensor], *sources: Value, name: str = "") -> Value:
        """A tensor computed from constants once, and again when they have changed.

        Args:
            compute: Gets the tensors of ``sources``; must not keep them.
            sources: Constants.
            name: What it is, for reports.

        Returns:
            A constant, with the strides of what ``compute`` returned.
        """
        return self._builder.derive(compute, sources, name or self.node.name, self.node.op)

    def scalar(self, number: float, dtype: torch.dtype) -> Value:
        """A number as a constant without dimensions: operators allocate one for a Python number.

        Args:
            number: The number.
            dtype: Its type.

        Returns:
            A constant; the same for the same number.
        """
        return self._builder.scalar(number, dtype)

    # -- steps -------------------------------------------------------------------------------------

    def step(
        self,
        emit: Callable[[Bind], list[Call]],
        reads: Sequence[Value],
        writes: Sequence[Value],
        scratch: Sequence[Value] = (),
        *,
        library_workspace: bool = False,
        sites: Sequence[int] = (),
        rounds: bool = False,
    ) -> None:
        """Add a step.

        Args:
            emit: Gives the calls for a ``Bind``; runs once for each (b, passes), the calls often.
            reads: Values it reads; constants may be left out.
            writes: Values it writes.
            scratch: Values of ``scratch()`` it uses.
            library_workspace: Whether a library may allocate in it.
            sites: Numbers of the sites whose masks it draws.
            rounds: Whether it has no memory for convolutions of full float32 precision.
        """
        phase: Phase = "passes" if any(v.folded for v in writes) else "once"
        self._builder.add(
            Step(
                self.node.name,
                self.node.op,
                self.node.source,
                phase,
                tuple(reads),
                tuple(writes),
                tuple(scratch),
                emit,
                library_workspace,
                tuple(sites),
                rounds,
            )
        )

    def copy(self, x: Value, out: Value) -> None:
        """A step that copies; a plain or constant value is read again by every pass.

        Args:
            x: What is copied.
            out: Where to; broadcasts, and converts the dtype.
        """
        to, of = self.aligned(out, x)

        def emit(bind: Bind) -> list[Call]:
            return [(bind(to).copy_, (bind(of),), {})]

        self.step(emit, [x], [out])

    def kept(self, shape: Sequence[Dim], dtype: torch.dtype, name: str) -> Value:
        """Memory that a call fills once and every chunk of passes reads.

        Args:
            shape: Its dimensions, laid out contiguously; no folded ``Rows``.
            dtype: Its type.
            name: What it is, for reports.

        Returns:
            A plain value; a step that writes it runs once.
        """
        return self.new(name, shape, dtype, "plain")

    def value_of(self, argument: Any) -> Any:
        """The value of a node.

        Args:
            argument: A node, or anything else.

        Returns:
            Its value; anything else as it is.
        """
        return self._builder.value_of(argument)

    def site(self, index: int) -> Site:
        """What a marker operator stands for.

        Args:
            index: Its last argument.

        Returns:
            The site.
        """
        return self._builder.sites[index]

    def epilogue(self, channel_dim: int = 1, pools: bool = False) -> Epilogue:
        """Take the followers of this node that can be computed with it out of the graph.

        They are BatchNorm with its running statistics, then ReLU, then pooling, each optional,
        where nothing else reads what is between. Call it before ``out`` and ``in_place``, which
        then describe the last follower's result.

        Args:
            channel_dim: Dimension of this node's result that BatchNorm must normalise along.
            pools: Whether this node can write the largest of 2 × 2 results.

        Returns:
            What to compute; ``(None, None, False, False)`` where nothing follows.
        """
        found = self._builder.followers(self, channel_dim, pools)
        self._last = found[-1]
        return Epilogue(*found[:-1])

    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Say that this node has no plan.

        Args:
            why: What does not work, a clause.
            remedy: What to do, sentences; "" names the folded path.
        """
        plan_errors.refuse(self.node.op, self.node.name, self.node.source, why, remedy)
