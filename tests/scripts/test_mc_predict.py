"""scripts/mc_predict.py from checkpoint to report."""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from bayes_dc import metrics as m
from bayes_dc import predict_with_uncertainty
from bayes_dc.config import Config
from bayes_dc.datasets import load_dataset
from bayes_dc.train import build_model, inputs, load_model

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mc_predict.py"
N = 40


def read_csv(folder):
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_json(folder):
    return json.loads((folder / "report.json").read_text("utf-8"))


def probabilities(folder, classes=10):
    rows = read_csv(folder)
    return torch.tensor(
        [[float(row[f"prob_{c}"]) for c in range(classes)] for row in rows], dtype=torch.float64
    )


def test_the_report_holds_what_the_engine_predicts(predict, checkpoint, digits, capsys):
    code, folder = predict("--limit", str(N), "--seed", "7")
    assert code == 0
    model, _ = load_model(checkpoint)
    x = digits.test.batch(torch.arange(N), torch.device("cpu"))
    want = predict_with_uncertainty(model, x[:16], 6, seed=7, sample_ids=torch.arange(16))
    rows = read_csv(folder)
    assert len(rows) == N
    assert torch.equal(probabilities(folder)[:16], want.mean)
    for i, row in enumerate(rows[:16]):
        assert (row["id"], row["label"]) == (str(i), str(digits.test.labels[i].item()))
        for name in ("entropy", "expected_entropy", "mutual_information"):
            assert float(row[name]) == getattr(want, name)[i].item()
    got, labels = read_json(folder), digits.test.labels[:N]
    assert got["run"] == {"T": 6, "seed": 7, "device": "cpu", "batch_size": 16}
    assert got["n"] == N
    assert got["p_effective"] == want.p_effective
    metrics = got["metrics"]
    accuracy = m.accuracy(probabilities(folder), labels).item()
    assert metrics["accuracy"]["monte_carlo"]["value"] == accuracy
    with torch.no_grad():
        mean = torch.cat([model(part).double().softmax(1) for part in x.split(16)])
    assert metrics["nll"]["mean_network"]["value"] == m.nll(mean, labels).item()
    assert got["data"]["name"] == "digits"
    assert (got["data"]["split"], got["data"]["inputs in the split"]) == ("test", 359)
    assert len(got["data"]["sha256"]) == 64
    assert got["checkpoint"]["config"]["model"]["hidden"] == [32]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{N} inputs, T=6, ")
    assert f"accuracy {accuracy:.4f}" in printed[0]
    assert printed[1] == f"report {folder / 'report.html'}"


def test_two_runs_differ_only_in_time_and_cost(predict):
    _, one = predict("--limit", str(N), out="one")
    _, two = predict("--limit", str(N), out="two")
    for path in one.iterdir():
        if path.suffix in (".csv", ".png"):
            assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    a, b = read_json(one), read_json(two)
    assert {key for key in a if a[key] != b[key]} <= {"created", "cost"}


def test_the_seed_changes_the_masks(predict):
    _, one = predict("--limit", "5", out="one")
    _, two = predict("--limit", "5", "--seed", "1", out="two")
    assert not torch.equal(probabilities(one), probabilities(two))


@pytest.mark.parametrize("batch_size", ["1", "2", "5"])
def test_no_input_is_lost_or_counted_twice(predict, digits, batch_size):
    """Float32 sums of 64 terms may round in another order for another batch size."""
    _, folder = predict("--limit", "5", "--batch-size", batch_size)
    _, whole = predict("--limit", "5", "--batch-size", "16", out="whole")
    got = read_json(folder)
    assert got["metrics"]["accuracy"]["n"] == 5
    assert torch.allclose(
        probabilities(folder), probabilities(whole), rtol=64 * 2.0**-23, atol=1e-6
    )
    want = m.accuracy(probabilities(folder), digits.test.labels[:5]).item()
    assert got["metrics"]["accuracy"]["monte_carlo"]["value"] == want


def test_names_that_are_not_text_are_written_with_escapes(predict, checkpoint, tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"run\xff")
    shutil.copytree(checkpoint, folder)
    code, out = predict("--limit", "3", folder=folder, out=os.fsdecode(b"out\xff"))
    assert code == 0
    assert read_json(out)["checkpoint"]["folder"] == f"{tmp_path}/run\\xff"
    assert capsys.readouterr().out.splitlines()[1] == f"report {tmp_path}/out\\xff/report.html"


def test_a_batch_may_be_larger_than_all_inputs(predict):
    code, out = predict("--limit", "3", "--batch-size", str(2**70))
    assert code == 0
    assert read_json(out)["run"]["batch_size"] == 3


def test_image_files_are_predicted_like_the_data_set(
    predict, digits, tmp_path, capsys, save_network
):
    files = []
    for i in range(5):
        files.append(str(tmp_path / f"digit <{i}>.png"))
        Image.fromarray(digits.test.image(i).squeeze(2)).save(files[-1])
    code, folder = predict("--images", *files)
    assert code == 0
    _, whole = predict("--limit", "5", out="whole")
    assert torch.equal(probabilities(folder), probabilities(whole))
    assert [row["id"] for row in read_csv(folder)] == files
    assert {row["label"] for row in read_csv(folder)} == {""}
    got = read_json(folder)
    assert "accuracy" not in got["metrics"]
    assert any("labels of these inputs are not known" in warning for warning in got["warnings"])
    assert got["data"]["conversion"] == "turned upright, grey, resized to 8 × 8 pixels"
    assert "entropy" in capsys.readouterr().out


def test_images_of_other_sizes_and_colours_are_converted(predict, tmp_path, save_network):
    Image.new("RGBA", (31, 17), (200, 10, 10, 128)).save(tmp_path / "a.png")
    Image.new("CMYK", (9, 30), (20, 40, 60, 0)).save(tmp_path / "b.jpg")
    code, folder = predict("--images", str(tmp_path / "a.png"), str(tmp_path / "b.jpg"))
    assert code == 0
    assert len(read_csv(folder)) == 2


def test_inputs_that_are_not_finite_are_warned_about_and_listed(
    predict, tmp_path, monkeypatch, capsys, save_network
):
    files = []
    for i in range(3):
        files.append(str(tmp_path / f"{i}.png"))
        Image.new("L", (8, 8), 40 * i).save(files[-1])
    real = inputs.to_float

    def poisoned(pixels, normalisation):
        x = real(pixels, normalisation)
        x[1, 0, 0, 0] = math.nan
        return x

    monkeypatch.setattr(inputs, "to_float", poisoned)
    code, folder = predict("--images", *files)
    assert code == 0
    got = read_json(folder)
    assert got["nonfinite_inputs"] == [files[1]]
    assert got["n_in_metrics"] == 2
    assert any(files[1] in warning for warning in got["warnings"])
    assert "warning: " in capsys.readouterr().err


def test_other_classes_of_the_same_number_are_not_scored(
    predict, digits, tmp_path, capsys, make_config, save_network
):
    config = make_config()
    model = build_model(config.model, digits.input_shape, 10)
    folder = save_network(
        tmp_path / "letters", model, config, digits, class_names=tuple("abcdefghij")
    )
    code, out = predict("--limit", "3", folder=folder)
    assert code == 0
    assert "The classes of digits (0, 1, 2" in capsys.readouterr().err
    got = read_json(out)
    assert "accuracy" not in got["metrics"]
    assert any("labels are not used" in warning for warning in got["warnings"])
    assert {row["predicted"] for row in read_csv(out)} <= set("abcdefghij")


def test_every_split_can_be_chosen(predict, digits):
    _, folder = predict("--split", "validation", "--limit", "3")
    assert [row["label"] for row in read_csv(folder)] == [
        str(label) for label in digits.validation.labels[:3].tolist()
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cpu_and_gpu_predict_the_same(predict):
    _, cpu = predict("--limit", str(N), out="cpu")
    _, gpu = predict("--limit", str(N), "--device", "cuda", out="gpu")
    # The masks are the same bits; what is left are float32 sums of 64 and 32 terms in other orders.
    assert torch.allclose(probabilities(cpu), probabilities(gpu), rtol=0, atol=1e-4)
    assert read_json(gpu)["cost"]["peak_memory_kind"] == "allocated by torch on the device"
    assert read_json(gpu)["data"] == read_json(cpu)["data"]


def test_one_pass_is_called_a_draw(predict):
    _, folder = predict("--passes", "1", "--limit", "3")
    got = read_json(folder)
    assert got["run"]["T"] == 1
    assert any("T = 1 is a single random draw" in warning for warning in got["warnings"])
    assert {float(row["mutual_information"]) for row in read_csv(folder)} == {0.0}


def test_the_command_runs_in_a_process_of_its_own(checkpoint, tmp_path):
    command = [sys.executable, str(SCRIPT), "--checkpoint", str(checkpoint), "--out", "here/out"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*command, "--limit", "20", "--device", "cpu"], **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "report here/out/report.html"
    assert (tmp_path / "here" / "out" / "report.html").is_file()
    again = subprocess.run(command, **options)
    assert again.returncode == 2
    assert again.stderr.startswith("error: here/out is not empty")
    assert "Traceback" not in again.stderr


def test_image_folders_are_named_by_file(predict, digits, tmp_path, save_network):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            Image.new("RGB", (5, 5), (len(name), 100, 50)).save(folder / "1.png")
    config = Config.model_validate({
        "output_dir": "x",
        "model": {"hidden": [8]},
        "data": {"name": "imagefolder", "root": str(tmp_path / "data"), "image_size": 4},
    })
    bundle = load_dataset(config.data)
    model = build_model(config.model, bundle.input_shape, 2)
    folder = save_network(tmp_path / "folder", model, config, bundle)
    code, out = predict("--passes", "4", folder=folder)
    assert code == 0
    test = tmp_path / "data" / "test"
    assert [(row["id"], row["label"]) for row in read_csv(out)] == [
        (str(test / "cat" / "1.png"), "cat"),
        (str(test / "dog" / "1.png"), "dog"),
    ]
