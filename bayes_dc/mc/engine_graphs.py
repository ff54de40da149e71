"""Calls of an engine as CUDA graphs, captured once for each length of the input."""

from typing import NamedTuple

import torch

from bayes_dc.mc.plan_types import Call

_ALLOCATED = (
    "{where} of a plan without allocations asked CUDA's allocator for memory {count} times{who}. "
    "Please report the model; mode='workspace' allows it, engine='folded' of "
    "predict_with_uncertainty does without a plan."
)
_WHO = ", first in {name}"


class Captured(NamedTuple):
    """Calls as a graph.

    Attributes:
        graph: To be replayed on any stream.
        pool_bytes: Memory that libraries took for it, 0 if strict.
    """

    graph: torch.cuda.CUDAGraph
    pool_bytes: int


class Capture:
    """Captures lists of calls, on a stream of its own.

    Before a capture the calls run twice on that stream: once so that kernels are compiled and
    libraries have their memory, and once to see that none is asked for any more.

    Args:
        device: A CUDA device.
        strict: Whether a call may not allocate.
    """

    def __init__(self, device: torch.device, *, strict: bool) -> None:
        self._device, self._strict = device, strict
        self._stream = torch.cuda.Stream(device)

    def __call__(self, copy: Call, calls: list[Call]) -> Captured:
        """Run calls, after the work of the current stream, and capture them.

        Args:
            copy: Fills the input, before each of these runs and not as part of the graph.
            calls: They; replays write to the same memory.

        Returns:
            The graph.

        Raises:
            RuntimeError: If a strict one allocates.
        """
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            run([copy, *calls])
            before = allocations(self._device)
            run([copy, *calls])
            self._refuse("A run", allocations(self._device) - before, [copy, *calls])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                # From here on: torch itself keeps two numbers of its generator for all graphs.
                before = allocations(self._device)
                run(calls)
                count = allocations(self._device) - before
            self._refuse("A capture", count, [copy, *calls])
        here.wait_stream(self._stream)
        return Captured(graph, _pool_bytes(graph))

    def _refuse(self, where: str, count: int, calls: list[Call]) -> None:
        if self._strict and count:
            text = _ALLOCATED.format(where=where, count=count, who=self._culprit(calls))
            raise RuntimeError(text)

    def _culprit(self, calls: list[Call]) -> str:
        """The first call that allocates when run by itself."""
        for call in calls:
            before = allocations(self._device)
            run([call])
            if allocations(self._device) != before:
                name = getattr(call[0], "__qualname__", repr(call[0]))
                return _WHO.format(name=name)
        return ""


def run(calls: list[Call]) -> None:
    """Make calls, one after another.

    Args:
        calls: They.
    """
    for function, args, kwargs in calls:
        function(*args, **kwargs)


def allocations(device: torch.device) -> int:
    """Requests to CUDA's caching allocator so far.

    Args:
        device: A CUDA device.

    Returns:
        Their number since the process began.
    """
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))


def _pool_bytes(graph: torch.cuda.CUDAGraph) -> int:
    """Memory that was taken for a graph in its capture."""
    pool = tuple(graph.pool())
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == pool)
