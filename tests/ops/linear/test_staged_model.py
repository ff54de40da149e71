"""Every form of the staged forward sums in the same order, in a model of its memory."""

import pytest
import torch
from harness import Shape, assert_bitwise_equal, make_case, shape_id

pytest.importorskip("triton", reason="the interpreter is Triton's")
import staged_model

pytestmark = pytest.mark.interpreter

MOST_BYTES = 48 << 10
"""Of shared memory that a program may declare."""

FORMS = [
    {"rows": 1, "quads": 4},
    {"rows": 2, "quads": 2},
    {"rows": 1, "quads": 2, "warps": 4},
    {"rows": 1, "quads": 4, "warps": 4},
    {"rows": 1, "quads": 1, "warps": 8},
    {"rows": 1, "quads": 2, "warps": 16},
    {"rows": 1, "quads": 1, "warps": 8, "lanes": 16},
    {"rows": 1, "quads": 1, "warps": 4, "lanes": 8},
    {"rows": 1, "quads": 1, "warps": 1, "lanes": 8},
    {"rows": 1, "quads": 1, "lanes": 1},
]
FEW = Shape(2, 3, 1, 10, 548)
"""Sixteen ranges, of which three are longer; as few outputs as classes."""

TAILS = Shape(1, 35, 1, 40, 52)
"""A second program along rows and outputs, both with a tail, as have the inputs."""

SHAPES = [
    *((shape, torch.float32) for shape in (FEW, Shape(1, 5, 1, 33, 36))),
    *(
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in ((FEW, torch.float16), (TAILS, torch.float16), (TAILS, torch.float32))
    ),
]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES, ids=shape_id)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_staged_sums_are_in_order(form, dtype, shape, monkeypatch):
    """Real inputs: another order of sums would round otherwise."""
    from bayes_dc.ops._launch import RowConfig

    case = make_case(shape, dtype=dtype)
    memory = staged_model.install(monkeypatch, case.x, case.w)
    monkeypatch.setattr("harness.moved", lambda t, device: t)
    got = case.run("interpreter", only="y", config=RowConfig(**form))["y"]
    assert memory.most <= MOST_BYTES
    assert_bitwise_equal(got, staged_model.in_order(case), "y")


def test_a_row_of_few_outputs_comes_in_turns(monkeypatch):
    """Of sixteen outputs half as many inputs fit at a time; three ranges take another turn."""
    from bayes_dc.ops._launch import RowConfig

    case = make_case(Shape(1, 2, 1, 16, 548))
    memory = staged_model.install(monkeypatch, case.x, case.w)
    monkeypatch.setattr("harness.moved", lambda t, device: t)
    config = RowConfig(rows=1, lanes=1)
    got = case.run("interpreter", only="y", config=config)["y"]
    assert memory.most <= MOST_BYTES
    assert_bitwise_equal(got, staged_model.in_order(case), "y")


@pytest.mark.parametrize("K", [36, 100])
def test_plain_sums_are_in_the_same_order(K):
    case = make_case(Shape(1, 5, 1, 10, K))
    assert_bitwise_equal(case.run("interpreter", only="y")["y"], staged_model.in_order(case), "y")
