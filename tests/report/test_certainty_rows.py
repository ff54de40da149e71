"""The areas of R_cc, R_iu and UA in a report, and what it says of active dropout."""

import dataclasses
import json

import pytest

from bayes_dc import metrics as m
from bayes_dc.report import write_report
from bayes_dc.report.certainty import certainty_rows
from bayes_dc.report.text import share


def test_rows_are_the_metric(evaluation):
    ev = evaluation()
    rows = certainty_rows(ev)
    assert [(row.normalisation, row.uncertainty) for row in rows] == [
        *(("log_classes", "entropy"), ("log_classes", "mutual_information")),
        *(("test_set", "entropy"), ("test_set", "mutual_information")),
    ]
    right = m.correct(ev.prediction.mean, ev.labels)
    for row in rows:
        uncertainty = getattr(ev.prediction, row.uncertainty)
        options = {"classes": 4, "normalisation": row.normalisation}
        areas = m.certainty_curves(uncertainty, right, **options).areas()
        assert {"r_cc": row.r_cc, "r_iu": row.r_iu, "ua": row.ua} == areas
        for of in areas:
            want = m.bootstrap_metric(m.certainty_area, uncertainty, right, of=of, **options)
            assert getattr(row, f"{of}_interval") == (want.low, want.high)
            assert want.low < want.high
    assert rows[0].limits == "0 … log C"
    assert rows[2].limits.endswith("only to compare with published figures")


def test_without_labels_or_finite_predictions(evaluation, broken):
    assert certainty_rows(evaluation(labelled=False)) == []
    assert len(certainty_rows(broken)) == 4


@pytest.mark.usefixtures("_no_pictures")
def test_written_into_the_report(evaluation, tmp_path):
    ev = evaluation()
    dropout = {"features.3": 0.25, "F.dropout call 0": 0.5}
    ev = dataclasses.replace(ev, prediction=dataclasses.replace(ev.prediction, dropout=dropout))
    page = write_report(ev, tmp_path / "report").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert document["dropout"] == dropout
    want = [dataclasses.asdict(row) for row in certainty_rows(ev)]
    assert document["certainty"] == json.loads(json.dumps(want))  # tuples are lists there
    low, high = (share(end) for end in want[0]["ua_interval"])
    assert f"<small>{low} to {high}</small>" in page
    assert "p of dropout features.3" in page
    assert "weights and\nactivations dropped" in page
    assert "only to compare with published figures" in page
