"""Times, quantiles, memory, gates and records."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks import gates, harness, records
from benchmarks.cases import Case, Sizes, measure_all, precision
from benchmarks.records import Row

WHERE = {
    "device": "a processor",
    "driver": "2 threads",
    "torch": "2",
    "kernels": "numba 0",
    "commit": "abc",
    "date": "2026-01-01",
}


def case(name, limit, call=lambda: None, work=10**6, **options):
    return Case("rows", "fwd", name, Sizes(1, 2, 3, 1), "float32", call, work, limit, **options)


def test_measuring_takes_at_least_three_times_and_sorts_them():
    calls = []
    found = harness.measure(lambda: calls.append(torch.ones(8).sum()), "cpu", budget_s=0)
    assert len(found.times) == 3
    assert found.times == sorted(found.times)
    assert len(calls) >= 5  # compile, memory, and the timed ones


def test_measuring_stays_near_its_budget():
    found = harness.measure(lambda: torch.ones(1), "cpu", budget_s=10.0)
    assert len(found.times) == harness.MOST_RUNS


@pytest.mark.parametrize(("q", "expected"), [(0.2, 2.0), (0.5, 3.5), (0.8, 5.0)])
def test_quantiles_interpolate(q, expected):
    assert harness.quantile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], q) == pytest.approx(expected)


def test_a_quantile_of_one_time_is_that_time():
    assert harness.quantile([4.0], 0.2) == 4.0


def test_peak_counts_what_lives_at_once():
    def call():
        a = torch.empty(1 << 18)  # 1 MiB
        b = torch.empty(2 << 18)  # 2 MiB beside it
        del a, b
        return torch.empty(1 << 18)

    assert harness.peak_mib(call, "cpu") == pytest.approx(3.0)


@pytest.mark.parametrize("error", [2.0, float("nan"), float("inf")])
def test_a_gate_refuses(error):
    with pytest.raises(SystemExit, match=r"not timed: the sum is off by .* \(bound 1\)"):
        harness.gate(error, 1.0, "the sum")


def test_limits_are_numbers_or_names():
    """Half of a named implementation's rate of the same operation, and a share of a number."""
    cases = [case("dense", "dense"), case("ours", "dense", work=10**6 // 2), case("x", "missing")]
    dense, ours, other = measure_all(iter(cases), "cpu", WHERE, budget_s=0)
    assert dense.percent_of_limit == pytest.approx(100, abs=0.1)
    rates = ours.giga_madds_per_s / dense.giga_madds_per_s
    assert ours.percent_of_limit == pytest.approx(100 * rates, rel=0.01, abs=0.1)
    assert math.isnan(other.percent_of_limit)
    (number,) = measure_all(iter([case("ours", 1e15)]), "cpu", WHERE, budget_s=0)
    assert number.percent_of_limit == pytest.approx(1e-4 * number.giga_madds_per_s, abs=0.1)


def broken():
    raise ValueError("out of something\nand more")


def test_a_case_that_fails_is_named_and_the_others_go_on():
    missing = []
    cases = [case("good", 1.0), case("bad", 1.0, broken), case("last", 1.0)]
    rows = measure_all(iter(cases), "cpu", WHERE, budget_s=0, missing=missing)
    assert [row.implementation for row in rows] == ["good", "last"]
    assert missing == ["rows fwd bad 1×2×3×1 float32: ValueError: out of something"]
    with pytest.raises(ValueError, match="out of something"):
        measure_all(iter(cases), "cpu", WHERE, budget_s=0)


def test_cases_that_cannot_be_made_are_named():
    def cases():
        yield case("good", 1.0)
        broken()

    missing = []
    assert len(measure_all(cases(), "cpu", WHERE, budget_s=0, missing=missing)) == 1
    assert missing == ["after rows fwd good float32: ValueError: out of something"]
    with pytest.raises(ValueError, match="out of something"):
        measure_all(cases(), "cpu", WHERE, budget_s=0)


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before

    def fail():
        with precision("tf32"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_float32_matmul_precision() == before


def row(**changes):
    (made,) = measure_all(iter([case("ours", 1e15)]), "cpu", WHERE, budget_s=0)
    return replace(made, **changes)


def test_rows_survive_the_file(tmp_path):
    rows = [row(), row(implementation="a, b", percent_of_limit=12.5, op="dx")]
    path = records.append(rows[:1], tmp_path)
    assert records.append(rows[1:], tmp_path) == path == tmp_path / "cpu.csv"
    found = records.read(path)
    assert found[1] == rows[1]
    assert [type(getattr(found[0], name)) for name in ("M", "p", "dtype")] == [int, float, str]


def test_a_gpu_has_a_file_of_its_own(tmp_path):
    gpu = row(device="NVIDIA H200", kernels="triton 3.6.0")
    assert records.append([gpu], tmp_path).name == "nvidia-h200.csv"


def test_other_columns_are_refused(tmp_path):
    (tmp_path / "cpu.csv").write_text("op,implementation\n", encoding="utf-8")
    message = r"(?s)cpu\.csv has the columns \['op', 'implementation'\]; .* Rename the file"
    with pytest.raises(SystemExit, match=message.replace(" Rename", r"\s+Rename")):
        records.append([row()], tmp_path)
    with pytest.raises(SystemExit, match="this program writes"):
        records.read(tmp_path / "cpu.csv")


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*.csv")), ids=lambda path: path.name)
def test_recorded_results_are_readable(path):
    rows = records.read(path)
    assert rows
    assert all(isinstance(r, Row) and records.file_of(r).name == path.name for r in rows)


def test_gates_tell_right_from_wrong():
    """Exact gates see one integer; the moments' bound passes the right and not the biased."""
    gates.linear_is_exact("cpu", "float32", 1, 0.25)
    one = torch.ones(2, dtype=torch.float64)
    with pytest.raises(SystemExit, match="broken: dx is off by 1"):
        gates.compare("broken", (one, one + 1, one), (one, one, one))

    def biased(x, w):
        return x @ w.t() + 1

    with pytest.raises(SystemExit, match="biased: mean, in standard errors"):
        gates.moments_are_right(biased, "cpu", "biased")

    def still(x, w):
        return x @ w.t()

    with pytest.raises(SystemExit, match="still: variance, in standard errors"):
        gates.moments_are_right(still, "cpu", "still")


def test_the_bound_of_many_comparisons_is_wider():
    assert gates.z_bound(1) == pytest.approx(4.89, abs=0.01)
    assert gates.z_bound(1000) > gates.z_bound(1)
