"""scripts/scaling.py with two small ranks on the CPU."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "--model", "lenet5", "--inputs", "6", "--passes", "2", "--repeats", "1"]


def run(*arguments):
    command = [sys.executable, str(ROOT / "scripts/scaling.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_two_ranks_are_measured():
    done = run(*SMALL, "--ranks", "2")
    assert done.returncode == 0, done.stderr
    title, header, row = done.stdout.splitlines()
    assert title == "lenet5, 6 inputs, T = 2"
    assert header.split() == ["ranks", "passes/s", "speed-up", "efficiency"]
    count, rate, gain, efficiency = row.split()
    assert (count, gain, efficiency) == ("2", "2.00", "100%")  # the first row is the measure
    assert float(rate) > 0


def test_wrong_numbers_are_refused():
    done = run("--ranks", "0")
    assert done.returncode == 2
    assert "--ranks: must be a whole number of at least 1" in done.stderr
