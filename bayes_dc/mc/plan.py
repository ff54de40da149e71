"""A plan: which memory every tensor of a forward lies in, for any number of inputs and passes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayes_dc.mc.build import Builder, Built, Rules
from bayes_dc.mc.layouts import split_rows
from bayes_dc.mc.lowering import rule_for
from bayes_dc.mc.lowering.context import Mode
from bayes_dc.mc.offsets import assign_offsets
from bayes_dc.mc.plan_eager import eager_bytes
from bayes_dc.mc.plan_report import report
from bayes_dc.mc.plan_types import Site, Step, Storage, Value
from bayes_dc.mc.trace import trace

ROWS = {"cpu": 1 << 15, "cuda": 1 << 13}
"""Folded rows of one chunk of passes, by type of device, where they are not given.

On a GPU more rows gain little: launches cost next to nothing in a graph, and what one layer leaves
in the cache the next one finds there.
"""
ELEMENTS = 1 << 27
"""Elements of the largest tensor of folded rows in such a chunk."""
ALIGNMENT = {"cpu": 64, "cuda": 256}
"""Bytes that offsets in the arena are multiples of."""

_COUNT = "{name} must be an integer of at least 1; got {got!r}."
_MODE = 'mode must be "strict" or "workspace"; got {got!r}.'
_MEMORY = (
    "memory must be at least {least} bytes, the arena for one pass of {capacity} inputs; got "
    "{got}. Give more memory, or a smaller capacity and the inputs in several calls."
)


@dataclass(frozen=True)
class Plan:
    """Steps and the memory they work in; ``str(plan)`` is a table of it.

    It holds for every b ≤ ``capacity`` inputs and chunk of P passes with b · P ≤ ``rows``.

    Attributes:
        steps: In order: those of a call (``phase="once"``), then those of a chunk of passes.
        storages: All of the arena.
        constants: Parameters, buffers and what is derived from them, sources before what is
            computed from them.
        sites: Places that draw masks, by number.
        input: The input ``[b, …]``; it is copied into the arena.
        output: The result as ``[passes, b, classes]``.
        capacity: Largest number of inputs.
        passes: Passes of a chunk at the capacity.
        T: Passes of a prediction.
        device: Where it runs.
        mode: ``"strict"`` or ``"workspace"``.
        arena_bytes: Bytes of the arena.
        lower_bound: Most bytes in use at one step, which no arrangement can go below.
        eager_bytes: Most bytes that the same passes would hold at once without a plan, see
            ``plan_eager``.
        in_place: How many results are written over an operand.
        how: How the offsets were found.
    """

    steps: tuple[Step, ...]
    storages: tuple[Storage, ...]
    constants: tuple[Storage, ...]
    sites: tuple[Site, ...]
    input: Value
    output: Value
    capacity: int
    passes: int
    T: int
    device: torch.device
    mode: Mode
    arena_bytes: int
    lower_bound: int
    eager_bytes: int
    in_place: int
    how: str

    @property
    def rows(self) -> int:
        """Folded rows that fit: b · P ≤ rows for every chunk."""
        return self.capacity * self.passes

    @property
    def sum_bytes(self) -> int:
        """Bytes of all tensors, each in memory of its own."""
        return sum(storage.nbytes for storage in self.storages)

    @property
    def derived(self) -> tuple[Storage, ...]:
        """Constants that are computed from others, in an order of computation."""
        return tuple(storage for storage in self.constants if storage.kind == "derived")

    @property
    def library_workspaces(self) -> tuple[str, ...]:
        """Steps in which a library may allocate, by name and operator."""
        return tuple(f"{s.name} ({s.op})" for s in self.steps if s.library_workspace)

    def passes_for(self, b: int) -> int:
        """Passes of a chunk for ``b`` inputs.

        Args:
            b: Inputs, at most the capacity.

        Returns:
            As many as fit, at most T.
        """
        return min(self.T, self.rows // max(b, 1))

    def __str__(self) -> str:
        return report(self)


def build_plan(
    model: nn.Module,
    example: Tensor,
    T: int,
    capacity: int | None = None,
    *,
    rows: int | None = None,
    memory: int | None = None,
    mode: Mode = "strict",
    device: torch.device | str | None = None,
    dropout: bool = True,
    rules: Rules = rule_for,
) -> Plan:
    """Plan T passes of a model over up to ``capacity`` inputs.

    Args:
        model: Classifier with DropConnect or dropout layers; must be on the device of ``example``.
        example: Input ``[B, …]``; its values are not used.
        T: Passes of a prediction.
        capacity: Largest number of inputs; default B.
        rows: Most folded rows (inputs times passes) of a chunk. Default 2**15, on CUDA 2**13, fewer
            where a tensor would have more than 2**27 elements.
        memory: Most bytes of the arena; a chunk has fewer passes where it would be larger.
        mode: ``"strict"``: no step allocates; ``"workspace"``: libraries may.
        device: What to plan for; default the device of ``example``. A plan for another one can be
            looked at, not run.
        dropout: Whether dropout draws masks.
        rules: Gives the rule of an operator on a type of device, or None.

    Returns:
        The plan.

    Raises:
        PlanError: If there is no plan for the model: names the node, its line and a remedy.
        ValueError: If an argument is out of range.
    """
    capacity = example.shape[0] if capacity is None else capacity
    for name, value in (("T", T), ("capacity", capacity), ("rows", 1 if rows is None else rows)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(_COUNT.format(name=name, got=value))
    if mode not in {"strict", "workspace"}:
        raise ValueError(_MODE.format(got=mode))
    place = torch.device(example.device if device is None else device)
    last = place.type == "cuda" and example.ndim == 4
    last = last and any(isinstance(module, nn.Conv2d) for module in model.modules())
    if last:
        example = example[:1].contiguous(memory_format=torch.channels_last)
    traced = trace(model, example, dropout=dropout, channels_last=last)
    built = Builder(traced, place, mode, rules).build()
    _set_lifetimes(built)
    passes = _fitting(built, T, capacity, rows, place)
    alignment = ALIGNMENT.get(place.type, 256)
    total, bound, how = _assign(built, capacity, passes, alignment)
    if memory is not None and total > memory:
        passes, (total, bound, how) = _within(built, capacity, passes, alignment, memory)
    return Plan(
        built.steps,
        built.storages,
        built.constants,
        traced.sites,
        built.input,
        split_rows(built.output, 0),
        capacity,
        passes,
        T,
        place,
        mode,
        total,
        bound,
        eager_bytes(traced, capacity, passes),
        built.in_place,
        how,
    )


def _set_lifetimes(built: Built) -> None:
    """First and last step of every storage, in steps of both phases."""
    steps = built.steps
    once = sum(step.phase == "once" for step in steps)
    built.input.storage.start = -1
    for index, step in enumerate(steps):
        for value in (*step.reads, *step.writes, *step.scratch):
            storage = value.storage
            storage.start = min(storage.start, index)
            storage.end = max(storage.end, index)
    for storage in built.storages:
        storage.end = max(storage.end, storage.start)
        if storage.start < once <= storage.end:
            storage.end = len(steps)  # the next chunk of passes reads it again
    built.output.storage.end = len(steps)


def _assign(built: Built, capacity: int, passes: int, alignment: int) -> tuple[int, int, str]:
    """Sizes at the capacity, and offsets."""
    sizes = dict.fromkeys(built.storages, 0)
    extremes = ((capacity, passes), (1, capacity * passes))  # few inputs may have more passes
    for value in _values(built.steps, built.input):
        if value.storage.in_arena:
            nbytes = max(value.nbytes(*extreme) for extreme in extremes)
            sizes[value.storage] = max(nbytes, sizes[value.storage])
    for storage, nbytes in sizes.items():
        storage.nbytes = nbytes
    return assign_offsets(built.storages, alignment)


def _values(steps: Sequence[Step], entry: Value) -> list[Value]:
    """All values of a plan."""
    return [entry, *(v for s in steps for v in (*s.reads, *s.writes, *s.scratch))]


def _fitting(built: Built, T: int, capacity: int, rows: int | None, device: torch.device) -> int:
    """Passes of a chunk by its rows, and by its largest tensor where rows are not given."""
    passes = min(T, max(1, (rows or ROWS.get(device.type, ROWS["cpu"])) // capacity))
    if rows is None:
        for value in _values(built.steps, built.input):
            if value.storage.in_arena and value.folded:
                elements = value.layout(capacity, 1).end()
                passes = min(passes, max(1, ELEMENTS // max(elements, 1)))
    return passes


def _within(
    built: Built, capacity: int, passes: int, alignment: int, memory: int
) -> tuple[int, tuple[int, int, str]]:
    """The most passes whose arena is not larger than ``memory``."""
    low, high = 0, passes  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = _assign(built, capacity, middle, alignment)[0] <= memory
        low, high = (middle, high) if fits else (low, middle)
    least = _assign(built, capacity, max(low, 1), alignment)
    if least[0] > memory:
        raise ValueError(_MEMORY.format(least=least[0], capacity=capacity, got=memory))
    return max(low, 1), least
