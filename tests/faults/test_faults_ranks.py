"""Faults that users of such tools have met: several ranks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROCESSES = Path(__file__).with_name("fault_ranks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks found: a function of the task, a pair; ``again`` for the second run."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(PROCESSES), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0, 0]"] * 2, done.stdout + done.stderr

    def load(task, *, again=False):
        return [
            torch.load(folder / "01"[again] / f"{task}-{rank}.pt", weights_only=True)
            for rank in range(2)
        ]

    return load


def test_ranks_with_one_seed_draw_different_masks(found):
    """source: huggingface/transformers#31412: the masks are the same on every GPU."""
    first, second = found("masks")
    for name, value in first["weights"].items():
        assert torch.equal(second["weights"][name], value)
    assert torch.equal(first["images"], second["images"])
    rows = torch.cat([first["hidden"], second["hidden"]])
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 8
    for a, b in zip((first, second), found("masks", again=True), strict=True):
        assert torch.equal(a["hidden"], b["hidden"])


def test_ranks_change_images_in_different_ways(found):
    """source: huggingface/transformers#37932: workers of the same number have the same seed."""
    first, second = found("images")
    seen = {image.numpy().tobytes() for rank in (first, second) for image in rank["images"]}
    assert len(seen) == 8
    for a, b in zip((first, second), found("images", again=True), strict=True):
        assert torch.equal(a["images"], b["images"])


def test_every_sample_counts_once(found):
    """source: pytorch/pytorch#25162: the ranks' samplers repeat samples: 0.667 in place of 0.8."""
    for score in found("scores"):
        assert (score["samples"], score["wrong"], score["accuracy"]) == (5, 1, 0.8)


def test_who_needs_a_folder_makes_it(found):
    """source: karpathy/nanochat#336: only rank 0 makes it, and others write before."""
    assert found("folders") == [{"epoch": 0, "trained": 1}] * 2


def test_what_was_saved_is_there_for_every_rank(found):
    """source: KempnerInstitute/KempnerForge#49: others go on before the file is complete."""
    for rank in found("slow"):
        assert rank["epoch"] == 1
        assert rank["seconds"] >= 1
