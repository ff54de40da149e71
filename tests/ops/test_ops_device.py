"""Torch's switch for TensorFloat-32, and the properties of a GPU."""

from types import SimpleNamespace

import pytest
import torch

from bayes_dc.ops import _device

MATMUL = torch.backends.cuda.matmul
CONV = torch.backends.cudnn.conv


@pytest.fixture(autouse=True)
def switch():
    before = MATMUL.fp32_precision, CONV.fp32_precision
    yield
    MATMUL.fp32_precision, CONV.fp32_precision = before


@pytest.mark.parametrize("allowed", [True, False])
def test_either_interface_sets_the_switch(allowed):
    """After the newer one was used, reading the older one raises."""
    MATMUL.allow_tf32 = allowed
    assert _device.tensor_float32() == allowed
    MATMUL.fp32_precision = "tf32" if allowed else "ieee"
    assert _device.tensor_float32() == allowed


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_have_a_switch_of_their_own(allowed):
    MATMUL.fp32_precision = "ieee" if allowed else "tf32"
    torch.backends.cudnn.allow_tf32 = allowed
    assert _device.convolution_tensor_float32() == allowed
    CONV.fp32_precision = "tf32" if allowed else "ieee"
    assert _device.convolution_tensor_float32() == allowed


def test_the_switch_is_off_by_default():
    MATMUL.fp32_precision = "none"
    assert not _device.tensor_float32()


@pytest.mark.parametrize(("hip", "capability"), [(None, (9, 0)), ("6.4", (0, 0))])
def test_properties_are_those_of_the_current_device(hip, capability, monkeypatch):
    """A device without an index is the current one, which changes; AMD's are no Hopper GPUs."""
    current = [3]

    def found(index):
        minor = index - 3
        return SimpleNamespace(major=9, minor=minor, multi_processor_count=100 + index)

    monkeypatch.setattr(torch.cuda, "get_device_properties", found)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.version, "hip", hip)
    _device._gpu.cache_clear()
    try:
        anywhere = torch.device("cuda")
        assert _device.gpu(anywhere) == (capability, 103, 0)
        assert _device.on_hopper(anywhere) == (hip is None)
        current[0] = 4
        assert _device.gpu(anywhere).processors == 104
        assert not _device.on_hopper(torch.device("cuda", 4))
        assert not _device.on_hopper(torch.device("cpu"))
    finally:
        _device._gpu.cache_clear()
