"""The uncertainty table: its rows, what is measured of each, and agreement with votes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bayes_dc.metrics import auroc, spearman, vote_entropy, vote_nll
from bayes_dc.train import load_inputs, load_model, predict_inputs
from benchmarks import recipe_runs, uncertainty
from benchmarks import votes as bench_votes
from benchmarks.uncertainty_scores import against


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, inline):
    """Return a function that runs the program on small images, its passes few."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    images = rng.integers(0, 100, (60, 16, 16), dtype=np.uint8)
    images[np.arange(60), labels] += 150
    arrays = dict(zip(("x_train", "y_train"), (images[:40], labels[:40]), strict=True))
    np.savez(tmp_path / "known.npz", **arrays, x_test=images[40:], y_test=labels[40:])
    other = rng.integers(0, 255, (9, 20, 18, 3), dtype=np.uint8)
    one = {"x_train": other[:1], "y_train": labels[:1]}
    np.savez(tmp_path / "other.npz", **one, x_test=other, y_test=labels[:9] * 0)
    people = np.ones((20, 10), np.int64)
    people[np.arange(20), labels[40:]] = 20 + np.arange(20)
    np.save(tmp_path / "votes.npy", people)
    monkeypatch.setattr(recipe_runs, "ProcessPoolExecutor", inline)
    monkeypatch.setattr(recipe_runs.torch, "set_num_threads", lambda count: None)

    def run(*arguments, votes=True):
        argv = ["uncertainty", "mnist", "--seeds", *arguments, "--out", str(tmp_path / "runs")]
        argv += ["--results", str(tmp_path / "results.json"), "--passes", "3"]
        argv += ["--ood", f"noise={tmp_path / 'other.npz'}", "--rotated", "4"]
        argv += ["--rotation-passes", "2", "--set", f"data.root={tmp_path / 'known.npz'}"]
        argv += ["--votes", str(tmp_path / "votes.npy")] * votes
        for change in ("data.name=npz", "train={epochs: 1, batch_size: 16, device: cpu}"):
            argv += ["--set", change]
        monkeypatch.setattr("sys.argv", argv)
        assert uncertainty.main() == 0
        return capsys.readouterr()

    return run


def test_rows_and_what_is_measured(command, tmp_path):
    shown = command("0").out
    rows = list(uncertainty.ROWS["mnist"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == len(rows)
    for row in rows:
        assert f"\n{row:36}" in shown
    for column in ("AURC", "AUROC MI", "FPR95 entropy", "vote NLL", "ρ expected_entropy"):
        assert column in shown
    assert "seconds per 1000" in shown
    plain = results["uncertainty_mnist_cnn_plain_3_seed0"]["scores"]
    assert "AUROC MI" not in plain["ood noise"]  # one pass knows no mutual information
    assert "ρ mutual_information" not in plain["votes"]
    drawn = results["uncertainty_mnist_cnn_1_seed0"]
    assert drawn["config"]["model"]["scope"] == "pass"
    assert list(drawn["scores"]["rotation"]) == ["0", *map(str, range(15, 181, 15))]
    assert drawn["options"]["rotated"] == 4
    again = command("0")
    assert again.err == ""  # what is there is not done again
    assert again.out == shown
    assert command("0", votes=False).err.count("seed0:") == 4  # other measurements are


def test_scores_are_those_of_the_saved_network(command, tmp_path):
    command("1")
    results = json.loads((tmp_path / "results.json").read_text())
    name = "uncertainty_mnist_cnn_dropout_2_seed1"
    scores = results[name]["scores"]
    model, meta = load_model(tmp_path / "runs" / name)
    options = {"T": 3, "seed": 0, "batch_size": 7, "device": torch.device("cpu")}
    known = load_inputs(tmp_path, meta)
    outputs = predict_inputs(model, known, **options)
    prediction = outputs.prediction
    wrong = (prediction.mean.argmax(1) != known.labels).double().mean().item()
    assert scores["test"]["error %"] == pytest.approx(100 * wrong)
    people = torch.from_numpy(np.load(tmp_path / "votes.npy"))
    # batches of other sizes round differently, which no rank notices here
    assert scores["votes"]["vote NLL"] == pytest.approx(vote_nll(prediction.mean, people).item())
    rho = spearman(prediction.expected_entropy, vote_entropy(people)).item()
    assert scores["votes"]["ρ expected_entropy"] == pytest.approx(rho)
    assert 0 <= scores["ood noise"]["AUROC entropy"] <= 100


def test_tuned_networks_start_from_the_plain_one():
    arguments = ["cifar10", "--seeds", "2", "--set", "train.epochs=15", "--set", "data.root=x"]
    runs = plan(arguments)
    plain = runs[0]
    assert plain.needs is None
    assert "train.epochs=15" in plain.overrides
    for run in runs[1:]:
        assert run.needs == plain.name
        assert f"init_from=checkpoints/{plain.name}" in run.overrides
        assert "train.epochs=15" not in run.overrides
        assert "data.root=x" in run.overrides
        config = run.settings(Path("checkpoints"))
        assert config.train.epochs == 3
    assert runs[-1].settings(Path("c")).model.dropout == 0.125


def plan(arguments):
    before, sys.argv = sys.argv, ["uncertainty", *arguments]
    try:
        return uncertainty.plan(uncertainty.parse_arguments())
    finally:
        sys.argv = before


def test_votes_of_checkpoints(command, tmp_path, monkeypatch, capsys):
    command("0")
    folders = [tmp_path / f"runs/uncertainty_mnist_cnn{kind}_seed0" for kind in ("_0", "_plain_3")]
    argv = ["votes", *map(str, folders), "--votes", str(tmp_path / "votes.npy"), "--passes", "3"]
    monkeypatch.setattr("sys.argv", argv)
    assert bench_votes.main() == 0
    shown = capsys.readouterr().out
    assert shown.count("vote NLL") == 2
    assert shown.count("ρ mutual_information") == 1
    monkeypatch.setattr("sys.argv", [*argv[:2], "--votes", str(tmp_path / "none.npy")])
    assert bench_votes.main() == 2
    assert "no file" in capsys.readouterr().err


def test_uncertainty_is_told_apart():
    """The AUROC is of OOD against ID, in per cent."""

    class Fake:
        def __init__(self, entropy):
            self.prediction = self
            self.entropy = self.energy = self.mutual_information = torch.tensor(entropy)
            self.confidence = 1 - self.entropy

    a, b = Fake([0.1, 0.2, 0.3]), Fake([0.25, 0.4])
    scores = against(a, b, plain=False)
    want = 100 * auroc(a.entropy, b.entropy).item()
    assert scores["AUROC entropy"] == scores["AUROC MI"] == scores["AUROC max-p"] == want
    assert want == pytest.approx(100 * 5 / 6)
