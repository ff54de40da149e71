"""The memory of an engine, allocated once, and the calls of a plan bound to it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_dc.mc.plan import Plan
from bayes_dc.mc.plan_types import Call, Dim, SiteIds, Storage, Value, size_of
from bayes_dc.mc.views import tensor_of


class Program(NamedTuple):
    """A plan at one number of inputs and of passes.

    Attributes:
        input: Where the inputs are to be written, ``[b, …]``.
        once: Calls that are made once, before the passes.
        passes: Calls of a chunk of passes.
        output: Where its outputs are then, ``[passes, b, C]``.
    """

    input: Tensor
    once: list[Call]
    passes: list[Call]
    output: Tensor


class _Binder:
    """Tensors in place of values, at one (b, passes); made once each."""

    def __init__(self, workspace: "Workspace", b: int, passes: int) -> None:
        self.b, self.passes = b, passes
        self.sites = workspace.sites(b, passes)
        self._workspace = workspace
        self._made: dict[int, tuple[Value, Tensor]] = {}  # a value is kept: its id is not reused

    def __call__(self, value: Value) -> Tensor:
        found = self._made.get(id(value))
        if found is None:
            tensor = self._workspace.view(value, self.b, self.passes)
            found = self._made[id(value)] = value, tensor
        return found[1]

    def size(self, dim: Dim) -> int:
        return size_of(dim, self.b, self.passes)


class Workspace:
    """One arena for everything that a plan computes, and coordinates of its masks.

    Nothing is allocated after construction but the Python objects of ``bind``.

    Args:
        plan: What is to be computed.
        device: Where.

    Attributes:
        arena: uint8, of the plan's size.
        keys: int64 ``[sites, 2]``, key words.
        sample_ids: int64 ``[capacity]``.
        pass_ids: int64 ``[T]``, those of the present chunk first.
        all_passes: int64 ``[T]``, 0 … T − 1.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.arena = torch.empty(max(plan.arena_bytes, 16), dtype=torch.uint8, device=device)
        self.keys = torch.zeros(len(plan.sites), 2, dtype=torch.int64, device=device)
        self.sample_ids = torch.arange(plan.capacity, device=device)
        self.pass_ids = torch.arange(plan.T, device=device)
        self.all_passes = torch.arange(plan.T, device=device)
        self._typed: dict[torch.dtype, Tensor] = {}
        self._leaves = {storage: list(_leaves(storage)) for storage in plan.derived}
        self._versions = {storage: _versions(leaves) for storage, leaves in self._leaves.items()}
        watched = {id(t): t for leaves in self._leaves.values() for t in leaves}
        self._watched = list(watched.values())
        self._seen = _versions(self._watched)
        self._programs: dict[tuple[int, int], Program] = {}

    def bind(self, b: int, passes: int) -> Program:
        """The calls of the plan.

        Args:
            b: Inputs, 1 … capacity.
            passes: Passes of a chunk, b · passes ≤ rows.

        Returns:
            The same object for the same numbers.
        """
        program = self._programs.get((b, passes))
        if program is None:
            program = self._programs[b, passes] = self._bind(b, passes)
        return program

    def forget(self) -> None:
        """Drop what was bound."""
        self._programs.clear()

    def set_passes(self, first: int, passes: int) -> Call:
        """The call that makes a chunk's passes the present ones.

        Args:
            first: Number of its first pass.
            passes: Its passes.

        Returns:
            A copy on the device.
        """
        numbers = self.all_passes[first : first + passes]
        return torch.Tensor.copy_, (self.pass_ids[:passes], numbers), {}

    def number_samples(self) -> None:
        """Make 0, 1, … the sample ids."""
        torch.arange(self.plan.capacity, out=self.sample_ids)

    def _bind(self, b: int, passes: int) -> Program:
        binder = _Binder(self, b, passes)
        calls: dict[str, list[Call]] = {"once": [], "passes": []}
        with torch.no_grad():
            for step in self.plan.steps:
                calls[step.phase] += step.emit(binder)
        output = binder(self.plan.output)
        return Program(binder(self.plan.input), calls["once"], calls["passes"], output)

    def sites(self, b: int, passes: int) -> list[SiteIds]:
        """Coordinates of every site.

        Args:
            b: Inputs.
            passes: Passes of a chunk.

        Returns:
            Views of ``keys``, ``sample_ids`` and ``pass_ids``.
        """
        samples, steps = self.sample_ids[:b], self.pass_ids[:passes]
        return [SiteIds(key, samples, steps) for key in self.keys]

    def view(self, value: Value, b: int, passes: int) -> Tensor:
        """The tensor of a value.

        Args:
            value: A value of the plan.
            b: Inputs.
            passes: Passes of a chunk.

        Returns:
            A view of the arena, or of a constant.
        """
        sizes, strides, offset = value.layout(b, passes)
        storage = value.storage
        if not storage.in_arena:
            held = storage.tensor
            assert held is not None
            return held.as_strided(sizes, strides, held.storage_offset() + offset)
        used = value.nbytes(b, passes)
        assert used <= storage.nbytes, f"{storage.name}: {used} bytes of {storage.nbytes}"
        assert storage.offset is not None
        typed = self._as(value.dtype)
        return typed.as_strided(sizes, strides, storage.offset // value.dtype.itemsize + offset)

    def _as(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._typed:
            whole = self.arena.shape[0] // dtype.itemsize * dtype.itemsize
            self._typed[dtype] = self.arena[:whole].view(dtype)
        return self._typed[dtype]

    def refresh(self, *, all_of_them: bool = False) -> None:
        """Compute again, in place, what was computed from weights that have been written since.

        Args:
            all_of_them: Whatever the version counters of the weights say. They do not count what is
                written through ``parameter.data``.
        """
        now = _versions(self._watched)
        if now == self._seen and not all_of_them:
            return
        for storage, known in self._versions.items():
            if all_of_them or known != _versions(self._leaves[storage]):
                self._recompute(storage)
        self._seen = now

    def _recompute(self, storage: Storage) -> None:
        """Fill a derived constant; its memory stays where it is."""
        assert storage.compute is not None
        assert storage.tensor is not None
        self._versions[storage] = _versions(self._leaves[storage])
        with torch.no_grad():
            storage.tensor.copy_(storage.compute(*map(tensor_of, storage.sources)))

    def state_bytes(self) -> dict[str, int]:
        """What is allocated beside the arena.

        Returns:
            Bytes by what they are for.
        """
        ids = (self.keys, self.sample_ids, self.pass_ids, self.all_passes)
        derived = [s.tensor for s in self.plan.derived if s.tensor is not None]
        return {
            "keys and ids": sum(t.nbytes for t in ids),
            "constants computed from weights": sum(t.nbytes for t in derived),
        }


def _versions(tensors: list[Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _leaves(storage: Storage) -> Iterator[Tensor]:
    """The weights that a derived constant comes from, through other such constants."""
    # Without inference tensors, which count no writes: they cannot be written outside of that mode.
    for value in storage.sources:
        source = value.storage
        if source.kind == "derived":
            yield from _leaves(source)
        elif source.tensor is not None and not source.tensor.is_inference():
            yield source.tensor
