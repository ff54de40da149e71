"""The wheel: what it holds, and that it works from a folder of its own, far from the repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "bayes_dc"
BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the working tree, built without the network in a copy of it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("bayes_dc", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    built = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(built)],
        capture_output=True,
        text=True,
        check=False,
        cwd=source,
    )
    assert done.returncode == 0, done.stderr
    return built / done.stdout.splitlines()[-1]


def test_the_wheel_holds_every_module_and_what_they_read(wheel):
    """Also the marker of typed packages; nothing else of the repository."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [entries] = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entries).decode()
    held = {name for name in names if ".dist-info/" not in name}
    sources = {str(path.relative_to(REPOSITORY)) for path in PACKAGE.rglob("*.py")}
    scripts = {f"bayes_dc/commands/{p.name}" for p in (REPOSITORY / "scripts").glob("*.py")}
    data = {
        str(path.relative_to(REPOSITORY))
        for path in PACKAGE.rglob("*")
        if path.suffix in (".yaml", ".json", ".html", ".css", ".js", ".typed")
        or path.name == "SPEC.md"
    }
    assert {"bayes_dc/py.typed", "bayes_dc/ops/_tuned/nvidia-h200.yaml"} <= data
    assert held == sources | scripts | data
    assert len(re.findall(r"^bayes-dc-\w+ = bayes_dc\.commands\.\w+:main$", commands, re.M)) == 4


CONFIG = """
output_dir: runs/digits
model: {name: mlp, hidden: [64], p: 0.25}
data: {name: digits, validation_fraction: 0.1}
train: {epochs: 4, batch_size: 64, optimizer: {name: adam, lr: 2e-3}}
"""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that holds the installed wheel, and a function that runs there, far from here."""
    target, home = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("home")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True)

    def run(*command):
        done = subprocess.run(
            [*command],
            capture_output=True,
            text=True,
            check=False,
            cwd=home,
            env=os.environ | {"PYTHONPATH": str(target), "MPLBACKEND": "Agg"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return target, home, run


@pytest.mark.slow
def test_the_demo_runs_from_the_installed_wheel(installed):
    """Train, calibrate, predict twice, compare: the commands, with nothing of the repository."""
    target, home, run = installed
    where = run(sys.executable, "-c", "import bayes_dc; print(bayes_dc.__file__)")
    assert Path(where.strip()).is_relative_to(target)
    (home / "digits.yaml").write_text(CONFIG, encoding="utf-8")
    assert "test error" in run(target / "bin" / "bayes-dc-train", "digits.yaml")
    network = ("--checkpoint", "runs/digits")
    target_coverage = ("--target-coverage", "0.8", "--temperature", "none")
    run(target / "bin" / "bayes-dc-calibrate", *network, *target_coverage)
    for seed in "12":
        options = ("--passes", "10", "--seed", seed, "--out", f"report{seed}")
        run(target / "bin" / "bayes-dc-predict", *network, *options)
    reports = [f"report{seed}/report.json" for seed in "12"]
    assert "Accuracy" in run(target / "bin" / "bayes-dc-compare", *reports)
    assert (home / "report1" / "report.html").is_file()


@pytest.mark.slow
def test_a_type_checker_reads_the_types_of_the_installed_wheel(installed):
    """The typed program of a user, with no setting but strictness and no source of ours near."""
    _, home, run = installed
    program = shutil.copy(REPOSITORY / "tests" / "typed" / "user_program.py", home)
    assert "Success" in run(sys.executable, "-m", "mypy", "--strict", program)
