"""Processes: DataLoader workers by fork and spawn, and children forked while threads predict."""

import os
import signal
import threading
import warnings

import pytest
import torch
from limit_cases import T, assert_same, folded, inputs, network, planned
from load_workers import Predicted
from torch.utils.data import DataLoader

from bayes_dc import predict_with_uncertainty

ROWS = 12
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize(
    ("start", "workers"),
    [pytest.param("fork", 2, marks=forks), pytest.param("spawn", 1, marks=pytest.mark.slow)],
)
def test_workers_of_a_data_loader_use_the_kernels(start, workers):
    """Beside a parent that has used, and goes on using, threads of its own."""
    data = Predicted(ROWS)
    want = torch.stack([data[row] for row in range(ROWS)])
    whole = folded(data.model, data.x)
    loader = DataLoader(data, batch_size=5, num_workers=workers, multiprocessing_context=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python ≥ 3.12 warns of any such fork
        batches = []
        for batch in loader:
            batches.append(batch)
            assert_same(folded(data.model, data.x), whole)
    assert torch.equal(torch.cat(batches), want)
    assert torch.equal(want, whole.mean)


def in_a_child(check):
    """Fork; the child leaves with 0 if ``check()`` holds, and is killed where it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            torch.set_num_threads(1)  # as in a DataLoader's worker: OpenMP does not survive forks
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Held:
    """A function of no effect that keeps its first caller until it is let go."""

    def __init__(self):
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, *_):
        if not self.entered.is_set():
            self.entered.set()
            assert self.release.wait(60)


def equal(got, want):
    assert_same(got, want)
    return True


@forks
def test_a_child_forked_while_a_thread_is_within_an_engines_run():
    """The lock is held by nobody in the child, and half a run has left its ids and keys behind."""
    model, x = network(), inputs(6)
    engine = planned(model, 6, rows=12)
    want = engine(x[:1])  # one chunk; six inputs take several
    engine(x)
    held = Held()
    calls = engine._runner._prepared(6, False).calls
    calls.insert(len(calls) - 2, (held, (), {}))
    ids = torch.arange(6) + 100
    thread = threading.Thread(target=engine, args=(x,), kwargs={"seed": 3, "sample_ids": ids})
    thread.start()
    try:
        assert held.entered.wait(60)
        assert engine._runner.workspace.pass_ids[0] != 0  # within a later chunk
        assert in_a_child(lambda: equal(engine(x[:1]), want)) == 0
    finally:
        held.release.set()
        thread.join()
    assert_same(engine(x[:1]), want)


@forks
def test_a_child_forked_while_a_thread_predicts():
    """Another model is free; the layers of this one still read that run's masks, which is said."""
    model, other, x = network(), network(p=0.25), inputs(4)
    want = folded(other, x)
    held = Held()
    model[2].register_forward_hook(held)
    thread = threading.Thread(target=predict_with_uncertainty, args=(model, x, T))
    thread.start()

    def refused():
        with pytest.raises(RuntimeError, match="already draws its masks from other MaskKeys"):
            predict_with_uncertainty(model, x, T)
        return equal(folded(other, x), want)

    try:
        assert held.entered.wait(60)
        assert in_a_child(refused) == 0
    finally:
        held.release.set()
        thread.join()
