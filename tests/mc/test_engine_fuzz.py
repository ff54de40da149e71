"""Random models through the engine: as the folded path computes them, or refused by name.

Every graph runs with full and partial batches, in several chunks and in one, twice each.
"""

import warnings

import pytest
import torch
from random_graphs import random_model

from bayes_dc import MonteCarloEngine, predict_with_uncertainty
from bayes_dc.mc.plan_errors import PlanError

T, CAPACITY = 6, 5
ALWAYS, ALL = 12, 360
FOUND = (214,)  # graphs that have found a fault
NOTHING_DRAWN = "no layer with masks"


def samples_of(number, x):
    """Probabilities of every pass in the dtype of x, one pass at a time, without the engine."""
    model = random_model(number)[0].to(x.device, x.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = predict_with_uncertainty(model, x, T, return_samples=True, chunk=1, engine="folded")
    return found.samples


def planned(number, model, mixes, x, rows):
    """The engine of a graph, or None where it is refused and may be."""
    try:
        engine = MonteCarloEngine(model, x, T, rows=rows)
    except PlanError as error:
        if not mixes and NOTHING_DRAWN not in str(error):
            pytest.fail(f"graph {number}: {error}")
        return None
    assert not mixes, f"graph {number} mixes rows and was planned"
    return engine


def check(number, *, rows, device="cpu"):
    """Fail where the engine differs; False where it refuses."""
    model, shape, mixes = random_model(number)
    model, x = model.to(device), torch.randn(CAPACITY, *shape).to(device)
    engine = planned(number, model, mixes, x, rows)
    if engine is None:
        return False
    exact = samples_of(number, x.double())
    wrong = (samples_of(number, x) - exact).abs().max()
    # As good as torch's float32, or to a few roundings of a probability where that is luckier.
    allowed = 2 * wrong.item() + 16 * torch.finfo(torch.float32).eps
    for b in (CAPACITY, 2, 1):
        first = engine(x[:b], return_samples=True).samples
        again = engine(x[:b], return_samples=True).samples
        assert torch.equal(first, again), f"graph {number}, {b} inputs: differs when repeated"
        error = (first - exact[:, :b]).abs().max().item()
        assert error <= allowed, f"graph {number}, {b} inputs: {error} > {allowed}"
    return True


def rows_of(number):
    """Every other graph runs its full batch in two chunks, of 4 and 2 passes."""
    return CAPACITY * 4 if number % 2 else None


def test_random_graphs_are_computed_or_refused():
    computed = sum(check(number, rows=rows_of(number)) for number in (*range(ALWAYS), *FOUND))
    assert computed >= ALWAYS // 2


@pytest.mark.gpu
def test_random_graphs_on_a_gpu():
    for number in range(ALWAYS):
        check(number, rows=rows_of(number), device="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, 40))
def test_more_random_graphs(first):
    """Those of the other test in the other chunks, and many more."""
    for number in range(first, first + 40):
        check(number, rows=rows_of(number + 1))
