"""Which weight gradients go to the Hopper kernel, and with which tiles."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")

GY = torch.zeros(2, 3, 8, 6, 72, dtype=torch.bfloat16)
X = torch.zeros(2, 3, 8, 6, 64, dtype=torch.bfloat16)
OUT = torch.zeros(5, 72, 3, 3, 64)
PLAIN = {"stride": (1, 1), "groups": 1}
HALF = {"stride": (2, 2)}
HALF_GY = torch.zeros(2, 3, 4, 3, 72, dtype=torch.bfloat16)


@pytest.fixture
def suits(monkeypatch):
    from bayes_dc.ops.conv2d import triton_hopper_dw

    monkeypatch.setattr(triton_hopper_dw._device, "on_hopper", lambda device: True)
    return lambda gy, x, out, options: triton_hopper_dw.suits(gy, x, out, **PLAIN | options)


def test_taken(suits):
    assert suits(GY, X, OUT, {})
    assert suits(GY.half(), X.half(), OUT, {})
    assert suits(HALF_GY, X, OUT, HALF)
    assert suits(GY, X[:1].expand(2, -1, -1, -1, -1), OUT, {})
    assert suits(GY, X[..., :40], OUT[..., :40].contiguous(), {})


ODD = torch.zeros(2, 3, 8, 5, 64, dtype=torch.bfloat16)
LEFT = {
    "a group": (GY, X, OUT, {"groups": 2}),
    "stride 3": (GY, X, OUT, {"stride": (3, 3)}),
    "two strides": (GY, X, OUT, {"stride": (1, 2)}),
    "stride 2 of an odd image": (HALF_GY, ODD, OUT, HALF),
    "float32": (GY.float(), X.float(), OUT, {}),
    "few channels": (GY, X[..., :24], OUT[..., :24].contiguous(), {}),
    "few outputs": (GY[..., :24], X, OUT[:, :24].contiguous(), {}),
    "rows of 142 bytes": (torch.zeros(2, 3, 8, 6, 71).bfloat16(), X, OUT[:, :71], {}),
    "one gradient for all": (GY[:, :1].expand(-1, 3, -1, -1, -1), X, OUT, {}),
    "images turned round": (GY, X.transpose(0, 1).contiguous().transpose(0, 1), OUT, {}),
    "a gap in the result": (GY, X, torch.zeros(5, 72, 3, 3, 128)[..., :64], {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_the_portable_kernel(suits, name):
    gy, x, out, options = LEFT[name]
    assert not suits(gy, x, out, options)


def test_nothing_without_such_a_gpu():
    from bayes_dc.ops.conv2d import triton_hopper_dw

    assert not triton_hopper_dw.suits(GY, X, OUT, **PLAIN)


@pytest.mark.parametrize(
    ("size", "own", "shared"),
    [
        ((4, 4), (4, 4, 4), (4, 4, 4)),
        ((2, 2), (4, 8, 2), (16, 2, 2)),
        ((1, 1), (4, 16, 1), (64, 1, 1)),
        ((7, 7), (1, 8, 8), (1, 8, 8)),
        ((14, 14), (1, 4, 16), (1, 4, 16)),
        ((56, 56), (1, 1, 64), (1, 1, 64)),
        ((3, 500), (1, 1, 64), (1, 1, 64)),
    ],
)
def test_boxes(size, own, shared):
    """64 positions; 16 or more of an image with a mask of its own, of which at most four."""
    from bayes_dc.ops.conv2d.triton_hopper_dw import box

    assert box(64, size, 512, shared=False) == own
    if size[0] * size[1] >= 16:
        assert box(64, size, 512, shared=True) == shared
    assert box(64, size, 1, shared=False)[0] == 1


@pytest.mark.parametrize(
    ("N", "KH", "taps", "blocks"),
    [
        *((64, 3, 3, 1), (256, 3, 3, 1), (512, 2, 2, 1), (512, 4, 2, 1), (512, 5, 3, 1)),
        *((64, 1, 1, 1), (128, 1, 1, 2), (192, 1, 1, 3), (512, 1, 1, 2), (512, 7, 3, 1)),
    ],
)
def test_tiles(N, KH, taps, blocks):
    """Three results of a program where that leaves little empty."""
    from bayes_dc.ops.conv2d.triton_hopper_dw import config

    assert config(N, KH)[1:3] == (taps, blocks)
