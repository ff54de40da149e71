"""Time with a gate, a formula and a home.

Work      multiply-adds of the unmasked product: M·N·K for each of forward, dx and dw, three times
          that for all of them, Σ N·K · T·B for a prediction.
Limit     row kernels on cuda: an ideal of 1.5 instructions for each masked multiply-add (1 FFMA,
          1/7 R2P, 0.4 Philox), 22 T/s on an H200 of 132 SMs × 128 lanes × 1.98 GHz; others are
          scaled by SMs × clock. A dense product needs 1 instruction, so it may exceed this limit.
          Everything else, and all of the CPU: an unmasked implementation of the same run, which the
          table names.
Time      median, 20 % and 80 % quantile of at least three calls.
          events  cuda events around one call, caches flushed before it; the host's time counts
                  where the GPU waits for it.
          graph   one of 20 calls captured in a CUDA graph; caches stay warm, the host is not in it.
          clock   the host's clock, on the CPU.
Memory    highest allocation of torch during one call above what was allocated before it; on the
          CPU the kernels' own scratch, about 0.3 MiB for each thread, is not in it.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.records import first_line

SLOWEST_WARM_UP_S = 0.01
MOST_RUNS = 100
CALLS_PER_GRAPH = 20
FLUSHED_BYTES = 256 << 20
"""Written before each timed call: more than any GPU's level-two cache."""


@dataclass(frozen=True)
class Measured:
    """Milliseconds of the runs, sorted, and the highest extra allocation of one call."""

    times: list[float]
    peak_mib: float


def measure(
    call: Callable[[], object], device: str, budget_s: float, timing: str = "events"
) -> Measured:
    """Compile, take the memory of one call, warm up, and time for about ``budget_s`` seconds."""
    call()
    peak = peak_mib(call, device)
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    once_s = max(time.perf_counter() - started, 1e-6)
    for _ in range(min(int(SLOWEST_WARM_UP_S / once_s), MOST_RUNS)):
        call()
    runs = min(max(int(budget_s / once_s), 3), MOST_RUNS)
    if device == "cpu":
        return Measured(sorted([1e3 * once_s, *_clock_times(call, runs - 1)]), peak)
    if timing == "graph":
        return Measured(_graph_times(call), peak)
    return Measured(_event_times(call, runs), peak)


def quantile(times: list[float], q: float) -> float:
    """The q-quantile of sorted times."""
    if len(times) == 1:
        return times[0]
    return statistics.quantiles(times, n=100, method="inclusive")[round(100 * q) - 1]


def peak_mib(call: Callable[[], object], device: str) -> float:
    """Highest extra allocation of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    total = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak / 2**20


def gate(error: float, bound: float, what: str) -> None:
    """Refuse to time a wrong result; an error that is NaN is wrong."""
    if not error <= bound:
        raise SystemExit(f"not timed: {what} is off by {error:.3g} (bound {bound:.3g})")


@cache
def limit_madds() -> float:
    """Masked multiply-adds per second that the GPU's issue slots allow at 1.5 instructions each.

    NaN where nvidia-smi does not tell the highest clock.
    """
    properties = torch.cuda.get_device_properties(0)
    query = ("--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits")
    megahertz = first_line("nvidia-smi", f"--id=GPU-{properties.uuid}", *query)
    if not megahertz.isdigit():
        return float("nan")
    return properties.multi_processor_count * 128 * 1e6 * float(megahertz) / 1.5


def _clock_times(call: Callable[[], object], runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - before))
    return times


def _event_times(call: Callable[[], object], runs: int) -> list[float]:
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    events = [_event_pair() for _ in range(runs)]
    for before, after in events:
        flushed.zero_()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return sorted(before.elapsed_time(after) for before, after in events)


def _graph_times(call: Callable[[], object], replays: int = 20) -> list[float]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            call()
    graph.replay()
    events = [_event_pair() for _ in range(replays)]
    for before, after in events:
        before.record()
        graph.replay()
        after.record()
    torch.cuda.synchronize()
    return sorted(before.elapsed_time(after) / CALLS_PER_GRAPH for before, after in events)


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
