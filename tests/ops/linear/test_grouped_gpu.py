"""Shared masks where only a GPU can show them: gradients, graph replay, far offsets."""

import pytest
import torch
from harness import KEY, Shape, assert_bitwise_equal, make_case, relative_error

from bayes_dc.ops import dropconnect_linear
from bayes_dc.ops.linear import reference
from bayes_dc.rng import keep_digits
from bayes_dc.types import MaskKey

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def tf32():
    """Float32 products as TensorFloat-32: integers of the tests stay exact."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scope", ["sample", "pass"])
def test_gradients_of_the_public_function_are_exact(scope, dtype):
    """Two passes of two samples with 40 positions, weights of any alignment."""
    B, L, N, K = 2, 40, 72, 48
    generator = torch.Generator().manual_seed(0)
    passes = torch.tensor([3, 8], device="cuda")

    def draw(*size: int) -> torch.Tensor:
        return torch.randint(-2, 3, size, generator=generator).to("cuda", dtype).requires_grad_()

    for width in (K, K + 1):
        x, w, b = draw(2 * B, L, width), draw(N, width), draw(N)
        gy = draw(2 * B, L, N).detach()
        options = {"key": MaskKey(5, 1), "p": 0.25, "pass_ids": passes, "scope": scope}
        y = dropconnect_linear(x, w, b, scale="none", **options)
        dx, dw, db = torch.autograd.grad(y, (x, w, b), gy)
        ids = torch.arange(B) if scope == "sample" else torch.zeros(1, dtype=torch.int64)
        shape = (2, B, L, -1) if scope == "sample" else (2, 1, B * L, -1)
        mask = reference.explicit_masks(KEY, ids, passes.cpu(), N, width, keep_digits(0.25))
        x4, w4, b4, gy4 = (t.detach().double().cpu() for t in (x, w, b, gy))
        x4, gy4 = x4.view(shape), gy4.view(shape)
        for name, got, want in (
            ("y", y, reference.forward(x4, w4, b4, mask, 1.0)),
            ("dx", dx, reference.grad_input(gy4, w4, mask, 1.0)),
            ("dw", dw, reference.grad_weight(gy4, x4, mask, 1.0)),
            ("db", db, gy4.sum(dim=(0, 1, 2))),
        ):
            assert_bitwise_equal(got.detach().cpu().view(want.shape), want, name)


def test_a_captured_graph_follows_new_coordinates():
    """Key and ids are read when the graph is replayed; tensor maps stay valid."""
    x = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(96, 128, device="cuda", dtype=torch.bfloat16)
    key, pass_ids = torch.tensor(KEY, device="cuda"), torch.arange(5, device="cuda")
    sample_ids = torch.arange(64, device="cuda")

    def call():
        return dropconnect_linear(
            x, w, key=key, sample_ids=sample_ids, pass_ids=pass_ids, scope="pass"
        )

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for step in range(3):
        key.fill_(11 + step)
        pass_ids.add_(7)
        x.normal_()
        graph.replay()
        assert torch.equal(out.clone(), call())


def test_offsets_beyond_two_to_the_31_elements():
    """x and y of 2.15e9 elements: the last group is read and written where it lies."""
    R, K, N = 256, 128, 128
    G = 2**31 // (R * K) + 3
    generator = torch.Generator().manual_seed(0)
    w = torch.randint(-2, 3, (N, K), generator=generator).to(torch.bfloat16)
    rows = torch.randint(-2, 3, (R, K), generator=generator).to(torch.bfloat16)
    x = torch.zeros(G, R, K, dtype=torch.bfloat16, device="cuda")
    x[-1] = rows.cuda()
    y = dropconnect_linear(x, w.cuda(), key=MaskKey(5, 1), scope="sample", scale="none")
    mask = reference.explicit_masks(
        KEY, torch.tensor([G - 1]), torch.zeros(1, dtype=torch.int64), N, K, keep_digits(0.5)
    )
    want = reference.forward(rows.double()[None, None], w.double(), None, mask, 1.0)[0, 0]
    assert_bitwise_equal(y[-1].cpu(), want, "y")
    assert not y[:-1].any()


def test_float32_is_float32_without_the_switch():
    """Sixteen rows and more do not cost digits that torch's own products would keep."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    case = make_case(Shape(1, 2, 64, 96, 512), bias=False)
    y = dropconnect_linear(
        case.x[0].cuda(),
        case.w.cuda(),
        key=MaskKey(5, 1),
        sample_ids=case.sample_ids.cuda(),
        pass_ids=case.pass_ids.cuda(),
        scope="sample",
        scale="none",
    )
    eager = relative_error(case.expected(torch.float32)["y"][0], case.expected()["y"][0])
    assert relative_error(y.cpu(), case.expected()["y"][0]) <= 2 * eager
