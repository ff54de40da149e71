"""When the fused Hopper kernel is used; see also tests/ops/test_tensor_maps.py."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="the launcher imports Gluon")
hopper = pytest.importorskip("bayes_dc.ops.gaussian.triton_hopper")


def test_not_on_the_cpu():
    x, w = torch.empty(1, 40_000, 1, 8), torch.empty(1024, 8)
    assert not hopper.suits_hopper(x, w, w, torch.empty(1, 40_000, 1, 1024))


def test_rows_that_overlap_take_the_other_kernel(monkeypatch):
    """On such a GPU: windows 8 elements apart are no rows for a tensor map, rows side by side are.

    One row of weights may be cut from wider ones.
    """
    monkeypatch.setattr(hopper._device, "on_hopper", lambda device: True)
    gpu = hopper._device.Gpu((9, 0), 132, 227 << 10)
    monkeypatch.setattr(hopper._device, "gpu", lambda device: gpu)
    w, out = torch.empty(1024, 64), torch.empty(1, 20_000, 1, 1024)
    plain = torch.empty(1, 20_000, 1, 64)
    windows = torch.empty(20_000 * 8 + 56).unfold(0, 64, 8)[None, :, None]
    assert windows.shape == plain.shape
    assert hopper.suits_hopper(plain, w, w, out)
    assert not hopper.suits_hopper(windows, w, w, out)
    assert not hopper.suits_hopper(plain, torch.empty(1023 * 8 + 64).unfold(0, 64, 8), w, out)
