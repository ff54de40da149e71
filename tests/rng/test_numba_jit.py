"""Compiled kernels on disk: never stale, and not needed."""

import pytest
from numba.core import caching

from bayes_dc.rng import numba_jit


def one(value):
    """Something to compile."""
    return value + 1


def test_an_edited_source_is_compiled_anew(tmp_path):
    """The key of the cache follows the sources beside a kernel, not only the kernel's own file."""
    (tmp_path / "_cpu_part.py").write_text("STEP = 1")
    before = numba_jit._fingerprint(tmp_path)
    numba_jit._fingerprint.cache_clear()
    assert numba_jit._fingerprint(tmp_path) == before
    (tmp_path / "_cpu_part.py").write_text("STEP = 2")
    numba_jit._fingerprint.cache_clear()
    assert numba_jit._fingerprint(tmp_path) != before


def test_the_cache_on_disk_is_keyed_by_the_sources(tmp_path, monkeypatch):
    """A second process loads what the first compiled; with other sources it does not."""
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))

    def hits():
        kernel = numba_jit.compiled(one)
        assert kernel(1) == 2
        return sum(kernel.stats.cache_hits.values())

    assert hits() == 0
    assert hits() == 1
    monkeypatch.setattr(numba_jit, "_fingerprint", lambda folder: "edited")
    assert hits() == 0


def test_without_a_folder_kernels_still_compile(monkeypatch):
    """A read-only installation without a home folder compiles in each process."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    kernel = numba_jit.compiled(one)
    assert kernel(1) == 2
    assert kernel.stats.cache_path is None


def test_other_refusals_of_the_cache_are_not_hidden(monkeypatch):
    """Only the missing folder is expected."""

    def refuse(function):
        raise RuntimeError("the cache is broken")

    monkeypatch.setattr(numba_jit, "_SourceCache", refuse)
    with pytest.raises(RuntimeError, match="the cache is broken"):
        numba_jit.compiled(one)
