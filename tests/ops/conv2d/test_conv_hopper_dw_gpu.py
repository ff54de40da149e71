"""The Hopper kernel of the weight gradient on a GPU: the cases of its model, and larger ones."""

import pytest
import torch
from conv_harness import Shape
from conv_hopper_dw import CASES, HALF, SAME, check

from bayes_dc.ops import _device

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
pytestmark = pytest.mark.gpu


@pytest.fixture
def launch():
    from bayes_dc.ops.conv2d import triton_hopper_dw

    if not _device.on_hopper(torch.device("cuda")):
        pytest.skip("another GPU than Hopper")
    return triton_hopper_dw.launch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_integers_are_exact(launch, name, shared, dtype):
    options = {"splits": 2, "shared": shared, "dtype": dtype, "device": "cuda"}
    check(launch, *CASES[name], **options)


@pytest.mark.parametrize("at", [SAME, HALF])
@pytest.mark.parametrize("size", [32, 16, 8, 4])
def test_default_tiles(launch, size, at):
    """Many images, so that every stage is used again and again."""
    check(launch, Shape(1, 37, size, size, 128, 192, 3, 3), at, None, splits=3, device="cuda")
