"""The reference is current, links lead somewhere, README says what runs and what was measured."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import bayes_dc

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "bayes_dc/**/*.md", "configs/*.md", "data/README.md")
    for page in REPOSITORY.glob(pattern)
)


@pytest.fixture(scope="module")
def make_api():
    """docs/make_api.py as a module."""
    spec = importlib.util.spec_from_file_location("make_api", REPOSITORY / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_docstrings_say(make_api):
    """Run `make docs` after a change of a public name or its docstring."""
    assert make_api.PAGE.read_text(encoding="utf-8") == make_api.page()


def test_the_reference_has_every_public_name(make_api):
    text = make_api.page()
    for package in ("", "models", "metrics", "datasets"):
        module = getattr(bayes_dc, package) if package else bayes_dc
        for name in module.__all__:
            assert f"\n### `{module.__name__}.{name}`\n" in text
    for package in make_api.IN_A_LINE:
        module = importlib.import_module(package)
        for name in module.__all__:
            assert f"\n| `{name}` |" in text


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        ("Words of ``x``, see\n:func:`bayes_dc.f`.", "Words of `x`, see\n`bayes_dc.f`."),
        ("A formula::\n\n    y = x\n\nSo.", "A formula:\n\n```text\ny = x\n```\n\nSo."),
        ("Do.\n\nArgs:\n    x: A, or\n        b.", "Do.\n\n**Args**\n\n* `x`: A, or\n    b."),
        ("Do.\n\nReturns:\n    a: b.", "Do.\n\n**Returns**\n\na: b."),
        ("Do.\n\nExample:\n    >>> 1", "Do.\n\n**Example**\n\n```python\n>>> 1\n```\n"),
    ],
    ids=["words", "formula", "entries", "prose", "doctest"],
)
def test_a_docstring_as_markdown(make_api, docstring, page):
    lines = "\n".join(make_api.markdown(docstring))
    assert re.sub(r"\n{3,}", "\n\n", lines) == page


def anchors(page):
    """Anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_readme_lists_the_documents():
    for name in ("docs/tutorial.md", "docs/api.md", "docs/measured.md", "DESIGN.md"):
        assert f"({name})" in README


def figures(text):
    """Numbers as they are written; thousands may be set apart."""
    return re.findall(r"\d+(?:[  ]\d{3})*(?:\.\d+)?", text)


def test_every_figure_of_readme_stands_in_the_full_tables():
    """Its summary of what was measured may leave out, not add or alter."""
    measured = set(figures((REPOSITORY / "docs" / "measured.md").read_text(encoding="utf-8")))
    section = README.split("\n## Measured\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    for row in rows:
        assert not set(figures(re.sub(r"\]\([^)]*\)", "]", row))) - measured, row


@pytest.fixture
def _restored():
    with torch.random.fork_rng():
        yield


@pytest.mark.usefixtures("_restored")
def test_the_examples_of_readme_run():
    """Every block of Python, in the order of the page, with the names of those above."""
    names = {"__name__": "readme"}
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["prediction"].T == 20
    assert len(names["label_next"]) == 10
