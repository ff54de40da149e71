"""Thousands of damaged checkpoints and configurations; ``make soak`` reads 120 000."""

import subprocess
import sys
from pathlib import Path

import fuzz
import pytest


@pytest.mark.parametrize("target", ["checkpoint", "config"])
def test_random_damage_ends_in_the_named_error(tmp_path, target):
    assert fuzz.run(target, tmp_path / "c", 1000, "default") > 500


@pytest.mark.slow
@pytest.mark.parametrize("target", ["checkpoint", "config"])
def test_more_random_damage_in_bounded_memory(tmp_path, target):
    command = [sys.executable, fuzz.__file__, target, str(tmp_path / "c"), "60000", "soak"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[1]) > 30_000


def test_a_crash_would_be_found(tmp_path, monkeypatch):
    """Or the tests above would show nothing."""

    def crash(path):
        raise KeyError("x")

    monkeypatch.setattr(fuzz, "load_config", crash)
    with pytest.raises(fuzz.Found, match="input 0: KeyError: 'x'"):
        fuzz.run("config", tmp_path, 3, "default")


def test_a_message_that_names_no_file_would_be_found(tmp_path, monkeypatch):
    def nameless(path):
        raise fuzz.ConfigError("something is wrong")

    monkeypatch.setattr(fuzz, "load_config", nameless)
    with pytest.raises(fuzz.Found, match="input 0: the message is 'something is wrong'"):
        fuzz.run("config", tmp_path, 3, "default")
