"""Every file of a report, read back and compared with the numbers in memory."""

import base64
import csv
import dataclasses
import errno
import io
import json
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayes_dc.report import ReportError, check_output, write_report
from bayes_dc.report.tables import metric_rows
from bayes_dc.report.text import number, share

HOSTILE = ('<script>alert("1")</script>', 'a,b"c', "=1+1\n2", "猫 & $x_1$ {{ 7*7 }}")


class Page(HTMLParser):
    """Text, tags and attributes of a page; raises on tags that do not match."""

    VOID = ("meta", "img", "br", "source")

    def __init__(self, html):
        super().__init__()
        self.words, self.tags, self.attributes, self.open = [], set(), [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).replace("\u00a0", "_").split())


def read_csv(folder):
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_json(folder):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads((folder / "report.json").read_text("utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module")
def written(evaluation, tmp_path_factory):
    """An evaluation and the folder of its report."""
    folder = tmp_path_factory.mktemp("report")
    moment = datetime(2030, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    write_report(evaluation(), folder / "out", created=moment)
    return evaluation(), folder / "out"


def test_the_folder_holds_exactly_the_files_of_a_report(evaluation, tmp_path):
    page = write_report(evaluation(n=4), tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    basic = ("reliability", "mutual_information", "risk_coverage", "most_certain", "least_certain")
    want = {"report.html", "report.json", "predictions.csv", *(f"{name}.png" for name in basic)}
    assert {p.name for p in (tmp_path / "out").iterdir()} == want
    assert {p.name for p in tmp_path.iterdir()} == {"out"}


def test_csv_holds_every_number_exactly(written):
    ev, folder = written
    rows = read_csv(folder)
    assert len(rows) == 60
    names = ["confidence", "entropy", "expected_entropy", "mutual_information"]
    probs = [f"prob_{name}" for name in ev.class_names]
    assert list(rows[0]) == ["id", "label", "predicted", *names, *probs]
    for i, row in enumerate(rows):
        assert row["id"] == f"input {i}"
        assert row["label"] == ev.class_names[ev.labels[i]]
        assert row["predicted"] == ev.class_names[ev.prediction.mean[i].argmax()]
        for name in names:
            assert float(row[name]) == getattr(ev.prediction, name)[i].item()
        assert [float(row[p]) for p in probs] == ev.prediction.mean[i].tolist()


def test_json_holds_every_number_exactly(written):
    ev, folder = written
    got = read_json(folder)
    assert (got["schema"], got["schema_version"]) == ("bayes_dc.report", 2)
    assert got["created"] == "2030-01-02T03:04:05+00:00"
    assert (got["n"], got["n_in_metrics"], got["labels_known"]) == (60, 60, True)
    assert got["run"] == {"T": 8, "seed": 3, "device": "cpu", "batch_size": 7}
    assert got["p_effective"] == {"1": 0.5, "3": 51 / 512}
    assert got["data"] == ev.data
    assert got["checkpoint"] == ev.checkpoint
    assert got["environment"] == ev.environment
    assert got["classes"] == list(ev.class_names)
    for row in metric_rows(ev):
        metric = got["metrics"][row.key]
        assert metric["definition"] == row.definition
        assert (metric["range"], metric["better"], metric["n"]) == (row.range, row.direction, 60)
        for key in ("monte_carlo", "mean_network", "difference"):
            estimate = getattr(row, key)
            if estimate is None:
                assert metric[key] is None
            else:
                assert metric[key] == {"value": estimate.value} | vars(estimate.interval)
    assert got["cost"] == {
        "seconds": 1.5,
        "peak_memory_bytes": 3 * 2**20,
        "peak_memory_kind": "made up",
        "ms_per_example": 25.0,
        "example_passes_per_second": 320.0,
    }
    assert sum(got["reliability"]["count"]) == 60
    empty = [i for i, n in enumerate(got["reliability"]["count"]) if n == 0]
    assert empty
    assert all(got["reliability"]["accuracy"][i] is None for i in empty)
    for listed in got["most_certain"] + got["least_certain"]:
        i = listed["index"]
        assert listed["id"] == f"input {i}"
        assert listed["entropy"] == ev.prediction.entropy[i].item()
        assert listed["confidence"] == ev.prediction.confidence[i].item()


def test_html_shows_the_numbers_and_needs_nothing_else(written):
    ev, folder = written
    html = (folder / "report.html").read_text("utf-8")
    page = Page(html)
    for row in metric_rows(ev):
        show = share if row.unit == "share" else number
        assert row.title in page.text
        assert row.definition in page.text
        for estimate in (row.monte_carlo, row.mean_network):
            if estimate is not None:
                low, high = show(estimate.interval.low), show(estimate.interval.high)
                text = f"{show(estimate.value)} {low} to {high}".replace("\u00a0", "_")
                assert text in page.text
    assert not {"link", "iframe", "object"} & page.tags
    assert html.count("<script") == 1
    for name, value in page.attributes:
        if name in ("src", "srcset"):
            assert value.startswith("data:image/png;base64,")
        assert name != "style"
        assert not name.startswith("on")
    links = [value for name, value in page.attributes if name == "href"]
    ids = {value for name, value in page.attributes if name == "id"}
    assert {link.removeprefix("#") for link in links} <= ids
    assert "://" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)
    assert ("name", "viewport") in page.attributes


def test_every_picture_decodes(written):
    html = (written[1] / "report.html").read_text("utf-8")
    embedded = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)
    files = [path.read_bytes() for path in written[1].glob("*.png")]
    assert len(files) == 5
    charts = [base64.b64decode(text) for text in embedded]
    assert (written[1] / "reliability.png").read_bytes() in charts
    assert (written[1] / "mutual_information.png").read_bytes() in charts
    for png in files + charts:
        with Image.open(io.BytesIO(png)) as picture:
            assert picture.format == "PNG"
            picture.load()


def test_thumbnails_are_the_inputs(written):
    ev, folder = written
    html = (folder / "report.html").read_text("utf-8")
    first = read_json(folder)["look_first"][0]["inputs"][0]
    pattern = rf'<img src="data:image/png;base64,([^"]+)" alt="input {first["id"]}">'
    with Image.open(io.BytesIO(base64.b64decode(re.search(pattern, html)[1]))) as picture:
        assert np.array_equal(np.asarray(picture), ev.image(first["index"]).squeeze(2))


@pytest.mark.usefixtures("_no_pictures")
def test_hostile_names_are_text_everywhere(evaluation, tmp_path):
    ids = tuple(f"{HOSTILE[i % 4]}{i}" for i in range(60))
    ev = evaluation(class_names=HOSTILE, ids=ids)
    html = write_report(ev, tmp_path / "out").read_text("utf-8")
    page = Page(html)
    assert html.count("<script") == 1  # ours
    assert "49" not in re.sub(r"\d+\.\d+|base64,[^\"]+", "", page.text).split()  # 7*7 was not run
    assert '<script>alert("1")</script>' in page.text
    rows = read_csv(tmp_path / "out")
    assert tuple(row["id"] for row in rows) == ids
    assert [row["label"] for row in rows] == [HOSTILE[i] for i in ev.labels]
    assert all(f"prob_{name}" in rows[0] for name in HOSTILE)
    assert read_json(tmp_path / "out")["classes"] == list(HOSTILE)


def test_without_labels_the_report_says_so_and_leaves_the_rest_out(evaluation, tmp_path):
    ev = evaluation(labelled=False)
    html = write_report(ev, tmp_path / "out").read_text("utf-8")
    text = "The labels of these inputs are not known or not used: accuracy, negative"
    assert text in Page(html).text
    got = read_json(tmp_path / "out")
    assert any(warning.startswith(text) for warning in got["warnings"])
    assert list(got["metrics"]) == ["entropy", "expected_entropy", "mutual_information"]
    assert got["reliability"] is None
    assert got["review"] == []
    assert not (tmp_path / "out" / "reliability.png").exists()
    assert {row["label"] for row in read_csv(tmp_path / "out")} == {""}
    assert "Accuracy" not in Page(html).text


def test_inputs_without_a_prediction_are_listed_not_hidden(broken, tmp_path):
    html = write_report(broken, tmp_path / "out").read_text("utf-8")
    got, text = read_json(tmp_path / "out"), Page(html).text
    assert (got["n"], got["n_in_metrics"]) == (60, 58)
    assert got["nonfinite_inputs"] == ["input 2"]
    assert got["warnings"][0] == "1 inputs hold NaN or infinite values: input 2."
    right = (broken.prediction.predicted == broken.labels)[broken.usable].sum().item()
    want = (
        "2 of 60 inputs have no finite prediction and are in no metric: input 2, input 5. "
        f"Counted as wrong they would make the accuracy {right / 60:.4f}."
    )
    assert got["warnings"][1] == want
    assert want in text
    assert "No finite prediction (2)" in text
    rows = read_csv(tmp_path / "out")
    assert rows[2]["predicted"] == ""
    assert math.isnan(float(rows[2]["confidence"]))
    assert len(rows) == 60


def test_a_report_without_any_finite_prediction_is_written(evaluation, tmp_path):
    ev = evaluation(n=3)
    nan = dataclasses.replace(ev.prediction, mean=torch.full_like(ev.prediction.mean, math.nan))
    html = write_report(dataclasses.replace(ev, prediction=nan), tmp_path / "out").read_text(
        "utf-8"
    )
    got = read_json(tmp_path / "out")
    assert got["metrics"] == {}
    assert got["summary"] == {"knows": [], "doubts": [], "actions": []}
    assert "3 of 3 inputs have no finite prediction" in Page(html).text


@pytest.mark.usefixtures("_no_pictures")
def test_infinite_nll_is_shown(evaluation, tmp_path):
    ev = evaluation(n=4)
    mean = torch.eye(4, dtype=torch.float64)[(ev.labels + torch.tensor([0, 0, 0, 1])) % 4]
    ev = dataclasses.replace(ev, prediction=dataclasses.replace(ev.prediction, mean=mean))
    html = write_report(ev, tmp_path / "out").read_text("utf-8")
    got = read_json(tmp_path / "out")
    assert got["metrics"]["nll"]["monte_carlo"]["value"] == "inf"
    assert got["infinite_nll"] == 1
    text = "1 inputs gave their label probability 0: the negative log-likelihood is infinite"
    assert text in Page(html).text
    assert "∞" in Page(html).text


@pytest.mark.usefixtures("_no_pictures")
def test_one_pass_is_called_a_draw(evaluation, tmp_path):
    html = write_report(evaluation(n=4, passes=1), tmp_path / "out").read_text("utf-8")
    assert "T = 1 is a single random draw of the network, not a mean" in Page(html).text


def test_two_runs_differ_only_in_time_and_cost(evaluation, tmp_path):
    ev = evaluation(n=8)
    slow = dataclasses.replace(ev, cost=dataclasses.replace(ev.cost, seconds=9.0))
    write_report(ev, tmp_path / "a", created=datetime(2030, 1, 1, tzinfo=UTC))
    write_report(slow, tmp_path / "b", created=datetime(2031, 1, 1, tzinfo=UTC))
    for path in (tmp_path / "a").iterdir():
        other = tmp_path / "b" / path.name
        if path.suffix in (".csv", ".png"):
            assert path.read_bytes() == other.read_bytes()
    one, two = read_json(tmp_path / "a"), read_json(tmp_path / "b")
    assert [key for key in one if one[key] != two[key]] == ["created", "cost"]


def test_a_report_is_kept_unless_overwritten(evaluation, tmp_path):
    write_report(evaluation(n=4), tmp_path / "out")
    with pytest.raises(ReportError, match=r"is not empty and is kept"):
        write_report(evaluation(n=4, seed=1), tmp_path / "out")
    with pytest.raises(ReportError, match=r"is not empty and is kept"):
        check_output(tmp_path / "out")
    check_output(tmp_path / "out", overwrite=True)
    write_report(evaluation(n=4, labelled=False), tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "reliability.png").exists()


@pytest.mark.parametrize("method", ["write_text", "write_bytes"])
def test_a_full_disk_leaves_the_old_report(evaluation, tmp_path, monkeypatch, method):
    write_report(evaluation(n=4), tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}

    def full(self, data, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, method, full)
    with pytest.raises(OSError, match="No space left on device"):
        write_report(evaluation(n=4, seed=1), tmp_path / "out", overwrite=True)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
