"""A run on the CPU allocates nothing: not through torch, and nothing large from the C library."""

import malloc_counter
import pytest
import torch
from engine_cases import convnet, inputs, network
from torch.profiler import ProfilerActivity, profile

from bayes_dc import MonteCarloEngine

T = 6
MODELS = {
    "row": lambda: network(scope="row"),
    "pass": lambda: network(scope="pass"),
    "gaussian": lambda: network(sampler="gaussian"),
    "dropout": lambda: network(dropout=0.25),
    "convolutions": convnet,
}


def allocated(call):
    """Bytes of every allocation through torch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    events = found.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_through_torch(kind):
    """The whole call, checks, input and results included, where ``out`` is given."""
    model = MODELS[kind]()
    x = inputs(model, 4)
    engine = MonteCarloEngine(model, x, T, rows=8)
    out = engine(x)
    assert allocated(lambda: engine(x, out=out)) == []
    out = engine(x[:3], return_samples=True)
    assert allocated(lambda: engine(x[:3], out=out, return_samples=True)) == []
    # Without `out`: the results, in one piece.
    assert allocated(lambda: engine(x)) == [8 * (3 * 4 * out.mean.shape[1] + 7 * 4)]


def test_the_measurement_sees_an_allocation():
    x = torch.ones(4, 12)
    assert 192 in allocated(lambda: x + 1)


PROGRAM = """
import torch
from bayes_dc import MonteCarloEngine
from engine_cases import convnet, inputs, network
report = {}
for name, model in {
    "row": network(dropout=0.25), "pass": network(scope="pass"),
    "gaussian": network(sampler="gaussian"), "convolutions": convnet(),
}.items():
    x = inputs(model, 64)
    engine = MonteCarloEngine(model, x, 20)
    out = engine(x)
    for _ in range(3):
        engine(x, out=out)
    report[name] = counted(lambda: engine(x, out=out), 10)
report["seen"] = counted(lambda: torch.empty(10_000).add_(1), 1)
"""


def test_nothing_large_from_the_c_library(tmp_path):
    """No malloc of 4 KiB or more, no aligned allocation and no mapping, in ten runs of each."""
    report = malloc_counter.count(malloc_counter.build(tmp_path), PROGRAM)
    seen = report.pop("seen")
    assert seen["malloc"] + seen["aligned"] > 0
    for name, found in report.items():
        assert found == {"malloc": 0, "aligned": 0, "mmap": 0, "largest": 0}, name
