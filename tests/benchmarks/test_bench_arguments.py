"""Arguments of the program that cannot work are refused before anything is measured."""

import pytest

from benchmarks import records
from benchmarks import run as bench_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "nowhere.yaml"], "--shapes must name a file; nowhere.yaml is none"),
        (["--device", "cuda"], "--device cuda needs a CUDA GPU that torch can use"),
    ],
)
def test_what_cannot_run_is_refused_at_once(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks.run", *arguments])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench_run.main()
    assert message in capsys.readouterr().err


def test_a_folder_is_made_or_checked_before_anything_is_measured(tmp_path):
    records.check_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "cpu.csv").write_text("other,columns\n")
    with pytest.raises(SystemExit, match=r"cpu\.csv"):
        records.check_folder(tmp_path)
