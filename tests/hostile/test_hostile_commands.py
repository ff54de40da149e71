"""The commands: hostile files end with exit code 2, one line that names the file, and no output."""

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from damage import archive, put, save_small
from full_disk import Disk

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(f"hostile_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scripts():
    return {name: script(name) for name in ("train", "mc_predict", "calibrate", "compare")}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A checkpoint of a network that takes the digits: content by file name."""
    folder = save_small(tmp_path_factory.mktemp("digits") / "c", (1, 8, 8), 10)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def checkpoint(tmp_path, digits):
    folder = tmp_path / "c"
    folder.mkdir()
    for name, content in digits.items():
        (folder / name).write_bytes(content)
    return folder


def refusal(command, capsys, named, *arguments):
    """Run a command that is refused; return its one line."""
    capsys.readouterr()
    assert command.main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert str(named) in lines[0]
    return lines[0]


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


DAMAGE = {
    "cut": lambda content, marker: content[: len(content) // 2],
    "a pickle": lambda content, marker: pickle.dumps(Harm(marker)),
    "an archive": lambda content, marker: archive({"../../x": b"x"}),
    "nothing": lambda content, marker: b"",
    "deep": lambda content, marker: b"[" * 10**6,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["model.safetensors", "meta.json", "calibration.json"])
def test_a_damaged_checkpoint_is_named_by_prediction(
    checkpoint, scripts, capsys, tmp_path, name, damage
):
    marker = tmp_path / "marker"
    content = DAMAGE[damage]((checkpoint / name).read_bytes(), str(marker))
    (checkpoint / name).write_bytes(content) if name == "meta.json" else put(
        checkpoint, name, content
    )
    out = tmp_path / "out"
    command = ("--checkpoint", checkpoint, "--out", out, "--limit", 4, "--device", "cpu")
    refusal(scripts["mc_predict"], capsys, checkpoint / name, *command)
    assert not marker.exists()
    assert not out.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "meta.json"])
def test_a_damaged_checkpoint_is_named_by_calibration(checkpoint, scripts, capsys, name):
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:-9])
    arguments = ("--checkpoint", checkpoint, "--overwrite", "--device", "cpu")
    refusal(scripts["calibrate"], capsys, checkpoint / name, *arguments)


def configuration(tmp_path, checkpoint=None):
    path = tmp_path / "run.yaml"
    text = f"output_dir: {tmp_path / 'run'}\nmodel: {{hidden: [4]}}\ndata: {{name: digits}}\n"
    if checkpoint is not None:
        text += f"init_from: {checkpoint}\n"
    path.write_text(text + "train: {epochs: 1, device: cpu}\n")
    return path


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_to_start_from_is_named(checkpoint, scripts, capsys, tmp_path, damage):
    marker = tmp_path / "marker"
    content = DAMAGE[damage]((checkpoint / "model.safetensors").read_bytes(), str(marker))
    put(checkpoint, "model.safetensors", content)
    path = configuration(tmp_path, checkpoint)
    refusal(scripts["train"], capsys, checkpoint / "model.safetensors", path)
    assert not marker.exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_training_state_is_named_by_resume(scripts, capsys, tmp_path, damage):
    path = configuration(tmp_path)
    assert scripts["train"].main([str(path)]) == 0
    last, marker = tmp_path / "run" / "last", tmp_path / "marker"
    content = DAMAGE[damage]((last / "train_state.pt").read_bytes(), str(marker))
    put(last, "train_state.pt", content)
    more = ("--resume", "--set", "train.epochs=2")
    refusal(scripts["train"], capsys, last / "train_state.pt", path, *more)
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: !!python/object/apply:os.mkdir [marker]",
        "seed: 1\nseed: 2",
        "[" * 10**6,
        "\0",
        'output_dir: "\\ud800"\ndata: {name: digits}',
        "output_dir: x\ndata: {name: digits}\nmodel: {hidden: [1000000000, 1000000000]}",
    ],
    ids=["alias", "tag", "twice", "nested", "null byte", "surrogate", "absurd"],
)
def test_a_hostile_configuration_is_refused_by_training(
    scripts, capsys, tmp_path, monkeypatch, text
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(text)
    named = "hidden layers [1000000000, 1000000000] does not fit" if "hidden" in text else path
    refusal(scripts["train"], capsys, named, path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n" + bytes(50)],
    ids=["nothing", "PostScript", "broken PNG"],
)
def test_a_hostile_image_is_named_by_prediction(checkpoint, scripts, capsys, tmp_path, content):
    path, out = tmp_path / "picture.png", tmp_path / "out"
    path.write_bytes(content)
    command = ("--checkpoint", checkpoint, "--out", out, "--images", path, "--device", "cpu")
    refusal(scripts["mc_predict"], capsys, path, *command)
    assert not out.exists()


def test_a_damaged_data_set_is_named_by_training(scripts, capsys, tmp_path):
    path = configuration(tmp_path)
    data = tmp_path / "set.npz"
    data.write_bytes(b"PK\x03\x04" + bytes(100))
    settings = ("--set", "data.name=npz", "--set", f"data.root={data}")
    refusal(scripts["train"], capsys, data, path, *settings)
    assert not (tmp_path / "run").exists()


REPORT = b'{"schema": "x"}'


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 10**6, REPORT, b"\xff", b"null", b'{"schema_version": 1e400}'],
    ids=["nothing", "deep", "another schema", "no text", "null", "infinite version"],
)
def test_a_hostile_report_is_named_by_comparison(scripts, capsys, tmp_path, content):
    path, plot = tmp_path / "report.json", tmp_path / "plot.png"
    path.write_bytes(content)
    refusal(scripts["compare"], capsys, path, path, path, "--plot", plot)
    assert not plot.exists()


@pytest.mark.parametrize("fails", [0, 1, 2, 3, 4])
def test_a_plot_that_cannot_be_written_keeps_the_old_one(
    scripts, capsys, tmp_path, monkeypatch, fails
):
    compare, plot = scripts["compare"], tmp_path / "plot.png"
    side, result = SimpleNamespace(name="a"), SimpleNamespace(rows=[], n=(1, 1), paired=True)
    monkeypatch.setattr(compare, "read_side", lambda *_: side)
    monkeypatch.setattr(compare, "compare_sides", lambda *_: result)
    monkeypatch.setattr(compare, "comparison_table", lambda *_: "table")
    monkeypatch.setattr(compare, "plot_differences", lambda *_: b"new")
    plot.write_bytes(b"old")
    with monkeypatch.context() as patch:
        Disk(patch, tmp_path, fails)
        assert compare.main(["a", "b", "--plot", str(plot), "--overwrite"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert plot.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [plot]
