"""scripts/compare.py from two reports to a table and a plot."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bayes_dc.report import writer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare.py"


@pytest.fixture
def compare(monkeypatch):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def reports(predict, monkeypatch, capsys):
    """Reports of two seeds on the same inputs."""
    monkeypatch.setattr(writer, "draw_charts", lambda *_: {})
    monkeypatch.setattr(writer, "draw_grids", lambda *_: {})
    folders = [predict("--limit", "40", "--seed", s, out=f"seed{s}")[1] for s in "12"]
    capsys.readouterr()
    return [str(folder / "report.json") for folder in folders]


def test_table_and_plot(compare, reports, tmp_path, capsys):
    plot = tmp_path / "gap.png"
    assert compare.main([*reports, "--plot", str(plot), "--names", "one", "two"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "metric one two difference 95 % interval two is"
    assert lines[1].startswith("Accuracy")
    assert lines[-2] == "the same 40 inputs, paired bootstrap; 1000 resamples"
    assert lines[-1] == f"plot {plot}"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert compare.main([*reports, "--plot", str(plot)]) == 2
    error = f"error: {plot} exists and is kept. Choose another --plot or pass --overwrite."
    assert capsys.readouterr().err.strip() == error
    assert compare.main([*reports, "--plot", str(plot), "--overwrite"]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert "checkpoint (A)" in header
    assert header.endswith("checkpoint (B) is")


def test_other_inputs_are_said(compare, reports, predict, tmp_path, capsys):
    _, folder = predict("--limit", "25", out="fewer")
    capsys.readouterr()
    plot = ["--plot", str(tmp_path / "x.png")]
    assert compare.main([reports[0], str(folder / "report.json"), *plot]) == 0
    said = "other inputs (40 and 25), each resampled by itself; 1000 resamples"
    assert said in capsys.readouterr().out


def test_a_report_without_its_predictions_is_refused(compare, reports, tmp_path, capsys):
    lonely = tmp_path / "lonely" / "report.json"
    lonely.parent.mkdir()
    shutil.copy(reports[0], lonely)
    assert compare.main([reports[0], str(lonely), "--plot", str(tmp_path / "x.png")]) == 2
    error = capsys.readouterr().err
    assert "predictions.csv cannot be read: No such file or directory" in error
    assert not (tmp_path / "x.png").exists()


def test_the_command_runs_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, str(SCRIPT), "a.json", "b.json"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, **options)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a.json cannot be read: No such file")
