"""Which convolutions go to the kernel that keeps its weights, and with which tiles."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")

W = torch.zeros(16, 5, 5, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_taken(dtype):
    from bayes_dc.ops.conv2d import triton_few

    assert triton_few.fits(W.to(dtype), 1)


LEFT = {
    "groups": (W[..., :3], 2),
    "float64": (W.double(), 1),
    "many outputs": (torch.zeros(40, 2, 2, 6), 1),
    "whole 16 channels": (torch.zeros(16, 3, 3, 16), 1),
    "many weights": (torch.zeros(16, 7, 7, 6), 1),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_other_kernels(name):
    from bayes_dc.ops.conv2d import triton_few

    assert not triton_few.fits(*LEFT[name])


@pytest.mark.parametrize("rounded", [False, True])
def test_float32_only_where_it_may_be_rounded(rounded, monkeypatch):
    """And only on a GPU with such products."""
    from bayes_dc.ops.conv2d import triton_few

    gpu = torch.device("cuda", 0)
    assert not triton_few.suits(W, 1, torch.device("cpu"))
    monkeypatch.setattr(triton_few._device, "convolution_tensor_float32", lambda: rounded)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert triton_few.suits(W, 1, gpu) == rounded
    found = triton_few._device.Gpu((9, 0), 132, 227 << 10)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_few._device, "gpu", lambda device: found)
    assert triton_few.suits(W, 1, gpu) == rounded
    monkeypatch.setattr(triton_few._device, "gpu", lambda device: found._replace(capability=(7, 5)))
    assert not triton_few.suits(W, 1, gpu)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("outputs", [6, 16, 32])
@pytest.mark.parametrize("passes", [1, 3, 100])
@pytest.mark.parametrize("samples", [1, 300])
def test_weights_fit_into_registers(samples, passes, outputs, pool):
    from bayes_dc.ops.conv2d import triton_few

    x = torch.zeros(1, 300, 9, 8, 1).expand(passes, -1, -1, -1, -1)
    w, out = torch.zeros(outputs, 5, 5, 1), torch.zeros(1, 300, 9, 8, outputs)
    tiles = triton_few.config(x, w, out.expand(passes, -1, -1, -1, -1), samples, pool)
    assert tiles.passes * triton_few._registers(w) <= 96
    assert tiles.passes <= passes
    assert tiles.tiles >= 1
    assert triton_few.config(x.contiguous(), w, out, samples, pool).passes == 1
