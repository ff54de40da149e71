"""Load: thousands of calls, many threads, several engines, training in between."""

import gc
import itertools
import resource
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from limit_cases import (
    C,
    T,
    assert_same,
    folded,
    inputs,
    network,
    planned,
)

from bayes_dc import predict_with_uncertainty
from bayes_dc.nn import MaskKeys

CAPACITY, PERIODS = 61, 4


def lengths(calls):
    """Batch lengths 0 … 61 in a mixed order; more than the engine keeps runs for."""
    return [i * 37 % (CAPACITY + 1) for i in range(calls)]


class Memory:
    """Memory at the end of equal periods: it may settle, but not grow in each of them."""

    def __init__(self):
        self.traced, self.objects, self.resident = [], [], []
        gc.collect()
        gc.freeze()  # what is there already need not be looked at again
        tracemalloc.start()

    def look(self):
        gc.collect()
        self.traced.append(tracemalloc.get_traced_memory()[0])
        self.objects.append(len(gc.get_objects()))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident.append(pages * resource.getpagesize())

    def check(self, calls):
        """In some period, Python grew by less than an object or an empty tensor for each call."""
        tracemalloc.stop()
        gc.unfreeze()
        assert least_growth(self.objects) < calls, self.objects
        assert least_growth(self.traced) < sys.getsizeof(torch.empty(0)) * calls, self.traced


def least_growth(values):
    return min(after - before for before, after in itertools.pairwise(values))


@pytest.mark.parametrize("calls", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_calls_of_varying_length(calls):
    """Every result is that of the first call, and memory is flat.

    The order of lengths repeats in every period, so that the engine holds the same at its end.
    """
    model, x = network(), inputs(CAPACITY)
    engine = planned(model, CAPACITY)
    want = engine(x, return_samples=True)
    arena = engine.memory_bytes()
    each = calls // PERIODS
    memory = Memory()
    for _ in range(PERIODS):
        for b in lengths(each):
            assert_same(engine(x[:b], return_samples=b % 5 == 0), want, slice(0, b))
        memory.look()
    memory.check(each)
    if calls >= 10_000:  # fewer would not fill a page
        assert least_growth(memory.resident) < 64 * each  # less than one small block of malloc each
    assert engine.memory_bytes() == arena


@pytest.mark.parametrize("path", ["folded", pytest.param("engine", marks=pytest.mark.slow)])
def test_many_predictions_leave_nothing(path):
    """The folded path, and an engine that predictions keep for a model."""
    model, x = network(), inputs(5)
    want = predict_with_uncertainty(model, x, T, engine=path)
    each, memory = 100, Memory()
    for period in range(PERIODS):
        for _ in range(each):
            assert_same(predict_with_uncertainty(model, x, T, engine=path), want)
        if period > 0:
            memory.look()
    memory.check(each)


def test_eight_threads_share_an_engine_and_its_model():
    """Engine calls, and predictions of the same model by both paths: one after another."""
    model, x = network(), inputs(8)
    engine = planned(model, 8, rows=24)  # several chunks of passes

    def job(number):
        b, seed = 1 + number % 8, number % 3
        if number % 4 == 3:
            path = ("folded", "engine")[number // 4 % 2]
            return predict_with_uncertainty(model, x[:b], T, seed=seed, engine=path)
        ids = torch.arange(b).flip(0) if number % 5 == 0 else None
        return engine(x[:b], seed=seed, sample_ids=ids, return_samples=number % 2 == 0)

    want = [job(number) for number in range(120)]
    start = threading.Barrier(8)

    def work(first):
        start.wait(60)
        return [(number, job(number)) for number in range(first, 120, 8)]

    with ThreadPoolExecutor(8) as pool:
        found = [pair for pairs in pool.map(work, range(8)) for pair in pairs]
    assert sorted(number for number, _ in found) == list(range(120))
    for number, got in found:
        assert_same(got, want[number])
    assert all(module.training for module in model.modules())


def test_several_engines_at_once():
    """Two of one model, one of another; their arenas, ids and results are their own."""
    first, second, x = network(), network(p=0.25), inputs(6)
    engines = [planned(first, 6), planned(first, 6, passes=3), planned(second, 6)]
    want = [[engine(x[:b], seed=b) for b in range(7)] for engine in engines]
    with ThreadPoolExecutor(6) as pool:
        jobs = [(e, b) for _ in range(5) for b in range(7) for e in range(3)]
        found = list(pool.map(lambda job: engines[job[0]](x[: job[1]], seed=job[1]), jobs))
    for (e, b), got in zip(jobs, found, strict=True):
        assert_same(got, want[e][b])


@pytest.mark.parametrize("seeded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_predictions_between_steps_change_no_training(seeded):
    """Nor do steps spoil predictions: those of a network that was only trained."""
    x, y = inputs(23), torch.arange(23) % C

    def train(predicting):
        model = network()
        torch.manual_seed(5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        engine, keys = planned(model, 6) if predicting else None, MaskKeys(1)
        for step in range(8):
            if seeded:
                with keys.attached(model):
                    keys.set(pass_ids=step, sample_ids=torch.arange(23))
                    logits = model(x)
            else:
                logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            if engine is not None:  # between backward and step
                assert engine(x[:6]).variance.any()
                folded(model, x[:5])
            optimizer.step()
        return model, engine

    alone, (model, engine) = train(False)[0], train(True)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model.training
    assert_same(engine(x[:6]), planned(alone, 6)(x[:6]))
    assert_same(folded(model, x), folded(alone, x))
