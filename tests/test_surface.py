"""What a user meets first: the names, how long an import takes, and the commands of the package."""

import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bayes_dc

ROOT = Path(bayes_dc.__file__).parent
REPOSITORY = ROOT.parent
LIMIT_MS = 50
RUNS = 5
NAMES = [
    "DropConnectConv2d",
    "DropConnectLinear",
    "MaskKey",
    "MonteCarloEngine",
    "Prediction",
    "convert",
    "datasets",
    "dropconnect_conv2d",
    "dropconnect_linear",
    "metrics",
    "models",
    "predict_with_uncertainty",
    "restore",
]
COMMANDS = {
    "bayes-dc-train": "train",
    "bayes-dc-predict": "mc_predict",
    "bayes-dc-calibrate": "calibrate",
    "bayes-dc-compare": "compare",
}


def test_the_public_names_are_these():
    """A name that comes or goes is a decision, not an accident."""
    assert bayes_dc.__all__ == NAMES
    assert [name for name in dir(bayes_dc) if not name.startswith("_")] == NAMES


def test_lazy_names_are_those_that_a_type_checker_sees():
    """The table for use at run time and the imports for type checkers say the same."""
    source = (ROOT / "__init__.py").read_text(encoding="utf-8")
    typed = re.search(r"if TYPE_CHECKING:\n((?:    .*\n)+)", source)[1]
    homes = {}
    for part, names in re.findall(r"from bayes_dc(?:\.(\w+))? import (.*)", typed):
        homes |= dict.fromkeys(names.split(", "), part)
    parts = {name for name, home in homes.items() if not home}
    assert parts <= bayes_dc._PARTS
    assert {n: h for n, h in homes.items() if h} == bayes_dc._HOMES
    assert sorted(homes) == NAMES
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders | {"config", "types"} == bayes_dc._PARTS


def test_a_wrong_name_is_told_the_right_ones():
    with pytest.raises(AttributeError) as error:
        bayes_dc.predict  # noqa: B018
    assert str(error.value) == (
        "module 'bayes_dc' has no attribute 'predict'. Its names are "
        f"{', '.join(NAMES)}; its sub-packages: acquire, config, mc, nn, ops, report, rng, train, "
        "types."
    )


@pytest.fixture(scope="module")
def import_times_ms():
    """Cumulative milliseconds of every module of a bare `import bayes_dc`, run by run."""
    runs = []
    for _ in range(RUNS):
        command = [sys.executable, "-X", "importtime", "-c", "import bayes_dc"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
        rows = re.findall(r"import time: +\d+ \| +(\d+) \|( +)(\S+)", done.stderr)
        runs.append({name: int(total) / 1000 for total, _, name in rows})
    return runs


def test_import_takes_less_than_50_ms_beyond_torch(import_times_ms):
    """The median, so that one run beside other work does not decide."""
    own = [run["bayes_dc"] - run.get("torch", 0) for run in import_times_ms]
    assert statistics.median(own) < LIMIT_MS


def test_import_loads_nothing_but_its_words(import_times_ms):
    ours = {name for name in import_times_ms[0] if name.split(".")[0] == "bayes_dc"}
    assert ours == {"bayes_dc", "bayes_dc.types"}
    heavy = {"torch", "numpy", "pydantic", "yaml", "PIL", "matplotlib", "triton", "numba"}
    assert not heavy & set(import_times_ms[0])


SIDE_EFFECTS = """
import os, sys, threading, warnings
warnings.simplefilter("error")

def state():
    return {
        "environment": dict(os.environ), "threads": threading.active_count(), "cwd": os.getcwd(),
        "descriptors": os.listdir("/proc/self/fd"), "filters": list(warnings.filters),
        "path": list(sys.path), "importers": list(sys.meta_path), "excepthook": sys.excepthook,
    }

started = ("os.mkdir", "os.remove", "os.rename", "os.system", "socket.connect", "subprocess.Popen")
events = []

def watch(event, args):
    written = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if written or event in started:
        events.append(f"{event} {args[0]}")

before = state()
sys.addaudithook(watch)
import bayes_dc
after = state()
print([name for name in before if before[name] != after[name]], events)
"""


def test_import_writes_nothing_starts_nothing_and_warns_of_nothing(tmp_path):
    """Files, processes, threads, environment, descriptors, hooks; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", SIDE_EFFECTS],  # -B: Python itself would keep its bytecode
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.stdout, done.stderr) == ("[] []\n", "")
    assert not list(tmp_path.iterdir())


def test_every_command_is_a_script_with_a_main():
    """They are the scripts of the repository, which the wheel holds as bayes_dc.commands."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {
        command: f"bayes_dc.commands.{name}:main" for command, name in COMMANDS.items()
    }
    for name in COMMANDS.values():
        script = (REPOSITORY / "scripts" / f"{name}.py").read_text(encoding="utf-8")
        assert "\ndef main(argv: Sequence[str] | None = None) -> int:\n" in script
