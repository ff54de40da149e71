"""Which tests can run where."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_configure() -> None:
    """Side by side (pytest-xdist), processes take the GPUs in turn."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(worker.removeprefix("gw")) % torch.cuda.device_count())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine or this process cannot run."""
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    no_interpreter = pytest.mark.skip(reason="needs TRITON_INTERPRET=1: run `make interpreter`")
    not_here = pytest.mark.skip(reason="the interpreter's process runs nothing on a GPU")
    compiled = pytest.mark.skip(reason="the interpreter replaces the compiler in this process")
    for item in items:
        if item.get_closest_marker("gpu") and INTERPRETED:
            item.add_marker(not_here)
        elif item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("interpreter") and not INTERPRETED:
            item.add_marker(no_interpreter)
        if item.get_closest_marker("compiler") and INTERPRETED:
            item.add_marker(compiled)
