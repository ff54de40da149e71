"""The Hopper kernel in a NumPy model of a thread block: boxes, taps, phases and bits, no GPU."""

import contextlib

import pytest
import torch
from block_model import Pointer, TensorMap, run
from conv_harness import Shape, conv_id
from conv_hopper import CASES, EVEN, FORWARD_ONLY, HALF, SAME, check

from bayes_dc.ops.conv2d.reference import Geometry

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.compiler


def from_memory(argument):
    """An argument of the kernel as the model takes it."""
    if hasattr(argument, "block_shape"):
        view = argument.base.as_strided(argument.shape, argument.strides)
        return TensorMap(view, list(argument.block_shape))
    if torch.is_tensor(argument):
        number = argument.double() if argument.is_floating_point() else argument
        return Pointer(number.numpy().reshape(-1))
    return argument


@pytest.fixture
def launch(monkeypatch):
    """``triton_hopper_gemm.launch``, whose kernel runs in the model."""
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    kernel = triton_hopper_gemm.masked_conv_kernel

    class Launcher:
        def __getitem__(self, grid):
            def call(*args, num_warps, **constants):
                constants = {name: from_memory(value) for name, value in constants.items()}
                run(kernel, *grid, num_warps, *map(from_memory, args), **constants)

            return call

    nothing = contextlib.nullcontext()
    monkeypatch.setattr(triton_hopper_gemm, "masked_conv_kernel", Launcher())
    monkeypatch.setattr(triton_hopper_gemm._launch, "on_device_of", lambda t: nothing)
    return triton_hopper_gemm.launch


@pytest.mark.parametrize("name", CASES)
def test_forward(launch, name):
    check(launch, *CASES[name], transposed=False)


@pytest.mark.parametrize("name", sorted(set(CASES) - FORWARD_ONLY))
def test_input_gradient(launch, name):
    """Images of odd size too: only the forward reads by phases."""
    shape, at, tiles = CASES[name]
    if at.stride == (2, 2):
        shape = shape._replace(H=7)
    check(launch, shape, at, tiles, transposed=True, p=0.5)


@pytest.mark.parametrize("at", [SAME, HALF], ids=conv_id)
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_one_mask_for_all_images(launch, transposed, at):
    check(launch, EVEN, at, (4, 4, 8, 64, 4, 3), transposed=transposed, shared=True)


@pytest.mark.parametrize("name", ["own masks, two images", "warp by warp", "stride 2"])
def test_epilogue(launch, name):
    check(launch, *CASES[name], transposed=False, finish=True)


@pytest.mark.parametrize("finish", [False, True], ids=["", "epilogue"])
@pytest.mark.parametrize("name", sorted(set(CASES) - {"taps of a column, two images"}))
def test_nothing_is_dropped(launch, name, finish):
    """All images are one part, and no word of a mask is made; a column of taps is of one image."""
    check(launch, *CASES[name], transposed=False, p=0.0, finish=finish)


def test_nothing_is_dropped_of_float32(launch):
    shape, at, tiles = CASES["own masks, two images"]
    check(launch, shape, at, tiles, transposed=False, p=0.0, dtype=torch.float32)


@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_float32(launch, transposed):
    """32 channels in a step."""
    shape = Shape(2, 2, 5, 4, 36, 40, 3, 3)
    tiles = (2, 4, 4, 64, 4, 3)
    check(launch, shape, SAME, tiles, transposed=transposed, dtype=torch.float32)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [(2, 3), (4, 4), (8, 8), (17, 20)])
def test_default_tiles(launch, monkeypatch, size, shared, overlap):
    """Of any image; one mask for all, and one each."""
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    monkeypatch.setattr(triton_hopper_gemm, "VIEWS_MAY_OVERLAP", overlap)
    shape = Shape(1, 3, *size, 64, 64, 3, 1)
    check(launch, shape, Geometry(padding=(1, 0)), None, transposed=False, shared=shared)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("shape", "at"),
    [
        (Shape(1, 5, 2, 3, 64, 72, 3, 1), Geometry(padding=(1, 0))),
        (Shape(1, 3, 8, 8, 64, 136, 1, 1), Geometry()),
        (Shape(1, 1, 17, 20, 64, 64, 3, 1), Geometry(padding=(1, 0))),
        (EVEN, HALF),
    ],
    ids=conv_id,
)
def test_default_tiles_where_nothing_is_dropped(launch, monkeypatch, shape, at, overlap):
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    monkeypatch.setattr(triton_hopper_gemm, "VIEWS_MAY_OVERLAP", overlap)
    check(launch, shape, at, None, transposed=False, p=0.0)
