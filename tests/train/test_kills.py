import json
import subprocess
import sys
from pathlib import Path

import torch

from bayes_dc.train import load_checkpoint

PROCESSES = Path(__file__).parent / "kill_processes.py"
KILLS = 50


def train(folder, kills, number):
    command = [sys.executable, str(PROCESSES), str(folder), str(kills), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_killed_at_random_instants_a_run_is_the_uninterrupted_one(tmp_path):
    killed, writing, epochs = train(tmp_path / "killed", KILLS, 0)
    assert killed == KILLS
    assert epochs > KILLS // 2  # it got on between the kills
    assert writing > 0  # some came between the first and the last write of a checkpoint
    (tmp_path / "other").mkdir()
    assert train(tmp_path / "other/straight", 0, epochs) == [0, 0, epochs]
    for place in ("last", "best"):
        (meta, weights), (expected_meta, expected) = (
            load_checkpoint(tmp_path / name / place) for name in ("killed", "other/straight")
        )
        assert meta.epoch == expected_meta.epoch
        for name, value in expected.items():
            assert torch.equal(weights[name], value)
    rows, expected_rows = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("killed", "other/straight")
    )
    timing = {"seconds", "samples_per_second"}
    for row, expected_row in zip(rows, expected_rows, strict=True):
        assert {k: v for k, v in row.items() if k not in timing} == {
            k: v for k, v in expected_row.items() if k not in timing
        }
