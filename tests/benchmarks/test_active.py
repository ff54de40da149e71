"""Active learning: how a run goes on, what is counted, and what the table shows."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from bayes_dc.config import ConfigError, load_active_config
from bayes_dc.datasets import load_dataset
from benchmarks import active

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path):
    """Sixty small images of four classes that a line tells apart."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    pixels = rng.integers(0, 100, (80, 8, 8), dtype=np.uint8)
    pixels[np.arange(80), labels] += 150
    path = tmp_path / "images.npz"
    np.savez(path, x_train=pixels[:60], y_train=labels[:60], x_test=pixels[60:], y_test=labels[60:])
    return path


@pytest.fixture
def settings(images, tmp_path):
    """Return a function that gives a small configuration."""
    path = tmp_path / "active.yaml"
    path.write_text(
        f"output_dir: out\nmodel: {{name: mlp, hidden: [16], p: 0.5}}\n"
        f"data: {{name: npz, root: {images}}}\n"
        "train: {epochs: 20, batch_size: 8, device: cpu}\n"
        "acquire: {initial: 4, count: 3, budget: 12, candidates: 20, passes: 8, test_passes: 4,"
        " target: 1.0, configurations: 100}\n"
    )
    return lambda *changes: load_active_config(path, changes)


@pytest.mark.parametrize("method", ["batchbald", "bald", "entropy", "variation_ratio", "random"])
def test_a_run_goes_to_its_budget(settings, method):
    config = settings(f"acquire.method={method}", "acquire.target=1")
    data = load_dataset(config.data)
    curve = list(active.rounds(config, data, CPU))
    assert [labels for labels, _ in curve][:1] == [4]
    assert all(b - a == 3 for (a, _), (b, _) in pairwise(curve) if b < 12)
    assert curve[-1][0] == 12 or curve[-1][1] == 1
    assert curve == list(active.rounds(config, data, CPU))  # masks, order and choices are seeded


def test_a_run_ends_at_its_target(settings):
    config = settings("acquire.target=0.01")
    assert len(list(active.rounds(config, load_dataset(config.data), CPU))) == 1


def test_the_first_labels_are_balanced():
    labels = torch.randint(0, 5, (200,), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    first = active.first_labels(labels, 12, generator)
    counts = labels[first].bincount(minlength=5)
    assert len(set(first.tolist())) == 12
    assert sorted(counts.tolist()) == [2, 2, 2, 3, 3]
    other = active.first_labels(labels, 12, generator)
    assert first.tolist() != other.tolist()


def test_a_network_is_trained_on_the_labelled_images_only(settings, monkeypatch):
    config = settings()
    data = load_dataset(config.data)
    labelled = torch.tensor([3, 10, 20, 41, 57])
    seen = []
    step = active.TrainingStep.__call__

    def watched(self, x, y, *arguments):
        seen.extend(y.tolist())
        assert len(x) == 8  # full batches, so that a graph can replay them
        return step(self, x, y, *arguments)

    monkeypatch.setattr(active.TrainingStep, "__call__", watched)
    active.train(config, data, labelled, CPU, seed=0)
    counts = torch.tensor(seen).bincount(minlength=4)
    # 20 epochs of 5 images in batches of 8: 13 steps, every image 20 or 21 times
    per_class = data.train.labels[labelled].bincount(minlength=4)
    assert len(seen) == 104
    assert (counts >= 20 * per_class).all()
    assert (counts <= 21 * per_class).all()


def test_table(settings):
    runs = [settings("acquire.method=bald", f"seed={seed}") for seed in range(4)]
    curves = [
        [(4, 0.5), (7, 0.95)],
        [(4, 0.91), (7, 0.92), (10, 0.96)],
        [(4, 0.5), (12, 0.7)],
        [(4, 0.5), (7, 0.9), (12, 0.94)],
    ]
    results = {
        active.key(run): {"curve": curve, "seconds": 2.0}
        for run, curve in zip(runs, curves, strict=True)
    }
    line = active.table(runs, results).splitlines()[-1].split()
    assert line[:4] == ["bald", "4", "7/7/7", "10/>12/>12"]


@pytest.mark.parametrize(
    ("found", "shown"),
    [([10, 20, 30], "10/20/30"), ([None, 20, 10], "10/20/>50"), ([40], "40/40/40")],
)
def test_runs_without_the_mark_come_last(found, shown):
    assert active.quartiles(found, 50) == shown


def test_the_program_keeps_its_results(settings, tmp_path, monkeypatch, capsys, inline):
    runs = []

    def one(config):
        runs.append(active.key(config))
        return {"config": config.model_dump(mode="json"), "curve": [(4, 0.99)], "seconds": 1.0}

    monkeypatch.setattr(active, "ProcessPoolExecutor", inline)
    monkeypatch.setattr(active, "one", one)
    argv = ["active", "--config", str(tmp_path / "active.yaml"), "--methods", "bald", "random"]
    argv += ["--seeds", "0", "1", "--results", str(tmp_path / "results.json")]
    monkeypatch.setattr("sys.argv", argv)
    settings()
    assert active.main() == 0
    assert runs == ["bald_seed0", "bald_seed1", "random_seed0", "random_seed1"]
    assert active.main() == 0
    assert len(runs) == 4
    assert set(json.loads((tmp_path / "results.json").read_text())) == set(runs)
    monkeypatch.setattr("sys.argv", [*argv, "--set", "acquire.budget=13"])
    assert active.main() == 0  # other settings: done again
    assert len(runs) == 8
    assert "bald                  2           4/4/4" in capsys.readouterr().out


def test_settings_that_are_no_settings_are_refused(settings, tmp_path, monkeypatch, capsys):
    settings()
    with pytest.raises(ConfigError, match=r"budget counts the initial labels too"):
        settings("acquire.budget=5")
    with pytest.raises(ConfigError, match=r"acquire\.cout: unknown key; .* is acquire\.count"):
        settings("acquire.cout=5")
    argv = ["active", "--config", str(tmp_path / "active.yaml"), "--set", "acquire.passes=1"]
    monkeypatch.setattr("sys.argv", argv)
    assert active.main() == 2
    assert "acquire.passes: " in capsys.readouterr().err
