"""Recipes: what is run, that a stopped program goes on, and what the table holds."""

import json

import numpy as np
import pytest

from bayes_dc.train import TrainingError
from benchmarks import recipe_runs, recipes, step_time


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, inline):
    """Return a function that runs a recipe on 40 small images and gives what it prints."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 10
    images = rng.integers(0, 100, (40, 16, 16), dtype=np.uint8)
    images[np.arange(40), labels] += 150
    names = ("x_train", "y_train", "x_test", "y_test")
    arrays = (images[:30], labels[:30], images[30:], labels[30:])
    np.savez(tmp_path / "images.npz", **dict(zip(names, arrays, strict=True)))
    monkeypatch.setattr(recipe_runs, "ProcessPoolExecutor", inline)
    monkeypatch.setattr(recipe_runs.torch, "set_num_threads", lambda count: None)
    changes = [
        f"data={{name: npz, root: {tmp_path / 'images.npz'}}}",
        "train={epochs: 1, batch_size: 16, device: cpu}",
    ]

    def run(*arguments, more=()):
        argv = ["recipes", *arguments, "--out", str(tmp_path / "runs"), "--passes", "3"]
        argv += ["--results", str(tmp_path / "results.json")]
        for change in (*changes, *more):
            argv += ["--set", change]
        monkeypatch.setattr("sys.argv", argv)
        run.code = recipes.main()
        return capsys.readouterr()

    run.code = None
    return run


MLP = ("model.hidden=[8]",)


def test_table_of_mean_and_deviation(command, tmp_path):
    shown = command("mnist_mlp", "--seeds", "0", "1", more=MLP).out
    lines = shown.splitlines()
    assert lines[0] == "mnist_mlp, seeds [0, 1], mean ± sd"
    assert [line[:40].strip() for line in lines[2:]] == [
        "mnist_mlp: MC DropConnect",
        "mnist_mlp: mean weights",
        "mnist_mlp_plain: plain network",
    ]
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {
        *("mnist_mlp_seed0", "mnist_mlp_seed1", "mnist_mlp_plain_seed0", "mnist_mlp_plain_seed1"),
    }
    errors = [results[f"mnist_mlp_seed{s}"]["scores"]["MC DropConnect"][0] for s in (0, 1)]
    assert f"{np.mean(errors):.4f} ± {np.std(errors, ddof=1):.4f}" in lines[2]
    assert results["mnist_mlp_seed0"]["config"]["seed"] == 0


def test_what_is_done_is_not_done_again(command, tmp_path):
    path = tmp_path / "results.json"
    command("mnist_mlp", "--seeds", "0", more=MLP)
    first = path.read_text()
    again = command("mnist_mlp", "--seeds", "0", more=MLP)
    assert again.err == ""
    assert command.code == 0
    assert path.read_text() == first
    results = json.loads(first)
    del results["mnist_mlp_seed0"]  # stopped between training and evaluation
    path.write_text(json.dumps(results))
    again = command("mnist_mlp", "--seeds", "0", more=MLP)
    assert again.err.count("seed0:") == 1
    scores = [json.loads(text)["mnist_mlp_seed0"]["scores"] for text in (first, path.read_text())]
    assert scores[0] == scores[1]
    assert command("mnist_mlp", "--seeds", "0", "--overwrite", more=MLP).err.count("seed0:") == 2


def test_a_run_of_other_settings_is_kept(command, tmp_path):
    command("mnist_mlp", "--seeds", "0", more=MLP)
    kept = (tmp_path / "runs/mnist_mlp_seed0/last/model.safetensors").read_bytes()
    other = (*MLP, "model.hidden=[9]")
    refused = command("mnist_mlp", "--seeds", "0", more=other)
    assert command.code == 1
    assert (
        "model.hidden was [8] and is [9]. Set it back, or start a new run in another output_dir. "
        "Here --overwrite trains it again, and --out names another folder."
    ) in refused.err
    assert "Traceback" not in refused.err
    assert (tmp_path / "runs/mnist_mlp_seed0/last/model.safetensors").read_bytes() == kept
    assert command("mnist_mlp", "--seeds", "0", "--overwrite", more=other).err.count("seed0:") == 2
    assert command.code == 0


@pytest.mark.parametrize(
    ("error", "traced"), [(TrainingError("loss is NaN"), False), (ZeroDivisionError("0"), True)]
)
def test_a_run_that_fails_leaves_the_others(command, monkeypatch, error, traced):
    evaluate = recipe_runs.evaluate

    def fail(model, config, data, run):
        if run.config == "mnist_mlp":
            raise error
        return evaluate(model, config, data, run)

    monkeypatch.setattr(recipe_runs, "evaluate", fail)
    found = command("mnist_mlp", "--seeds", "0", more=MLP)
    assert command.code == 1
    assert f"mnist_mlp_seed0: {type(error).__name__}: {error}" in found.err
    assert "1 runs failed" in found.err
    assert "no result of mnist_mlp_seed0" in found.err
    assert ("Traceback" in found.err) == traced
    assert "mnist_mlp_plain: plain network" in found.out


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        (
            "mnist_mlp",
            "model.foo=1",
            "mnist_mlp.yaml with --set model.foo: model.foo: unknown key; the nearest",
        ),
        ("mnist_mlp", "model.p=1e-9", "mnist_mlp_seed0: model: p"),
        ("mnist_mlp", "data.root=nowhere.npz", "npz: nowhere.npz is missing. Set data.root"),
        ("mnist_mlp", "data.root", "--set data.root: must read section.key=value"),
        (
            "finetune",
            "train={epochs: 1, schedule: {name: cosine, warmup_epochs: 3}}",
            "train: schedule.warmup_epochs must be below epochs=1; got 3",
        ),
        ("speed", "model.select=[nowhere]", "speed_cifar10_resnet18: model: "),
    ],
)
def test_what_cannot_be_trained_is_one_line_before_anything_is(
    command, tmp_path, recipe, change, message
):
    found = command(recipe, "--seeds", "0", more=(change,))
    assert command.code == 2
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "runs").exists()


def test_results_and_folders_of_others_are_refused(command, tmp_path):
    (tmp_path / "results.json").write_text("[1]")
    found = command("mnist_mlp", "--seeds", "0", more=MLP)
    text = f"error: --results {tmp_path}/results.json holds no results of recipes. Name another"
    assert found.err.startswith(text)
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mnist_mlp_seed0").write_text("mine")
    found = command("mnist_mlp", "--seeds", "0", more=MLP)
    assert found.err.startswith(f"error: output_dir {tmp_path}/runs/mnist_mlp_seed0 is a file")
    assert command.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "--jobs: must be a whole number of at least 1; got '0'"),
        (["--passes", "0"], "--passes: must be a whole number of at least 1; got '0'"),
        (["--seeds", "-1"], "--seeds: must be a whole number in 0 … 2**64 − 1; got '-1'"),
        (["--seeds", "0", "1", "0"], "--seeds: 0 is given twice; name every seed once"),
    ],
)
def test_the_command_line_is_checked(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr("sys.argv", ["recipes", "mnist_mlp", *arguments])
    with pytest.raises(SystemExit) as stop:
        recipes.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_dropout_twin_is_evaluated_with_dropout(command):
    shown = command("mnist_cnn", "--seeds", "0").out.splitlines()
    assert [line[:40].strip() for line in shown[2:]] == [
        "mnist_cnn: MC DropConnect",
        "mnist_cnn: mean weights",
        "mnist_cnn_dropout: MC dropout",
        "mnist_cnn_dropout: without dropout",
        "mnist_cnn_plain: plain network",
    ]


def names_of(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["recipes", *arguments])
    return recipes.plan(recipes.parse_arguments())


def test_fine_tuning_starts_from_the_plain_network_of_its_seed(monkeypatch, tmp_path):
    runs = names_of(monkeypatch, "finetune", "--seeds", "3", "4", "--out", str(tmp_path))
    assert [run.needs for run in runs[2:]] == [
        f"cifar10_resnet18_plain_seed{s}" for s in (3, 4)
    ] * 2
    assert [run.untrained for run in runs] == [False, False, True, True, False, False]
    settings = runs[-1].settings(tmp_path)
    assert settings.init_from == str(tmp_path / "cifar10_resnet18_plain_seed4")
    assert settings.train.epochs <= 3
    assert (settings.seed, settings.output_dir) == (4, str(tmp_path / runs[-1].name))


def test_the_sweep_crosses_places_and_probabilities(monkeypatch, tmp_path):
    runs = names_of(monkeypatch, "sweep", "--seeds", "5")
    found = [(run.settings(tmp_path).model.select, run.settings(tmp_path).model.p) for run in runs]
    assert len(found) == len(set(found)) == 16
    assert (("layer4",), 0.25) in found
    assert len({run.name for run in runs}) == len({run.row for run in runs}) == 16


def test_speed_is_that_of_one_seed(monkeypatch):
    runs = names_of(monkeypatch, "speed")
    assert [run.seed for run in runs] == [0] * 4
    assert all(run.speed for run in runs)


def test_timing_touches_no_folder_of_a_user(command, tmp_path, monkeypatch):
    mine = tmp_path / "runs/speed/last"
    mine.mkdir(parents=True)
    (mine / "model.safetensors").write_bytes(b"mine")
    monkeypatch.setattr(step_time, "STEPS", 1)
    change = ("model={name: cnn, p: 0.5}", "train={batch_size: 4, epochs: 1, device: cpu}")
    monkeypatch.setattr(recipes, "CIFAR", ("",))
    shown = command("speed", more=change).out
    assert command.code == 0
    assert shown.splitlines()[2].startswith("cifar10_resnet18 ")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["speed"]
    assert (mine / "model.safetensors").read_bytes() == b"mine"
