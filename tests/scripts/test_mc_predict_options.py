"""scripts/mc_predict.py beside the plain prediction: other inputs, changes, networks, policy."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc import metrics as m
from bayes_dc import predict_with_uncertainty
from bayes_dc.datasets import apply_shift, rotate
from bayes_dc.mc import convergence, temper
from bayes_dc.metrics import Policy
from bayes_dc.report import writer
from bayes_dc.train import (
    CalibrationState,
    build_model,
    load_model,
    save_calibration,
)
from bayes_dc.train.calibration import SavedTemperature, saved_policy

N = 30


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    """Tests of the report look at its pictures."""
    monkeypatch.setattr(writer, "draw_charts", lambda *_: {})
    monkeypatch.setattr(writer, "draw_grids", lambda *_: {})


@pytest.fixture
def report(predict, capsys):
    """Run the script on the first inputs and read report.json."""

    def run(*options, **others):
        code, folder = predict("--limit", str(N), *options, **others)
        assert code == 0, capsys.readouterr().err
        return json.loads((folder / "report.json").read_text("utf-8"))

    return run


@pytest.fixture
def pixels(digits):
    return np.stack([digits.test.image(i) for i in range(N)])


@pytest.fixture
def network(checkpoint, digits):
    """Predict pictures with the checkpoint as the script does."""
    model, _ = load_model(checkpoint)

    def run(images, **options):
        channels_first = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        x = (channels_first.float() / 255 - digits.normalisation.mean[0]) / (
            digits.normalisation.std[0]
        )
        return predict_with_uncertainty(model, x, 6, seed=0, **options)

    return run


def close(got, want):
    # Sums of 64 float32 products, in other batches.
    return got == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_inputs_of_another_kind(report, tmp_path, network, pixels):
    for part in ("train", "test"):
        folder = tmp_path / "pictures" / part / "cat"
        folder.mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (9, 9), (80 * k, 10, 200)).save(folder / f"{k}.png")
    whole = report("--ood", f"imagefolder={tmp_path / 'pictures'}", "digits")
    got = whole["ood"]
    assert [text for text in whole["warnings"] if "holds the very inputs" in text] == [
        "The set digits holds the very inputs of the task: what tells the two apart means nothing."
    ]
    assert [(one["name"], one["n"]) for one in got] == [("imagefolder", 3), ("digits", N)]
    assert got[0]["data"]["conversion"] == "grey, resized to 8 × 8 pixels"
    scores = {(row["network"], row["score"]): row["auroc"]["value"] for row in got[1]["rows"]}
    assert scores["Monte Carlo", "entropy"] == 0.5  # the same inputs
    assert scores["mean-weight network", "energy"] == 0.5
    entropy = network(pixels).entropy
    files = [np.asarray(Image.new("RGB", (8, 8), (80 * k, 10, 200)).convert("L")) for k in range(3)]
    other = network(np.stack(files)[..., None]).entropy
    want = m.auroc(entropy, other).item()
    assert close(got[0]["rows"][0]["auroc"]["value"], want)
    assert [one["predicted"] for one in got[0]["surest"]]


def test_other_inputs_from_a_file_have_the_name_they_are_given(report, tmp_path, pixels):
    arrays = {f"{kind}_{part}": value for part in ("train", "test")
              for kind, value in (("x", pixels), ("y", np.zeros(N, np.int64)))}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays)
    (got,) = report("--ood", f"letters={tmp_path / 'a.npz'}")["ood"]
    assert (got["name"], got["n"], got["data"]["name"]) == ("letters", N, "npz")


def test_changed_inputs(report, network, pixels, digits):
    options = ("--shift", "contrast", "gaussian_noise", "turned", "--shift-limit", "20")
    got = report(*options)["shift"]
    points = {(p["shift"], p["severity"]): p for p in got["points"]}
    assert len(points) == 2 * 6 + 13
    assert {p["n"] for p in points.values()} == {20}
    labels, pixels = digits.test.labels[:20], pixels[:20]
    for name, severity in (("contrast", 3), ("gaussian_noise", 5), ("contrast", 0)):
        want = network(apply_shift(pixels, name, severity, 0, range(20)))
        scores = points[name, severity]["scores"]
        assert close(scores["nll"]["value"], m.nll(want.mean, labels).item())
        assert close(scores["mutual_information"]["value"], want.mutual_information.mean().item())
    want = network(rotate(pixels, 90))
    assert close(points["turned", 90]["scores"]["entropy"]["value"], want.entropy.mean().item())
    turned = got["rotated"]
    assert turned["degrees"] == [0, *range(15, 181, 15)]
    right = network(pixels).predicted == labels
    index = right.int().argmax().item()
    assert turned["id"] == str(index)
    assert turned["label"] == turned["predicted"][0] == str(labels[index].item())
    assert len(turned["mean"]) == 13


def test_all_changes_are_the_default(report):
    got = report("--shift", "--shift-limit", "2", "--passes", "2")["shift"]
    names = list(dict.fromkeys(p["shift"] for p in got["points"]))
    assert len(names) == 12
    assert names[-1] == "turned"


def test_networks_side_by_side(report, tmp_path, digits, make_config, save_network, predict):
    for name, changes in (("dropout", {"p": 0.0, "dropout": 0.4}), ("plain", {"p": 0.0})):
        config = make_config(**changes)
        model = build_model(config.model, digits.input_shape, 10, seed=1)
        save_network(tmp_path / name, model, config, digits)
    options = ("--compare", str(tmp_path / "dropout"), str(tmp_path / "plain"), "--ood", "digits")
    got = report(*options, "--shift", "contrast", "--shift-limit", "5")
    assert got["name"] == "checkpoint"
    dropout, plain = got["compared"]
    assert (dropout["name"], dropout["T"]) == ("dropout", 6)
    assert (plain["name"], plain["T"]) == ("plain", 1)
    assert plain["metrics"]["mutual_information"]["monte_carlo"]["value"] == 0
    own = got["metrics"]["nll"]["monte_carlo"]["value"]
    gap = next(row for row in plain["differences"] if row["key"] == "nll")
    assert gap["first"] == own
    assert gap["difference"]["value"] == pytest.approx(gap["second"] - own, rel=1e-12)
    assert gap["verdict"] == "worse"  # it was not trained
    assert [row["score"] for row in plain["ood"]["digits"]][-1] == "energy"
    assert len(plain["shift"]["points"]) == 6
    code, folder = predict("--limit", str(N), out="alone", folder=tmp_path / "dropout")
    alone = json.loads((folder / "report.json").read_text("utf-8"))
    assert code == 0
    assert alone["metrics"] == dropout["metrics"]


def test_networks_of_the_same_name_are_told_apart(mc_predict, tmp_path):
    paths = [tmp_path / "a" / "best", tmp_path / "b" / "best", tmp_path / "b" / "last"]
    assert mc_predict.names_of(paths[:2]) == ["a", "b"]
    assert mc_predict.names_of(paths[1:]) == [str(path) for path in paths[1:]]


def test_seeds_show_how_much_the_masks_matter(report):
    got = report("--seeds", "5", "6", "5")
    assert got["run"]["seed"] == 5
    assert got["seeds"]["seeds"] == [5, 6]
    row = next(one for one in got["seeds"]["metrics"] if one["key"] == "nll")
    other = report("--seed", "6", out="other")
    values = [one["metrics"]["nll"]["monte_carlo"]["value"] for one in (got, other)]
    assert row["values"] == values
    assert other["seeds"] is None


def test_convergence_is_that_of_the_passes(report, network, pixels, digits):
    rows = report()["convergence"]
    samples = network(pixels, return_samples=True).samples
    for got, want in zip(rows, convergence(samples, digits.test.labels[:N]), strict=True):
        assert (got["T"], got["n"]) == (want.T, N)
        assert close(got["nll"], want.nll)
        assert close(got["mutual_information"], want.mutual_information)
    assert [row["T"] for row in rows] == [1, 2, 5, 6]
    assert report("--passes", "1", out="one")["convergence"] == []


@pytest.mark.parametrize("kind", ["logits", "mean"])
def test_what_was_calibrated_is_applied(
    report, tmp_path, digits, make_config, save_network, network, pixels, checkpoint, kind, capsys
):
    model, _ = load_model(checkpoint)
    folder = save_network(tmp_path / "own", model, make_config(), digits)
    policy = Policy("entropy", 0.5, "risk", 0.2, 0.95, 50, 0.19, 40, 2)
    fitted = SavedTemperature(
        value=1.7, kind=kind, standard_error=0.1, nll_before=1, nll_after=0.9, n=50
    )
    state = CalibrationState(T=9, seed=0, fitted=fitted, saved_policy=saved_policy(policy))
    save_calibration(folder, state)
    got = report(folder=folder)
    assert got["temperature"] == {"value": 1.7, "kind": kind, "n": 50}
    want = temper(network(pixels, return_samples=True), 1.7, kind)
    labels = digits.test.labels[:N]
    nll = got["metrics"]["nll"]
    assert close(nll["monte_carlo"]["value"], m.nll(want.mean, labels).item())
    accepted = want.entropy <= 0.5
    assert got["abstention"]["accepted"] == accepted.sum().item()
    assert got["abstention"]["policy"]["bound"] == 0.19
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        marks = [row["decision"] for row in csv.DictReader(file)]
    assert marks == ["accept" if one else "abstain" for one in accepted]
    said = "The calibration was made with T = 9 passes; this prediction has T = 6."
    assert said in capsys.readouterr().err
    assert any(said in text for text in got["warnings"])
    beside = report("--compare", str(folder), out="beside")["warnings"]  # of this one, too
    assert [text for text in beside if said in text and text.startswith(f"{folder.name}: ")]
    bare = report("--no-calibration", folder=folder, out="bare")
    assert bare["temperature"] is bare["abstention"] is None
    assert bare["metrics"]["nll"]["mean_network"] == nll["mean_network"]
    assert bare["metrics"]["nll"]["monte_carlo"] != nll["monte_carlo"]


def refused(result, capsys):
    """The one-line message of a run that wrote nothing."""
    code, folder = result
    assert code == 2
    assert not folder.exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_networks_for_other_inputs_are_refused(
    predict, tmp_path, digits, make_config, save_network, capsys
):
    config = make_config()
    model = build_model(config.model, digits.input_shape, 10)
    names = tuple("abcdefghij")
    folder = save_network(tmp_path / "letters", model, config, digits, class_names=names)
    message = refused(predict("--limit", "3", "--compare", str(folder)), capsys)
    assert f"--compare {folder}: its inputs are not those of " in message
    assert "Compare networks that were trained on the same data set" in message


def test_other_sets_that_are_not_there_name_the_option(predict, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    message = refused(predict("--limit", "3", "--ood", "kmnist"), capsys)
    assert message.startswith("error: kmnist: ")
    assert message.endswith(
        "Nothing is downloaded for --ood. Name its folder with --ood kmnist=DIR."
    )
    message = refused(predict("--limit", "3", "--ood", f"kmnist={tmp_path}"), capsys)
    assert message.endswith("Nothing is downloaded for --ood.")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--ood", "minst"], "--ood: must be NAME, NAME=DIR or LABEL=FILE.npz, NAME one of digits"),
        (["--ood", "mnist="], "must be NAME, NAME=DIR or"),
        (["--ood", "letters=folder"], "must be NAME, NAME=DIR or"),
        (["--ood", "a=1.npz", "a=2.npz"], "every set must have a name of its own; got ['a', 'a']"),
        (["--shift", "fog"], "--shift: invalid choice: 'fog'"),
        (["--shift-limit", "0"], "--shift-limit: must be a whole number of at least 1"),
        (["--seeds", "1", "x"], "--seeds: must be a whole number in 0 … 2**64 − 1; got 'x'"),
        (["--seeds", "1", "--seed", "2"], "not allowed with argument --seeds"),
        (["--compare"], "--compare: expected at least one argument"),
    ],
)
def test_the_options_are_checked(predict, options, text, capsys):
    with pytest.raises(SystemExit):
        predict(*options)
    assert text in capsys.readouterr().err
