"""What only a GPU can show: far offsets, graph replay, many rows."""

import pytest
import torch
from harness import KEY, Case, Shape, assert_bitwise_equal

from bayes_dc.ops import dropconnect_linear
from bayes_dc.ops.linear import reference
from bayes_dc.rng import keep_digits
from bayes_dc.types import MaskKey

pytestmark = pytest.mark.gpu


def test_offsets_beyond_two_to_the_31_elements():
    """x and dx of 2.15e9 elements: the last rows are read and written where they lie."""
    K, N = 8192, 4
    M = 2**31 // K + 40
    last = torch.arange(M - 3, M)
    generator = torch.Generator().manual_seed(0)
    w = torch.randint(-2, 3, (N, K), generator=generator).to(torch.bfloat16)
    rows = torch.randint(0, 2, (3, K), generator=generator).to(torch.bfloat16)
    gy = torch.zeros(M, N, dtype=torch.bfloat16)
    gy[-3:] = torch.randint(-2, 3, (3, N), generator=generator).to(torch.bfloat16)
    x = torch.zeros(M, K, dtype=torch.bfloat16, device="cuda")
    x[-3:] = rows.cuda()
    x.requires_grad_()
    weight = w.cuda().requires_grad_()
    y = dropconnect_linear(x, weight, key=MaskKey(5, 1), scale="none")
    dx, dw = torch.autograd.grad(y, (x, weight), gy.cuda())
    mask = reference.explicit_masks(
        KEY, last, torch.zeros(1, dtype=torch.int64), N, K, keep_digits(0.5)
    )
    r, g = rows.double()[None, :, None], gy[-3:].double()[None, :, None]
    want = reference.forward(r, w.double(), None, mask, 1.0)[0, :, 0]
    assert_bitwise_equal(y[-3:].detach().cpu(), want.to(torch.bfloat16), "y")
    assert_bitwise_equal(
        dx[-3:].cpu(), reference.grad_input(g, w.double(), mask, 1.0)[0, :, 0], "dx"
    )
    assert_bitwise_equal(dw.cpu(), reference.grad_weight(g, r, mask, 1.0), "dw")
    assert not y[:-3].any()


def test_seventy_thousand_rows():
    """More rows than a grid's second dimension holds."""
    x = torch.randint(-2, 3, (70_000, 4)).float()
    w = torch.randint(-2, 3, (4, 4)).float()
    y = dropconnect_linear(x.cuda(), w.cuda(), key=MaskKey(5, 1), scale="none").cpu()
    at = torch.tensor([0, 65_535, 69_999])
    mask = reference.explicit_masks(
        KEY, at, torch.zeros(1, dtype=torch.int64), 4, 4, keep_digits(0.5)
    )
    assert_bitwise_equal(
        y[at], reference.forward(x[at][None, :, None], w, None, mask, 1.0)[0, :, 0], "y"
    )


def test_a_captured_graph_follows_new_coordinates():
    """Key, sample ids and pass ids are read when the graph is replayed."""
    x, w = torch.randn(40, 64, device="cuda"), torch.randn(48, 64, device="cuda")
    key = torch.tensor(KEY, device="cuda")
    sample_ids = torch.arange(40, device="cuda")
    pass_ids = torch.zeros(1, dtype=torch.int64, device="cuda")

    def call():
        return dropconnect_linear(x, w, key=key, sample_ids=sample_ids, pass_ids=pass_ids)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for step in range(3):
        key.fill_(11 + step)
        pass_ids.fill_(step)
        sample_ids.add_(7)
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, call())


def test_training_step_needs_no_memory_for_masks():
    """Forward and backward at 4096³ allocate outputs, gradients and the split sums only."""
    M = N = K = 4096
    x = torch.randn(M, K, device="cuda", requires_grad=True)
    w = torch.randn(N, K, device="cuda", requires_grad=True)
    key = torch.tensor(KEY, device="cuda")
    dropconnect_linear(x, w, key=key).sum().backward()
    x.grad = w.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    dropconnect_linear(x, w, key=key).sum().backward()
    torch.cuda.synchronize()
    used = torch.cuda.max_memory_allocated() - before
    expected = 4 * (M * N + M * K + N * K)  # y, dx, dw in float32; the masks would be 64 GiB
    assert used <= 1.05 * expected


def test_two_devices():
    """Kernels run where the tensors lie, not on the current device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    case = Case(
        Shape(1, 4, 1, 8, 8),
        *(torch.randn(s) for s in ((4, 8), (8, 8), (8,), (4, 8))),
        torch.arange(4),
        torch.zeros(1, dtype=torch.int64),
        keep_digits(0.5),
    )
    here = dropconnect_linear(case.x.to("cuda:0"), case.w.to("cuda:0"), key=MaskKey(1))
    there = dropconnect_linear(case.x.to("cuda:1"), case.w.to("cuda:1"), key=MaskKey(1))
    assert there.device == torch.device("cuda:1")
    assert_bitwise_equal(there.cpu(), here.cpu(), "y")
