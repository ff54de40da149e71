"""Every argument of the operator drawn by hypothesis; integers, so results are exact."""

import pytest
from conv_harness import BACKENDS, Case, assert_same, cases
from hypothesis import HealthCheck, given, settings


def check(case: Case, backend: str) -> None:
    assert_same(case.run(backend), case.expected())


@given(case=cases(channels=40))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_case_is_exact(case):
    check(case, "cpu")


@pytest.mark.slow
@given(case=cases(channels=150, pixels=20))
@settings(max_examples=2000, deadline=None)
def test_very_many_cases_are_exact(case):
    check(case, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS[1:])
@given(case=cases(channels=40))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_many_cases_are_exact_in_triton(backend, case):
    check(case, backend)
