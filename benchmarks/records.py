"""One line of the table: its columns, where it was measured, the CSV files, the printed form."""

import csv
import datetime
import math
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, get_type_hints

import torch

RESULTS = Path(__file__).parent / "results"

_HEADER = """\
{path} has the columns {found}; this program writes {expected}.
Rename the file, or add the missing columns to its old rows."""

_LIMITS = {
    "rows": "a mask for every row; limit: {rows}",
    "small": "a mask for every row, small batches; limit: {rows}",
    "shared": "R rows share a mask; limit: the product without masks",
    "gaussian": "moment-matched draws; limit: the product without masks",
    "predict": "a network 784-1024-1024-10, M = T·B; limit: the same rows without masks",
    "memory": "forward and backward of a large layer; limit: {rows}",
    "conv": "a mask for every image, M = B · positions; limit: the convolution without masks",
    "engine": "a prediction in planned memory, M = T·B; limit: the same rows without masks",
    "train": "a step of training, M images, K multiply-adds each forward; limit: the plain network",
}
_ROWS_LIMIT = {
    "cuda": "1.5 instructions for each multiply-add",
    "cpu": "the product without masks",
}


@dataclass(frozen=True)
class Row:
    """One line of the table and of the CSV file; M counts all rows, R those that share a mask."""

    group: str
    op: str
    implementation: str
    M: int
    N: int
    K: int
    R: int
    p: float
    dtype: str
    timing: str
    ms_p20: float
    ms_p50: float
    ms_p80: float
    giga_madds_per_s: float
    percent_of_limit: float
    peak_mib: float
    device: str
    driver: str
    torch: str
    kernels: str
    commit: str
    date: str

    @property
    def shape(self) -> tuple[object, ...]:
        """What two implementations must have in common to be compared.

        Predictions are compared whatever their masks share.
        """
        shared = 0 if self.group in ("predict", "engine") else self.R
        return self.group, self.M, self.N, self.K, shared, self.dtype, self.timing


COLUMNS = [field.name for field in fields(Row)]


def environment(device: str) -> dict[str, Any]:
    """Columns that say where and when."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    if device == "cuda":
        import triton

        kernels, driver = f"triton {triton.__version__}", _driver()
    else:
        import numba

        kernels = f"numba {numba.__version__}"
        driver = f"{torch.get_num_threads()} threads"
    return {
        "device": name,
        "driver": driver,
        "torch": torch.__version__,
        "kernels": kernels,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def file_of(row: Row, folder: Path = RESULTS) -> Path:
    """The CSV file of a row's device."""
    on_cpu = row.kernels.startswith("numba")
    return folder / f"{'cpu' if on_cpu else row.device.lower().replace(' ', '-')}.csv"


def check_folder(folder: Path) -> None:
    """Make a folder of CSV files, or see that those in it have the columns of today."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file), [])
        if found != COLUMNS:
            raise SystemExit(_HEADER.format(path=path, found=found, expected=COLUMNS))


def append(rows: list[Row], folder: Path = RESULTS) -> Path:
    """Add rows to their device's CSV file."""
    path = file_of(rows[0], folder)
    new = not path.exists()
    check_folder(folder)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return path


def read(path: Path) -> list[Row]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            found = reader.fieldnames
            raise SystemExit(_HEADER.format(path=path, found=found, expected=COLUMNS))
        types = get_type_hints(Row)
        return [Row(**{name: types[name](line[name]) for name in COLUMNS}) for line in reader]


def table(rows: Iterable[Row], device: str) -> str:
    """The rows as text, one block for each group."""
    lines: list[str] = []
    for group, members in groupby(rows, key=lambda row: row.group):
        limit = _LIMITS[group].format(rows=_ROWS_LIMIT[device])
        lines += ["", f"{group}: {limit}", _HEAD]
        lines += [line(row) for row in members]
    return "\n".join(lines[1:])


_HEAD = (
    f"{'op':8} {'implementation':32} {'M×N×K':>18} {'R':>5} {'p':>5} {'dtype':>9} "
    f"{'ms p20':>9} {'p50':>9} {'p80':>9} {'10⁹ madd/s':>11} {'limit':>6} {'MiB':>9}"
)


def line(r: Row) -> str:
    """A line of the table."""
    name = f"{r.implementation}{' (graph)' if r.timing == 'graph' else ''}"
    return (
        f"{r.op:8} {name:32} {f'{r.M}×{r.N}×{r.K}':>18} {r.R:5} {r.p:5.2f} {r.dtype:>9} "
        f"{r.ms_p20:9.4f} {r.ms_p50:9.4f} {r.ms_p80:9.4f} {r.giga_madds_per_s:11.2f} "
        f"{_percent(r.percent_of_limit):>6} {r.peak_mib:9.1f}"
    )


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}%"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def first_line(*command: str) -> str:
    """What a command prints, or "unknown" where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return next(iter(done.stdout.strip().splitlines()), "unknown")


def _driver() -> str:
    return first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str:
    return first_line("git", "rev-parse", "--short", "HEAD")
