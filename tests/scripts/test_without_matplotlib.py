"""Commands that write reports or plots, where matplotlib is not installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bayes_dc.report import ReportError, check_output, writer

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MISSING = "matplotlib is needed to draw plots and is not installed: pip install matplotlib"


@pytest.fixture
def _no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)


@pytest.mark.usefixtures("_no_matplotlib")
def test_mc_predict_refuses_before_it_predicts(predict, monkeypatch, mc_predict, capsys):
    monkeypatch.setattr(mc_predict, "load_model", lambda *_: pytest.fail("it went on"))
    code, folder = predict("--limit", "4")
    assert code == 2
    assert capsys.readouterr().err == f"error: {MISSING}\n"
    assert not folder.exists()


@pytest.mark.usefixtures("_no_matplotlib")
def test_a_programs_report_is_refused_early_too(tmp_path):
    with pytest.raises(ReportError) as error:
        check_output(tmp_path / "report")
    assert str(error.value) == MISSING


def test_compare_prints_its_table_and_refuses_the_plot(predict, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(writer, "draw_charts", lambda *_: {})
    monkeypatch.setattr(writer, "draw_grids", lambda *_: {})
    report = predict("--limit", "20")[1] / "report.json"
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    spec = importlib.util.spec_from_file_location("compare", SCRIPTS / "compare.py")
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    capsys.readouterr()
    plot = tmp_path / "gap.png"
    assert compare.main([str(report), str(report), "--plot", str(plot)]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("metric")
    assert printed.err == f"error: {MISSING}\n"
    assert not plot.exists()
