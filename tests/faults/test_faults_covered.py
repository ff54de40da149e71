"""Lists beside the tests of faults: what is tried elsewhere exists, what is left out says why."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+")


def rows_of(path):
    """Cells of the table in a list, without its head; none where there is no such file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("row", rows_of(FOLDER / "COVERED.md"), ids=lambda row: row[0])
def test_a_test_that_is_named_exists(row):
    source, test, what = row
    assert SOURCE.fullmatch(source)
    assert what
    path, _, name = test.strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_does_not_apply_has_a_reason():
    for source, *reason in rows_of(FOLDER.parent / "NOT_APPLICABLE.md"):
        assert SOURCE.fullmatch(source)
        assert len(" ".join(reason)) > 20, source
