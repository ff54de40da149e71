"""Configurations that are meant to take all memory, time or patience."""

import re

import pytest
from damage import refused

from bayes_dc.config import MAX_BYTES, MAX_FAULTS, ConfigError, load_config
from bayes_dc.train import ModelConfig, build_model

MINIMAL = "output_dir: out\ndata: {name: digits}\n"
FULL = MAX_BYTES - len(MINIMAL) - 100


def laughs(depth):
    """Ten references to ten references to …: 10**depth values, were they followed."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, depth)]
    return "\n".join(lines)


BOMBS = {
    "a billion laughs": (laughs(9), "line 1: anchors (&) and aliases (*) are not read"),
    "a list in itself": ("a: &a [*a]", "line 1: anchors (&) and aliases (*) are not read"),
    "merges": ("a: &a {b: 1}\nc: {<<: *a}", "line 1: anchors (&) and aliases (*) are not read"),
    "10 MB of nesting": ("[" * 10**7, "larger than 128 KiB: not a configuration file"),
    "nesting by indentation": (
        "\n".join(" " * i + "a:" for i in range(400)),
        "line 16: nested deeper than 16 levels",
    ),
    "nesting by dashes": ("- " * (FULL // 2), "line 1: nested deeper than 16 levels"),
    "a key of 60 KiB": (
        "? " + "k" * 60_000 + "\n: 1",
        f"{'k' * 197}...: unknown key; the nearest valid key is",
    ),
    "a key that is a list": ("? [" + "a, " * 1000 + "a]\n: 1", "line 1: keys must be text"),
    "a tag on a key": ("!!str a: 1", "line 1: tags are not read: remove tag:yaml.org,2002:str"),
    "a tag for a binary": (
        "a: !!binary aGk=",
        "tags are not read: remove tag:yaml.org,2002:binary",
    ),
    "a tag of its own": ("a: !<tag:x,2000:y> 1", "tags are not read: remove tag:x,2000:y"),
    "a tag by a directive": (
        "%TAG ! tag:yaml.org,2002:python/\n---\na: !tuple [1]",
        "tags are not read: remove tag:yaml.org,2002:python/tuple",
    ),
    "keys that look alike": ("p: 1\n\u0440: 2", "p: unknown key; the nearest valid key is model.p"),
    "a key twice in a nested section": (
        "train: {optimizer: {lr: 1, name: adam, lr: 2}}",
        "line 1: key lr is given twice (first in line 1)",
    ),
    "a key twice, once quoted": ("seed: 1\n'seed': 2", "line 2: key seed is given twice"),
    "a surrogate": ('output_dir: "\\ud800"', "output_dir: must be a valid string"),
    "too many layers": (
        f"model: {{hidden: [{'1,' * 5000}1]}}",
        "model.hidden: Tuple should have at most 1000 items",
    ),
}


@pytest.mark.parametrize(("text", "message"), BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_with_little_memory_and_time(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert message in refused(lambda: load_config(path), "ConfigError", path, mib=200, seconds=10)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.mkdir ['{marker}']",
        "!!python/object/new:os.mkdir ['{marker}']",
        "!!python/name:os.mkdir",
        "!!python/module:os",
        "!<tag:yaml.org,2002:python/object/apply:os.mkdir> ['{marker}']",
    ],
)
@pytest.mark.parametrize("place", ["x: {tag}", "{tag}: 1", "- {tag}", "seed: [{tag}]"])
def test_tags_run_nothing_wherever_they_stand(tmp_path, tag, place):
    marker, path = tmp_path / "marker", tmp_path / "run.yaml"
    path.write_text(place.replace("{tag}", tag.replace("{marker}", str(marker))))
    with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}: line 1: "):
        load_config(path)
    path.write_text(MINIMAL)
    with pytest.raises(ConfigError, match="--set seed="):
        load_config(path, [f"seed={tag.replace('{marker}', str(marker))}"])
    assert not marker.exists()


@pytest.mark.parametrize("unit", ["k{i}: 1\n", "output_dir{i}: 1\n"], ids=["far", "near"])
def test_thousands_of_faults_are_counted_not_listed(tmp_path, unit):
    path = tmp_path / "run.yaml"
    text = "".join(unit.replace("{i}", str(i)) for i in range(5000))
    path.write_text(MINIMAL + text)
    found = refused(lambda: load_config(path), "ConfigError", path, mib=200, seconds=10)
    assert f"\n{path}: and {5000 - MAX_FAULTS} more faults" in found
    assert found.count("unknown key") == MAX_FAULTS


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_an_endless_file_is_no_configuration(path):
    refused(lambda: load_config(path), "ConfigError", path, seconds=10)


def test_a_key_of_many_parts_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    override = ".".join(["a"] * 10_000) + "=1"
    refused(lambda: load_config(path, [override]), "ConfigError", path, seconds=10)


NETWORKS = [
    ({"hidden": [2**62, 2**62]}, (1, 8, 8), "hidden layers [4611686018427387904, "),
    ({"hidden": [10**7, 10**7]}, (1, 8, 8), "hidden layers [10000000, 10000000] does not"),
    ({"hidden": [2**70] * 20}, (1, 8, 8), "1180591620717411303424, …] does not fit in memory"),
    ({"name": "cnn"}, (3, 2**17, 2**17), "cnn for images [3, 131072, 131072] does not fit"),
]


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    NETWORKS,
    ids=["beyond all memory", "800 TB", "no machine number", "large images"],
)
def test_networks_larger_than_memory_are_refused(settings, shape, message):
    def build():
        build_model(ModelConfig.model_validate(settings), shape, 10)

    text = refused(build, "ValueError", message)
    assert "smaller" in text
