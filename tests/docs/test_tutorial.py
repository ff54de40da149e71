"""docs/tutorial.md does what it says, on generated images; its commands and settings are real."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bayes_dc
from bayes_dc.config import load_config

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
CLASSES = ("bars", "checks", "plain")
COUNTS = {"train": 16, "test": 8}  # images of a class


def blocks(language):
    """Fenced blocks of a language, with the number of lines above each."""
    lines = TUTORIAL.read_text(encoding="utf-8").splitlines(keepends=True)
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    pairs = zip(fences[::2], fences[1::2], strict=True)
    return [(a + 1, "".join(lines[a + 1 : b])) for a, b in pairs if lines[a] == f"```{language}\n"]


def draw(name, rng):
    """A picture of a class, in a colour of its own: easy, but not constant."""
    rows, columns = np.indices((40, 48))
    phase, width = rng.integers(8), 4 + rng.integers(3)
    shape = {
        "bars": (rows + phase) // width % 2,
        "checks": ((rows + phase) // width + columns // width) % 2,
        "plain": np.zeros_like(rows),
    }[name]
    colours = rng.integers(0, 256, (2, 3))
    noise = rng.integers(0, 20, (40, 48, 3))
    return np.clip(colours[shape] + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with images/{train,test}/<class>/*.png."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        for name in CLASSES:
            place = folder / "images" / split / name
            place.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw(name, rng)).save(place / f"{name}{i}.png")
    return folder


@pytest.fixture(scope="module")
def reader(images):
    """Names of the tutorial's program after it has run in the reader's folder."""
    names = {"__name__": "tutorial"}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.chdir(images)
        for line, code in blocks("python"):
            exec(compile("\n" * line + code, str(TUTORIAL), "exec"), names)
    return names


def test_the_program_writes_a_report_of_the_readers_images(reader, images):
    document = json.loads((images / "report" / "report.json").read_text(encoding="utf-8"))
    assert document["n"] == COUNTS["test"] * len(CLASSES)
    assert document["classes"] == list(CLASSES)
    want = bayes_dc.metrics.accuracy(reader["prediction"].mean, reader["labels"]).item()
    assert document["metrics"]["accuracy"]["monte_carlo"]["value"] == want
    with (images / "report" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [Path(path).name for path, _ in reader["test"].samples]
    assert [row["decision"] == "accept" for row in rows] == reader["accepted"].tolist()
    assert (images / "report" / "report.html").stat().st_size > 10_000


def test_only_the_named_stage_draws_masks(reader):
    active = reader["prediction"].p_effective
    assert active
    assert all(name.startswith("layer4.") for name in active)
    assert reader["prediction"].T == 30
    assert reader["prediction"].mutual_information.min() >= 0


def test_what_was_saved_loads_into_the_plain_network(reader, images, monkeypatch):
    import torchvision

    monkeypatch.chdir(images)
    plain = torchvision.models.resnet18(num_classes=len(CLASSES)).eval()
    plain.load_state_dict(torch.load(images / "tuned.pt", weights_only=True))
    x = torch.stack([reader["test"][i][0] for i in range(4)])
    assert torch.equal(plain(x), reader["model"](x))


def test_the_commands_exist_and_take_these_options(images, monkeypatch):
    """Every line that begins with bayes-dc- is read by that command's own parser."""
    entries = dict(
        re.findall(r'^(bayes-dc-\w+) = "bayes_dc\.commands\.(\w+):main"$', PYPROJECT, re.MULTILINE)
    )
    lines = [line for _, text in blocks("") for line in text.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("bayes-dc-")]
    assert {command for command, *_ in commands} == set(entries)
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    for command, *arguments in commands:
        module = __import__(entries[command])
        assert Path(module.__file__).parent == REPOSITORY / "scripts"
        assert module.parse_arguments(arguments)
        monkeypatch.delitem(sys.modules, entries[command])


def test_the_configuration_is_valid_and_finds_the_images(images, monkeypatch):
    from bayes_dc.datasets import load_dataset

    [(_, text)] = blocks("yaml")
    (images / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(images)
    data = load_dataset(load_config(Path("mine.yaml")).data)
    assert data.class_names == CLASSES
    assert len(data.test) == COUNTS["test"] * len(CLASSES)
