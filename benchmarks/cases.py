"""A case is a call to time, with its work and its limit; measuring it gives a row."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from benchmarks import harness
from benchmarks.records import Row

OURS, DENSE = "bayes_dc", "dense, no mask"
ALL = "fwd+bwd"
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Sizes(NamedTuple):
    """Rows in all, outputs, inputs, rows that share a mask."""

    M: int
    N: int
    K: int
    R: int


@dataclass(frozen=True)
class Case:
    """One line of the table before it is measured.

    ``limit`` is a number of multiply-adds per second, or the name of the implementation whose rate
    in the same operation, shape and dtype is the limit. ``work`` counts multiply-adds. ``held_mib``
    is memory that was allocated before and belongs to the call.
    """

    group: str
    op: str
    implementation: str
    sizes: Sizes
    dtype: str
    call: Callable[[], object]
    work: int
    limit: float | str
    p: float = 0.5
    timing: str = "events"
    held_mib: float = 0.0


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """float32 products by tf32 where ``dtype`` is "tf32", in full otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of the tensors."""
    return DTYPES[name]


def measure_all(
    cases: Iterator[Case],
    device: str,
    where: dict[str, Any],
    budget_s: float,
    *,
    report: Callable[[Row], None] = lambda row: None,
    missing: list[str] | None = None,
) -> list[Row]:
    """A row for each case, in order; each is forgotten before the next is made.

    A case that fails is added to ``missing``, and the others go on; None raises instead.
    """
    rows, limits, name = list[Row](), list[float | str](), "first case"
    while True:
        try:
            case = next(cases)
            name = f"after {case.group} {case.op} {case.implementation} {case.dtype}"
        except StopIteration:
            break
        except Exception as error:
            if missing is None:
                raise
            missing.append(f"{name}: {_brief(error)}")
            break
        try:
            with precision(case.dtype):
                measured = harness.measure(case.call, device, budget_s, case.timing)
        except Exception as error:
            if missing is None:
                raise
            sizes = "×".join(map(str, case.sizes))
            what = f"{case.group} {case.op} {case.implementation} {sizes} {case.dtype}"
            missing.append(f"{what}: {_brief(error)}")
            continue
        rows.append(_row(case, measured, device, where))
        limits.append(case.limit)
        del case
        report(rows[-1])
    return [_with_limit(row, limit, rows) for row, limit in zip(rows, limits, strict=True)]


def _brief(error: Exception) -> str:
    """Kind and first line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def _row(case: Case, measured: harness.Measured, device: str, where: dict[str, Any]) -> Row:
    p20, p50, p80 = (harness.quantile(measured.times, q) for q in (0.2, 0.5, 0.8))
    return Row(
        group=case.group,
        op=case.op,
        implementation=case.implementation,
        **case.sizes._asdict(),
        p=case.p,
        dtype=case.dtype,
        timing=case.timing if device == "cuda" else "clock",
        ms_p20=float(f"{p20:.5g}"),
        ms_p50=float(f"{p50:.5g}"),
        ms_p80=float(f"{p80:.5g}"),
        giga_madds_per_s=float(f"{case.work / p50 / 1e6:.5g}"),
        percent_of_limit=float("nan"),
        peak_mib=round(measured.peak_mib + case.held_mib, 1),
        **where,
    )


def _with_limit(row: Row, limit: float | str, rows: list[Row]) -> Row:
    """The row with its share of the limit; NaN where the limit was not measured."""
    if isinstance(limit, str):
        wanted = (row.shape, row.op, limit)
        same = [r for r in rows if (r.shape, r.op, r.implementation) == wanted]
        if not same:
            return row
        limit = 1e9 * same[0].giga_madds_per_s
    return replace(row, percent_of_limit=round(1e11 * row.giga_madds_per_s / limit, 1))
