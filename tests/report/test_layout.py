"""report.json against its published schema, and what is refused as one."""

import copy
import json

import pytest

from bayes_dc.report import ReportError, published_schema, read_report, write_report
from bayes_dc.report.layout import Report

jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked by jsonschema")


@pytest.fixture(scope="module")
def document(full_folder):
    return json.loads((full_folder / "report.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def validator():
    schema = published_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_that_of_the_code():
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= Report.model_json_schema(by_alias=True)
    text = "write it again: json.dumps of this, indent 1"
    assert published_schema() == schema, text


def test_a_report_with_every_part_fits(document, validator):
    assert list(validator.iter_errors(document)) == []
    for key, value in document.items():
        if key not in ("warnings", "nonfinite_inputs", "dropout", "infinite_nll"):
            assert value, key  # the schema was put to the test
    assert document["infinite_nll"] == 0


@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("changes", [{"labelled": False}, {"passes": 1}, {"mean_network": None}])
def test_reports_without_some_parts_fit(evaluation, tmp_path, validator, changes):
    write_report(evaluation(n=5, **changes), tmp_path / "out")
    got = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert list(validator.iter_errors(got)) == []


@pytest.mark.usefixtures("_no_pictures")
def test_reports_with_numbers_that_do_not_exist_fit(broken, tmp_path, validator):
    write_report(broken, tmp_path / "out")
    got = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert list(validator.iter_errors(got)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("n",), -1),
        (("n",), "48"),
        (("metrics", "nll", "better"), "greater"),
        (("metrics", "nll", "monte_carlo", "value"), "many"),
        (("abstention", "policy", "target"), 1.5),
        (("ood", 0, "rows", 0, "auroc"), None),
        (("surprise",), 1),
        (("schema_version",), 1),
    ],
)
def test_the_schema_refuses_what_is_wrong(document, validator, path, value):
    changed = copy.deepcopy(document)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert list(validator.iter_errors(changed))


def test_read_back(full_folder, document):
    report = read_report(full_folder / "report.json")
    assert report.n == 48
    assert (
        report.metrics["nll"].monte_carlo.value
        == document["metrics"]["nll"]["monte_carlo"]["value"]
    )
    assert report.compared[0].name == "plain"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "report.json cannot be read: No such file or directory. Name the report.json of a"),
        ("{", "report.json cannot be read: Expecting property name"),
        ("[]", "report.json has schema None, version None; this version of bayes_dc reads"),
        ('{"schema": "bayes_dc.report", "schema_version": 1}', "version 1; this version of .* 2"),
        ('{"schema": "bayes_dc.report", "schema_version": 2}', "cannot be read: created: Field"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, text):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(ReportError, match=text):
        read_report(tmp_path / "report.json")
