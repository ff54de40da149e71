import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayes_dc.models import resnet20
from bayes_dc.train import TrainingError, joined_ranks
from bayes_dc.train.ranks import Ranks, synchronise_batch_norm

PROCESSES = Path(__file__).parent / "rank_processes.py"
ROOT = Path(__file__).parents[2]


def run_ranks(folder, task, *worlds):
    command = [sys.executable, str(PROCESSES), str(folder), task, *map(str, worlds)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same run by 1, 2, 3 and 4 ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    output = run_ranks(folder, "train", 1, 2, 3, 4)
    assert output.splitlines() == ["1 [0]", "2 [0, 0]", "3 [0, 0, 0]", "4 [0, 0, 0, 0]"]
    return folder


def metrics_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = ("epoch", "step", "train_loss", "train_accuracy", "validation_loss", "lr")
    return [[json.loads(line)[name] for name in kept] for line in lines]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_number_of_ranks_changes_rounding_only(trained, world):
    alone = torch.load(trained / "1-rank0.pt", weights_only=True)
    for rank in range(world):
        weights = torch.load(trained / f"{world}-rank{rank}.pt", weights_only=True)
        for name, value in alone.items():
            torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-5)
    for row, expected in zip(
        metrics_of(trained / str(world)), metrics_of(trained / "1"), strict=True
    ):
        assert row == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_end_with_the_same_weights(trained, world):
    first = torch.load(trained / f"{world}-rank0.pt", weights_only=True)
    for rank in range(1, world):
        for name, value in torch.load(
            trained / f"{world}-rank{rank}.pt", weights_only=True
        ).items():
            assert torch.equal(value, first[name])


def test_ranks_resume(trained, tmp_path):
    for task in ("begin", "resume"):
        assert run_ranks(tmp_path, task, 3).splitlines() == ["3 [0, 0, 0]"]
    straight, resumed = (
        torch.load(f / "3-rank0.pt", weights_only=True) for f in (trained, tmp_path)
    )
    for name, value in straight.items():
        assert torch.equal(value, resumed[name])
    assert metrics_of(tmp_path / "3") == metrics_of(trained / "3")


def test_ranks_start_with_the_weights_of_rank_0(tmp_path):
    assert run_ranks(tmp_path, "share", 2).splitlines() == ["2 [0, 0]"]
    first, second = (
        torch.load(tmp_path / f"2-rank{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    for name, value in first.items():
        assert torch.equal(value, second[name])


def test_a_dead_rank_ends_the_run(tmp_path):
    *lines, codes = run_ranks(tmp_path, "die", 3).splitlines()
    said = [line for line in lines if line.startswith("rank ")]
    assert codes == f"3 [{2 << 8}, 9, {2 << 8}]"
    for rank, line in zip((0, 2), sorted(said), strict=True):
        assert line.startswith(f"rank {rank}: rank {rank} of 3 lost contact to the others; ")
        assert "ranks that no longer answer: 1 (" in line
        assert "--resume" in line


def test_torchrun_trains_with_the_script(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", "0", "--rdzv_endpoint", "localhost:0", "--rdzv_backend", "c10d"]
    command += ["scripts/train.py", "configs/digits_mlp.yaml", "--device", "cpu"]
    for change in (f"output_dir={tmp_path / 'run'}", "train.epochs=1", "model.hidden=[16]"):
        command += ["--set", change]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test error") == 1
    assert (tmp_path / "run/last").is_dir()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 23])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parts_cover_a_range_once(n, size):
    parts = [Ranks(rank, size).part(7, 7 + n) for rank in range(size)]
    assert [i for a, b in parts for i in range(a, b)] == list(range(7, 7 + n))
    lengths = [b - a for a, b in parts]
    assert max(lengths) - min(lengths) <= 1


def test_an_incomplete_environment_is_named(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("RANK", "LOCAL_", "MASTER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORLD_SIZE", "2")
    wanted = r"RANK, .*MASTER_PORT not: start .* torchrun"
    with pytest.raises(TrainingError, match=wanted), joined_ranks("cpu", 1):
        pass


def test_batch_norm_on_a_cpu_takes_one_rank():
    model = resnet20((3, 8, 8), 10)
    cpu = torch.device("cpu")
    assert synchronise_batch_norm(model, Ranks(), cpu, 1) is model
    with pytest.raises(TrainingError, match=r"batch normalisation, .* one rank on a CPU"):
        synchronise_batch_norm(model, Ranks(0, 2), cpu, 8)


def test_batch_norm_needs_a_sample_for_every_rank():
    with pytest.raises(TrainingError, match=r"batch of 1 samples, fewer than the 2 ranks"):
        synchronise_batch_norm(resnet20((3, 8, 8), 10), Ranks(0, 2), torch.device("cuda"), 1)
