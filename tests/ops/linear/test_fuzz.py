"""Shapes, types, strides and p drawn by hypothesis; integers, so results are exact."""

import pytest
import torch
from harness import BACKENDS, Case, Shape, assert_bitwise_equal, make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@st.composite
def cases(draw: st.DrawFn, largest: int) -> Case:
    """A case of at most ``largest`` outputs and inputs, its tensors laid out in some way."""
    shape = Shape(
        P=draw(st.integers(0, 3)),
        S=draw(st.integers(0, 5)),
        R=draw(st.integers(1, 3)),
        N=draw(st.integers(0, largest)),
        K=draw(st.integers(0, largest)),
    )
    p = draw(st.sampled_from([0.5, 0.25, 0.75, 0.3, 0.9]) | st.floats(0.002, 0.998))
    dtype = draw(st.sampled_from(DTYPES))
    case = make_case(
        shape, p, dtype, integers=True, bias=draw(st.booleans()), seed=draw(st.integers(0, 99))
    )
    case.x = draw(layouts(case.x))
    case.gy = draw(layouts(case.gy))
    case.w = draw(layouts(case.w))
    case.sample_ids = case.sample_ids + draw(st.integers(0, 2**33))
    case.pass_ids = case.pass_ids * draw(st.integers(1, 2**31))
    return case


def layouts(t: torch.Tensor) -> st.SearchStrategy[torch.Tensor]:
    """The same values contiguous, with room between neighbours, or with dimensions reversed."""
    room = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)[..., 1::2]
    order = tuple(reversed(range(t.ndim)))
    turned = t.permute(order).contiguous().permute(order)
    return st.sampled_from([t, room.copy_(t), turned])


def check(case: Case, backend: str) -> None:
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@given(case=cases(largest=70))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_case_is_exact(case):
    check(case, "cpu")


@pytest.mark.slow
@given(case=cases(largest=300))
@settings(max_examples=3000, deadline=None)
def test_very_many_cases_are_exact(case):
    check(case, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS[1:])
@given(case=cases(largest=40))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_many_cases_are_exact_in_triton(backend, case):
    check(case, backend)
