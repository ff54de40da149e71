"""What the allocator costs a prediction: ``python -m benchmarks.engine_allocator`` on a GPU.

The same predictions with torch's caching allocator and, in a process of its own, without it
(PYTORCH_NO_CUDA_MEMORY_CACHING=1: every tensor is a cudaMalloc and a cudaFree). What runs in
planned memory asks for its results only. Times as in harness.py, events; requests of one call.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import torch

from benchmarks import baselines, harness
from benchmarks.cases import precision
from benchmarks.engine import KINDS, make, masked_network, plain_network

T = 100
INPUTS = (1, 16, 256)
SWITCH = "PYTORCH_NO_CUDA_MEMORY_CACHING"
HEAD = ("network", "inputs", "what", "ms", "requests", "ms without the cache")
Line = tuple[str, int, str, float, int]


def lines(budget_s: float = 0.5) -> list[Line]:
    """Network, inputs, what ran, milliseconds and requests to the allocator."""
    found: list[Line] = []
    for name in KINDS:
        plain, size = plain_network(name)
        plain.cuda().eval().requires_grad_(False)
        model = masked_network(plain, {"scope": "pass"})
        for B in INPUTS:
            x = torch.randn(B, *size, device="cuda")
            with precision("tf32"):
                for what, call in calls(plain, model, x).items():
                    measured = harness.measure(call, "cuda", budget_s)
                    median = harness.quantile(measured.times, 0.5)
                    found.append((name, B, what, median, requests(call)))
    return found


def calls(
    plain: torch.nn.Module, model: torch.nn.Module, x: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """What is compared."""
    from bayes_dc import predict_with_uncertainty

    free = baselines.folded_without_masks(plain, T)
    launches, graph = make(model, x, T, cuda_graph=False), make(model, x, T)
    return {
        "folded, no masks, eager": lambda: free(x),
        "folded, a mask for each pass": lambda: predict_with_uncertainty(
            model, x, T, engine="folded"
        ),
        "engine, launches": lambda: launches(x),
        "engine, graph": lambda: graph(x),
    }


def requests(call: Callable[[], object]) -> int:
    """Requests to CUDA's caching allocator in one call; 0 where it is turned off."""
    name = "allocation.all.allocated"
    before = torch.cuda.memory_stats().get(name, 0)
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats().get(name, 0) - before)


def main() -> None:
    """Both processes, one table."""
    if not torch.cuda.is_available():
        raise SystemExit("the allocator is that of a GPU: there is none on this machine")
    warnings.simplefilter("ignore")
    if os.environ.get(SWITCH) == "1":
        print(json.dumps(lines()))
        return
    here = lines()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine_allocator"],
        env={**os.environ, SWITCH: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"without the caching allocator: {done.stderr[-2000:]}")
    without = {tuple(line[:3]): line[3] for line in json.loads(done.stdout.splitlines()[-1])}
    print(f"{HEAD[0]:8} {HEAD[1]:>6} {HEAD[2]:30} {HEAD[3]:>9} {HEAD[4]:>9} {HEAD[5]:>21}")
    for name, B, what, ms, count in here:
        print(f"{name:8} {B:6} {what:30} {ms:9.4f} {count:9} {without[name, B, what]:21.4f}")


if __name__ == "__main__":
    main()
