"""On a GPU: every dtype, NaN that stays with its input, load, deterministic algorithms."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from limit_cases import (
    DTYPES,
    K,
    T,
    assert_same,
    assert_sound,
    every_layer,
    folded,
    inputs,
    network,
)

from bayes_dc import MonteCarloEngine
from bayes_dc.mc.statistics import Summary

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
SETTINGS = {"PYTHONPATH": str(HERE.parents[1]), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def planned(model, capacity, **options):
    example = torch.zeros(1, K, dtype=next(model.parameters()).dtype, device="cuda")
    return MonteCarloEngine(model, example, T, capacity=capacity, mode="workspace", **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sound_in_every_dtype(dtype):
    model, x = network(dtype).cuda(), inputs(5, dtype).cuda()
    exact = folded(network(dtype).double().cuda(), x.double()).samples
    errors = []
    for got in (folded(model, x), planned(model, 5)(x, return_samples=True)):
        assert_sound(got)
        errors.append((got.samples - exact).abs().max().item())
    assert errors[1] <= 2 * errors[0] + 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("make", [network, every_layer])
def test_nan_stays_with_its_input(make):
    model, x = make().cuda().eval(), inputs(7).cuda()
    bad = x.clone()
    bad[3] = torch.nan
    others = [0, 1, 2, 4, 5, 6]
    engine = planned(model, 7)
    want, got = engine(x), engine(bad)
    for name in Summary._fields:
        assert torch.equal(getattr(got, name)[others], getattr(want, name)[others]), name
        assert getattr(got, name)[3].isnan().all(), name
    assert_same(engine(x), want)


def test_many_calls_of_varying_length_keep_memory_flat():
    model, x = network().cuda(), inputs(61).cuda()
    engine = planned(model, 61)
    want = engine(x, return_samples=True)
    looks = []
    for _ in range(3):
        for i in range(124):
            b = i * 37 % 62
            assert_same(engine(x[:b], return_samples=b % 5 == 0), want, slice(0, b))
        gc.collect()
        torch.cuda.synchronize()
        looks.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert looks[2] == looks[1]


def test_eight_threads_share_an_engine_and_engines_share_a_gpu():
    x = inputs(8).cuda()
    model = network().cuda()
    engines = [planned(model, 8), planned(model, 8, rows=24), planned(network(p=0.25).cuda(), 8)]
    jobs = [(e, b, b % 3) for _ in range(5) for b in range(1, 9) for e in range(3)]

    def work(job):
        e, b, seed = job
        return engines[e](x[:b], seed=seed)

    want = {job: work(job) for job in set(jobs)}
    with ThreadPoolExecutor(8) as pool:
        for job, got in zip(jobs, pool.map(work, jobs), strict=True):
            assert_same(got, want[job])


_DETERMINISTIC = """
import torch
torch.use_deterministic_algorithms(True)
from limit_cases import every_layer, inputs, network
from test_limits_cuda import planned
from bits_child import trained
from bayes_dc import metrics, predict_with_uncertainty
x = inputs(5).cuda()
for make in (network, every_layer):
    model = make().cuda()
    got = [planned(model, 5)(x), predict_with_uncertainty(model, x, 7, engine="folded")]
    again = [planned(model, 5)(x), predict_with_uncertainty(model, x, 7, engine="folded")]
    for one, other in zip(got, again):
        assert torch.equal(one.mean, other.mean) and one.mean.isfinite().all()
        assert torch.equal(one.entropy_se, other.entropy_se)
    steps = []
    for _ in range(2):
        model = make().cuda().train()
        x11, y = inputs(11).cuda(), torch.arange(11).cuda() % 5
        torch.manual_seed(3)
        torch.nn.functional.cross_entropy(model(x11), y).backward()
        steps.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*steps))
labels = torch.arange(5).cuda() % 5
metrics.ece(got[0].mean, labels), metrics.nll(got[0].mean, labels)
metrics.aurc(got[0].entropy, got[0].predicted != labels)
print("the same")
"""


def test_deterministic_algorithms_only():
    """In a process of its own, as cuBLAS reads its part of this from the environment."""
    done = subprocess.run(
        [sys.executable, "-c", _DETERMINISTIC],
        cwd=HERE,
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "the same"
