"""The kernel that keeps its weights in a NumPy model of a thread block: positions and bits."""

import contextlib

import pytest
import torch
from block_model import Pointer, run
from conv_few import CASES, check
from conv_harness import Shape

from bayes_dc.ops import _conv

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.compiler


def from_memory(argument):
    """An argument of the kernel as the model takes it."""
    if torch.is_tensor(argument):
        whole = argument.untyped_storage().nbytes() // argument.itemsize
        flat = argument.as_strided((whole,), (1,), 0)
        flat = flat.double() if argument.is_floating_point() else flat
        return Pointer(flat.numpy(), argument.storage_offset())
    return argument


@pytest.fixture
def launch(monkeypatch):
    """``triton_few.launch``, whose kernel runs in the model."""
    from bayes_dc.ops.conv2d import triton_few

    kernel = triton_few.few_channels_kernel

    class Launcher:
        def __getitem__(self, grid):
            def call(*args, num_warps, maxnreg, **constants):
                constants = {name: from_memory(value) for name, value in constants.items()}
                run(kernel, *grid, num_warps, *map(from_memory, args), **constants)

            return call

    nothing = contextlib.nullcontext()
    monkeypatch.setattr(triton_few, "few_channels_kernel", Launcher())
    monkeypatch.setattr(triton_few._launch, "on_device_of", lambda t: nothing)
    return triton_few.launch


@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("name", CASES)
def test_forward(launch, name, shared):
    check(launch, *CASES[name], shared=shared)


@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("name", ["first layer", "rows that end within a word", "four warps"])
def test_pooled(launch, name, shared):
    shape, at, (passes, tiles, _, warps) = CASES[name]
    check(launch, shape, at, (passes, tiles, 32, warps), shared=shared, pool=True, finish=True)


@pytest.mark.parametrize("name", ["first layer", "strides and dilated rows"])
def test_epilogue(launch, name):
    check(launch, *CASES[name], finish=True)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["first layer", "strides and dilated rows", "dilated columns"])
def test_pixels_apart_in_memory(launch, name, wide, monkeypatch):
    """Also with offsets of 64 bits."""
    monkeypatch.setattr(_conv, "is_wide", lambda t: wide)
    check(launch, *CASES[name], apart=True)
    check(launch, *CASES[name])


@pytest.mark.parametrize("name", ["first layer", "rows that end within a word"])
def test_nothing_is_dropped(launch, name):
    """And passes with images of their own."""
    shape, at, (_, tiles, rows, warps) = CASES[name]
    check(launch, shape, at, (1, tiles, rows, warps), p=0.0, repeated=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_default_tiles(launch, shared, pool, dtype):
    shape = Shape(5, 2, 12, 13, 2, 9, 3, 3)
    check(launch, shape, CASES["first layer"][1], None, shared=shared, pool=pool, dtype=dtype)
