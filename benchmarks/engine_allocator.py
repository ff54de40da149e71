"""What the allocator costs a prediction: ``python -m benchmarks.engine_allocator`` on a GPU.

The same predictions with torch's caching allocator and, in a process of its own, without it
(PYTORCH_NO_CUDA_MEMORY_CACHING=1: every tensor is a cudaMalloc and a cudaFree). What runs in
planned memory asks for its results only. Times as in harness.py, events; requests of one call.
"""

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
SECONDS = 0.2
"""For each time."""
SWITCH = "PYTORCH_NO_CUDA_MEMORY_CACHING"
HEAD = ("network", "inputs", "what", "ms", "requests")
FORM = "{:8} {:>6} {:30} {:>9} {:>9}"


def measure() -> None:
    """Print network, inputs, what ran, milliseconds and requests to the allocator, line by line."""
    print(FORM.format(*HEAD), flush=True)
    for name in KINDS:
        plain, size = plain_network(name)
        plain.cuda().eval().requires_grad_(False)
        model = masked_network(plain, {"scope": "pass"})
        for B in INPUTS:
            x = torch.randn(B, *size, device="cuda")
            with precision("tf32"):
                for what, call in calls(plain, model, x).items():
                    times = harness.measure(call, "cuda", SECONDS).times
                    median = f"{harness.quantile(times, 0.5):.4f}"
                    print(FORM.format(name, B, what, median, requests(call)), flush=True)


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
    """Both processes, a table of each."""
    if not torch.cuda.is_available():
        raise SystemExit("the allocator is that of a GPU: there is none on this machine")
    warnings.simplefilter("ignore")
    if os.environ.get(SWITCH) == "1":
        measure()
        return
    print("with torch's caching allocator", flush=True)
    measure()
    print(f"without ({SWITCH}=1): requests are not counted", flush=True)
    again = [sys.executable, "-m", "benchmarks.engine_allocator"]
    done = subprocess.run(again, env={**os.environ, SWITCH: "1"}, check=False)
    if done.returncode:
        raise SystemExit(f"without the caching allocator: exit status {done.returncode}")


if __name__ == "__main__":
    main()
