"""The Hopper kernel on a GPU: the cases of its model, all types, and which tensors it takes."""

import pytest
import torch
from conv_harness import Shape, conv_id
from conv_hopper import CASES, FORWARD_ONLY, HALF, SAME, check

from bayes_dc.ops import _device

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
VIEWS_MAY_OVERLAP = pytest.importorskip("bayes_dc.ops._hopper").VIEWS_MAY_OVERLAP


@pytest.fixture
def launch():
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    if not _device.on_hopper(torch.device("cuda")):
        pytest.skip("another GPU than Hopper")
    return triton_hopper_gemm.launch


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
@pytest.mark.parametrize("name", CASES)
def test_integers_are_exact(launch, name, transposed):
    if transposed and name in FORWARD_ONLY:
        pytest.skip("dilated and stride 2")
    if CASES[name][2][7:8] == (3,) and not VIEWS_MAY_OVERLAP:
        pytest.skip("this Triton refuses such views")
    check(launch, *CASES[name], transposed=transposed, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
@pytest.mark.parametrize("name", ["own masks, two images", "warp by warp"])
def test_other_types(launch, name, transposed, dtype):
    check(launch, *CASES[name], transposed=transposed, dtype=dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("at", [SAME, HALF], ids=conv_id)
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("transposed", [False, True], ids=["fwd", "dx"])
def test_default_tiles(launch, transposed, shared, at):
    """Three programs of images, several of everything else."""
    shape = Shape(2, 17, 20, 40, 128, 192, 3, 3)
    for size in ((20, 40), (8, 8), (4, 4)):
        case = shape._replace(H=size[0], W=size[1])
        check(launch, case, at, None, transposed=transposed, shared=shared, device="cuda")
