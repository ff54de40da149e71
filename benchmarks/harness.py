"""Time with a gate, a formula and a home.

Work      M·N·K multiply-adds for each of forward, dx and dw.
Limit     cpu: torch's matrix product without masks, same shape, same run. cuda: an ideal of 1.5
          instructions for each masked multiply-add (1 FFMA, 1/7 R2P, 0.4 Philox), 22 T/s on an
          H200 of 132 SMs × 128 lanes × 1.98 GHz; others are scaled by SMs × clock. A dense product
          needs 1 instruction, so it may exceed this limit.
Time      median, 20 % and 80 % quantile. cuda: events, cache flushed before each run.
Memory    highest allocation of torch during one call above what was allocated before it; on the
          CPU the kernels' own scratch, about 0.3 MiB for each thread, is not in it.
"""

import csv
import datetime
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One line of the table and of the CSV file."""

    op: str
    implementation: str
    M: int
    N: int
    K: int
    p: float
    dtype: str
    ms_p20: float
    ms_p50: float
    ms_p80: float
    giga_madds_per_s: float
    percent_of_limit: float
    peak_mib: float
    device: str
    driver: str
    torch: str
    kernels: str
    commit: str
    date: str


def environment(device: str) -> dict[str, str]:
    """Columns that say where and when."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    if device == "cuda":
        import triton

        kernels, driver = f"triton {triton.__version__}", _driver()
    else:
        import numba

        kernels = f"numba {numba.__version__}"
        driver = f"{torch.get_num_threads()} threads"
    return {
        "device": name,
        "driver": driver,
        "torch": torch.__version__,
        "kernels": kernels,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def measure(call: Callable[[], object], device: str, budget_s: float = 1.0) -> list[float]:
    """Milliseconds of repeated calls, sorted."""
    call()  # compile
    if device == "cuda":
        import triton.testing

        times = triton.testing.do_bench(call, warmup=20, rep=80, return_mode="all")
        return sorted(times)
    times = []
    started = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - started < budget_s and len(times) < 50):
        before = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - before))
    return sorted(times)


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
    """Refuse to time a wrong result."""
    if not error <= bound:
        raise SystemExit(f"not timed: {what} is off by {error:.3g} (bound {bound:.3g})")


def limit_madds() -> float:
    """Masked multiply-adds per second that the GPU's issue slots allow at 1.5 instructions each."""
    properties = torch.cuda.get_device_properties(0)
    clock = getattr(properties, "clock_rate", 1.98e6) * 1e3
    return properties.multi_processor_count * 128 * clock / 1.5


def append(rows: list[Row], device: str) -> Path:
    """Add rows to the device's CSV file."""
    RESULTS.mkdir(exist_ok=True)
    name = rows[0].device.lower().replace(" ", "-") if device == "cuda" else "cpu"
    path = RESULTS / f"{name}.csv"
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return path


def table(rows: list[Row]) -> str:
    """The rows as text."""
    head = f"{'op':8} {'implementation':22} {'M×N×K':>18} {'p':>5} {'ms':>10} {'G/s':>9} "
    lines = [head + f"{'limit':>6} {'MiB':>9}"]
    lines += [
        f"{r.op:8} {r.implementation:22} {f'{r.M}×{r.N}×{r.K}':>18} {r.p:5.2f} "
        f"{r.ms_p50:10.3f} {r.giga_madds_per_s:9.2f} {_percent(r.percent_of_limit):>6} "
        f"{r.peak_mib:9.1f}"
        for r in rows
    ]
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}%"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().splitlines()[0]


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str:
    return _output("git", "rev-parse", "--short", "HEAD")
