"""Prediction shared by several ranks: the report of one, each input once."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = Path(__file__).parent / "predict_ranks.py"


def run_ranks(world, checkpoint, out, *arguments, dead="-"):
    command = [sys.executable, str(PROCESSES), str(world), dead, "--checkpoint", str(checkpoint)]
    command += ["--out", str(out), "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="module")
def alone(checkpoint, tmp_path_factory):
    """40 inputs in batches of 16 by one process."""
    folder = tmp_path_factory.mktemp("ranks") / "alone"
    assert run_ranks(1, checkpoint, folder, "--limit", "40")[0][-1] == "[0]"
    return folder


@pytest.mark.parametrize("world", [2, 4])  # of 3 batches, the fourth rank has none
def test_ranks_write_the_report_of_one(alone, checkpoint, tmp_path, world):
    said, _ = run_ranks(world, checkpoint, tmp_path / "out", "--limit", "40")
    assert said[-1] == str([0] * world)
    assert len(said) == 3  # one rank speaks: headline, place, and the codes
    first, second = (folder / "predictions.csv" for folder in (alone, tmp_path / "out"))
    assert first.read_bytes() == second.read_bytes()
    one, many = (json.loads((f / "report.json").read_text()) for f in (alone, tmp_path / "out"))
    for name in ("n", "metrics", "run", "convergence", "data"):
        assert one.get(name) == many.get(name)


def test_a_dead_rank_leaves_no_report(checkpoint, tmp_path):
    said, errors = run_ranks(2, checkpoint, tmp_path / "out", "--limit", "40", dead="1")
    assert said[-1] == f"[{2 << 8}, 9]"
    assert re.search(r"error: rank 0 of 2 lost contact .* no longer answer: 1 ", errors)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
