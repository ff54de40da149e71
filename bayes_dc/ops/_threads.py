"""Threads of the CPU kernels.

A pool of our own: it works after a fork and for several Python threads at once, which Numba's
threading layers do not promise. Kernels take their tasks from a shared counter, so that any number
of threads does all of them.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a child has no threads


def share(work: Callable[[], None], threads: int) -> None:
    """Run ``work`` on up to ``threads`` threads, the caller's among them.

    ``work`` takes tasks until none is left: on a busy machine the caller may do them all.
    """
    helpers = []
    try:
        for _ in range(threads - 1):
            helpers.append(workers().submit(work))  # noqa: PERF401, those before a failure count
    except RuntimeError:  # no more threads: none left, or the interpreter is about to end
        pass
    try:
        work()
    finally:
        for helper in helpers:
            if not helper.cancel():  # one that has not begun would find no task left
                helper.result()


def workers() -> ThreadPoolExecutor:
    """The pool of this process, made when first needed."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bayes_dc"))
    return _pool[0]
