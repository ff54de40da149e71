"""Which convolutions go to the Hopper kernel."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")

X = torch.zeros(2, 3, 8, 6, 64, dtype=torch.bfloat16)
W = torch.zeros(72, 3, 3, 64, dtype=torch.bfloat16)
OUT = torch.zeros(2, 3, 8, 6, 72, dtype=torch.bfloat16)
PLAIN = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "transposed": False}
HALF = {"stride": (2, 2)}


@pytest.fixture
def suits(monkeypatch):
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    monkeypatch.setattr(triton_hopper_gemm._device, "on_hopper", lambda device: True)
    monkeypatch.setattr(triton_hopper_gemm._device, "convolution_tensor_float32", lambda: False)
    return lambda x, w, out, options: triton_hopper_gemm.suits(x, w, out, **PLAIN | options)


@pytest.mark.parametrize("options", [{}, HALF, {"dilation": (2, 3)}, HALF | {"dilation": (2, 3)}])
def test_taken(suits, options):
    assert suits(X, W, OUT, options)
    assert suits(X.half(), W.half(), OUT.half(), options)


@pytest.mark.parametrize("options", [{}, HALF, {"dilation": (2, 3)}])
def test_gradients_taken(suits, options):
    assert suits(OUT, W, X, options | {"transposed": True})


ODD = torch.zeros(2, 3, 8, 5, 64, dtype=torch.bfloat16)
LEFT = {
    "a group": (X, W, OUT, {"groups": 2}),
    "stride 3": (X, W, OUT, {"stride": (3, 3)}),
    "two strides": (X, W, OUT, {"stride": (1, 2)}),
    "stride 2 of an odd image": (ODD, W, OUT, HALF),
    "stride 2 of a tail of channels": (X[..., :40], W[..., :40].contiguous(), OUT, HALF),
    "float32 without TensorFloat-32": (X.float(), W.float(), OUT.float(), {}),
    "float64": (X.double(), W.double(), OUT.double(), {}),
    "few channels": (X[..., :24], W[..., :24].contiguous(), OUT, {}),
    "few outputs": (X, W[:32], OUT[..., :32], {}),
    "rows of 26 bytes": (torch.zeros(2, 3, 8, 6, 65)[..., :65].bfloat16(), W, OUT, {}),
    "strided weights": (X, torch.cat([W, W], 3)[..., :64], OUT, {}),
    "channels first": (X, W, OUT.transpose(3, 4).contiguous().transpose(3, 4), {}),
    "a dilated gradient of stride 2": (OUT, W, X, HALF | {"dilation": (2, 2), "transposed": True}),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_the_portable_kernel(suits, name):
    x, w, out, options = LEFT[name]
    assert not suits(x, w, out, options)


def test_nothing_without_such_a_gpu():
    from bayes_dc.ops.conv2d import triton_hopper_gemm

    assert not triton_hopper_gemm.suits(X, W, OUT, **PLAIN)
