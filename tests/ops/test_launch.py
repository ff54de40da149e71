"""Launch configurations: what was measured comes first, then a default that fits any GPU."""

import pytest
import torch

from bayes_dc.ops import _grouped, _tuned
from bayes_dc.ops._tuned.format import OPS

pytest.importorskip("triton", reason="the launchers import triton")
from bayes_dc.ops import _launch

CHOICES = {
    "linear_fwd": _launch.fwd_config,
    "linear_dx": _launch.dx_config,
    "linear_dw": _launch.dw_config,
}
GROUPED_CHOICES = {
    "linear_grouped_fwd": _grouped.fwd_config,
    "linear_grouped_dx": _grouped.dx_config,
    "linear_grouped_dw": _grouped.dw_config,
}


@pytest.fixture
def measured(monkeypatch):
    """Let every lookup find one configuration; returns what was looked up."""
    calls = []

    def lookup(op, device, dtype, **sizes):
        calls.append((op, device, dtype, sizes))
        return {"rows": 2, "warps": 8} if device is not None and device.type == "cuda" else None

    monkeypatch.setattr(_tuned, "lookup", lookup)
    return calls


@pytest.mark.skipif(_launch.INTERPRETED, reason="the interpreter has configurations of its own")
@pytest.mark.parametrize("op", CHOICES)
def test_what_was_measured_comes_first(op, measured):
    device = torch.device("cuda", 3)
    config = CHOICES[op](5, 6, 7, torch.bfloat16, device)
    assert config == _launch.RowConfig(rows=2, warps=8)
    assert measured == [(op, device, torch.bfloat16, {"M": 5, "N": 6, "K": 7})]


@pytest.mark.parametrize("op", CHOICES)
@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.usefixtures("measured")
def test_there_is_always_a_default(op, device):
    for shape in [(0, 1, 0), (1, 1, 1), (16384, 1024, 1024)]:
        config = CHOICES[op](*shape, torch.float32, device)
        assert config == CHOICES[op](*shape)
        assert min(config._replace(registers=1)) >= 1  # 0 leaves them to the compiler


@pytest.mark.skipif(_launch.INTERPRETED, reason="the interpreter has configurations of its own")
@pytest.mark.parametrize("op", GROUPED_CHOICES)
def test_what_was_measured_comes_first_of_the_tensor_core_kernels(op, measured):
    device = torch.device("cuda", 3)
    config = GROUPED_CHOICES[op](5, 16, 6, 7, torch.bfloat16, device)
    assert config == _grouped.GroupedConfig(rows=2, warps=8)
    assert measured == [(op, device, torch.bfloat16, {"G": 5, "R": 16, "N": 6, "K": 7})]


@pytest.mark.parametrize("op", OPS)
def test_the_files_know_the_fields_of_the_configurations(op):
    """A field of a launcher that a file could not name would never be tuned."""
    if op in CHOICES:
        assert OPS[op].fields == _launch.RowConfig._fields
    elif op in GROUPED_CHOICES:
        assert OPS[op].fields == _grouped.GroupedConfig._fields


def test_splits_do_not_depend_on_the_gpu(measured):
    """They change the order of sums, so they are a function of the shape alone."""
    assert _launch.dw_splits(16384, 1024, 1024) > 1
    assert measured == []


@pytest.mark.gpu
def test_a_shape_can_be_captured_before_it_was_launched():
    """Choosing its configuration asks the device nothing; the kernels were loaded for another."""
    from bayes_dc.ops import dropconnect_linear

    x = torch.randn(128, 64, device="cuda")
    w = torch.randn(32, 64, device="cuda")
    gy = torch.randn(128, 32, device="cuda")
    key = torch.tensor([1, 2], device="cuda")
    sample_ids = torch.arange(128, device="cuda")
    pass_ids = torch.zeros(1, dtype=torch.int64, device="cuda")

    def call(rows):
        ids = {"sample_ids": sample_ids[:rows], "pass_ids": pass_ids}
        leaves = x[:rows].detach().requires_grad_(), w.detach().requires_grad_()  # of this stream
        y = dropconnect_linear(*leaves, key=key, **ids)
        return y, *torch.autograd.grad(y, leaves, gy[:rows])

    call(128)  # the weight gradient is split, as that of 64 rows
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(64)
    graph.replay()
    for got, want in zip(captured, call(64), strict=True):
        assert torch.equal(got, want)


def test_more_rows_than_a_kernel_counts_are_refused():
    from bayes_dc.ops import _launch

    assert _launch.count_rows(torch.empty(1).expand(2**31 - 256, 1, 1, 1)) == 2**31 - 256
    with pytest.raises(ValueError, match=r"at most 2147483392 rows .* got 2147483393\. Split"):
        _launch.count_rows(torch.empty(1).expand(2**31 - 255, 1, 1, 1))


def test_a_launch_begins_early_on_hopper_alone(monkeypatch):
    """Elsewhere the instruction to wait for the launch before does not exist."""
    from bayes_dc.ops import _device

    assert _launch.early(torch.device("cpu")) == {}
    for capability, options in (
        ((9, 0), {"EARLY": True, "launch_pdl": True}),
        ((8, 0), {}),
        ((0, 0), {}),
    ):
        monkeypatch.setattr(_device, "gpu", lambda device, c=capability: _device.Gpu(c, 132, 0))
        assert _launch.early(torch.device("cuda", 0)) == options


@pytest.mark.skipif(_launch.INTERPRETED, reason="the interpreter has configurations of its own")
@pytest.mark.parametrize(("M", "N", "lanes"), [(100, 10, 1), (100, 17, 8), (2000, 10, 8)])
def test_few_rows_of_few_outputs_are_programs_of_their_own(M, N, lanes):
    assert _launch.fwd_config(M, N, 1024).lanes == lanes
