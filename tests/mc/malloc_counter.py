"""Counts what a piece of Python asks the C library for, in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LARGE = 4096
"""Bytes of a request that is counted; smaller ones are Python's and torch's objects."""

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>

static atomic_int on, mallocs, aligned, maps;
static atomic_size_t largest;
static char early[1 << 16];   /* what dlsym asks for before it has found calloc */
static size_t early_used;

static void *(*real_malloc)(size_t), *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t), *(*real_aligned)(size_t, size_t);
static void *(*real_memalign)(size_t, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_posix)(void **, size_t, size_t);
static void (*real_free)(void *);

static void note(atomic_int *counter, size_t bytes, size_t least) {
    if (!atomic_load(&on) || bytes < least) return;
    atomic_fetch_add(counter, 1);
    if (bytes > atomic_load(&largest)) atomic_store(&largest, bytes);
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }
static void *take_early(size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if (early_used + bytes > sizeof early) return NULL;
    early_used += bytes;
    return early + early_used - bytes;
}
#define FIND(p, name) do { if (!p) p = dlsym(RTLD_NEXT, name); } while (0)

void *malloc(size_t n) {
    static int finding;
    if (!real_malloc) {
        if (finding) return take_early(n);
        finding = 1; FIND(real_malloc, "malloc"); finding = 0;
    }
    note(&mallocs, n, LARGE);
    return real_malloc(n);
}
void *calloc(size_t a, size_t b) {
    static int finding;
    if (!real_calloc) {
        if (finding) { void *p = take_early(a * b); if (p) memset(p, 0, a * b); return p; }
        finding = 1; FIND(real_calloc, "calloc"); finding = 0;
    }
    note(&mallocs, a * b, LARGE);
    return real_calloc(a, b);
}
void free(void *p) {
    if (is_early(p)) return;
    FIND(real_free, "free");
    real_free(p);
}
void *realloc(void *p, size_t n) {
    if (is_early(p)) { void *q = malloc(n); if (q) memcpy(q, p, n); return q; }
    FIND(real_realloc, "realloc");
    note(&mallocs, n, LARGE);
    return real_realloc(p, n);
}
int posix_memalign(void **p, size_t a, size_t n) {
    FIND(real_posix, "posix_memalign");
    note(&aligned, n, 1);
    return real_posix(p, a, n);
}
void *aligned_alloc(size_t a, size_t n) {
    FIND(real_aligned, "aligned_alloc");
    note(&aligned, n, 1);
    return real_aligned(a, n);
}
void *memalign(size_t a, size_t n) {
    FIND(real_memalign, "memalign");
    note(&aligned, n, 1);
    return real_memalign(a, n);
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    FIND(real_mmap, "mmap");
    note(&maps, n, 1);
    return real_mmap(at, n, prot, flags, fd, offset);
}
void counter_start(void) {
    atomic_store(&mallocs, 0); atomic_store(&aligned, 0); atomic_store(&maps, 0);
    atomic_store(&largest, 0); atomic_store(&on, 1);
}
void counter_stop(void) { atomic_store(&on, 0); }
int counter_mallocs(void) { return atomic_load(&mallocs); }
int counter_aligned(void) { return atomic_load(&aligned); }
int counter_maps(void) { return atomic_load(&maps); }
size_t counter_largest(void) { return atomic_load(&largest); }
"""
_PROGRAM = """
import ctypes, json, sys
counter = ctypes.CDLL(None)
counter.counter_largest.restype = ctypes.c_size_t
def counted(function, times):
    counter.counter_start()
    for _ in range(times):
        function()
    counter.counter_stop()
    return {{
        "malloc": counter.counter_mallocs(),
        "aligned": counter.counter_aligned(),
        "mmap": counter.counter_maps(),
        "largest": counter.counter_largest(),
    }}
{program}
print(json.dumps(report))
"""


def build(folder: Path) -> Path:
    """The shared library; skips the test where there is no C compiler or no LD_PRELOAD."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler (cc) and LD_PRELOAD")
    source, library = folder / "counter.c", folder / "counter.so"
    source.write_text(_SOURCE)
    flags = ["-O2", "-shared", "-fPIC", f"-DLARGE={LARGE}"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library


def count(library: Path, program: str) -> dict:
    """What ``program`` puts into ``report``; it has ``counted(function, times)`` for that.

    PYTHONMALLOC=malloc: Python's own allocator maps memory for small objects whenever it likes.
    """
    here = Path(__file__).resolve()
    paths = os.pathsep.join([str(here.parents[2]), str(here.parent)])
    environment = dict(os.environ, LD_PRELOAD=str(library), PYTHONMALLOC="malloc", PYTHONPATH=paths)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(program=program)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
