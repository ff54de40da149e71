"""The operator as torch sees it, and the public function's arguments."""

import contextlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from harness import Shape, assert_bitwise_equal, make_case

from bayes_dc.ops import dropconnect_linear
from bayes_dc.ops.linear import op
from bayes_dc.ops.linear.reference import explicit_masks, forward
from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.types import MaskKey

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
KEY = MaskKey(seed=1, layer=2)


def inputs(device, dtype=torch.float64, rows=3, N=5, K=7, grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, K), (N, K), (N,))
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_(grad) for t in made)


def operator_arguments(device):
    x, w, b = inputs(device, torch.float32, grad=False)
    at = (torch.tensor(layer_key(*KEY)), torch.arange(3), torch.zeros(1, dtype=torch.int64))
    return x[None, :, None], w, b, *(t.to(device) for t in at), 1, 1, 2.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_gradients_and_second_gradients(p, device):
    args = inputs(device)

    def function(x, w, b):
        return dropconnect_linear(x, w, b, p=p, key=KEY)

    assert torch.autograd.gradcheck(function, args)
    assert torch.autograd.gradgradcheck(function, args)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x, w, b, *at = operator_arguments(device)
    gy = torch.randn(1, 3, 1, 5, device=device)
    ops = torch.ops.bayes_dc
    torch.library.opcheck(ops.linear, (x, w, b, *at))
    torch.library.opcheck(ops.linear, (x.expand(1, 3, 2, 7), w, None, *at))
    torch.library.opcheck(ops.linear_dx, (gy, w, *at))
    torch.library.opcheck(ops.linear_dw, (gy, x, *at))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager(device, dynamic):
    """One graph, forward and backward, the same bits."""
    x, w, b = inputs(device, torch.float32)
    key = torch.tensor(layer_key(*KEY), device=device)

    def loss(x, w, b):
        return dropconnect_linear(x, w, b, p=0.5, key=key).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    eager = torch.autograd.grad(loss(x, w, b), (x, w, b))
    got = torch.autograd.grad(compiled(x, w, b), (x, w, b))
    for a, e in zip(got, eager, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "frozen"])
def test_compiled_without_gradients(device, how):
    """A compiler that traces a call which needs no gradient gets the same bits."""
    x, w, b = (t.detach() for t in inputs(device, torch.float32))
    compiled = torch.compile(partial(dropconnect_linear, key=KEY), fullgraph=True)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with context.get(how, contextlib.nullcontext)():
        assert torch.equal(compiled(x, w, b), dropconnect_linear(x, w, b, key=KEY))


def test_export_keeps_the_operator():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 7))

        def forward(self, x):
            return dropconnect_linear(x, self.weight, p=0.5, key=KEY)

    net, x = Net(), torch.randn(3, 7)
    with torch.no_grad():
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert "bayes_dc.linear.default" in called
    other = torch.randn(6, 7)
    assert torch.equal(program.module()(other), net(other))


@pytest.mark.parametrize("device", DEVICES)
def test_functional_transforms(device):
    x, w, b = inputs(device)

    def loss(w):
        return dropconnect_linear(x, w, b, p=0.5, key=KEY).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(w), torch.autograd.grad(loss(w), w)[0])
    stacked = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda v: dropconnect_linear(v, w, b, p=0.5, key=KEY))(stacked)
    assert torch.equal(mapped[1], dropconnect_linear(2 * x, w, b, p=0.5, key=KEY))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_casts_like_f_linear(device):
    """Lower precision forward, float32 parameter gradients that do not overflow like float16."""
    x, w, b = inputs(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        y = dropconnect_linear(x, w, b, p=0.5, key=KEY)
        assert y.dtype == F.linear(x, w, b).dtype == torch.bfloat16
    full = dropconnect_linear(x, w, b, p=0.5, key=KEY)
    gy = torch.full_like(full, 1e5)
    got = torch.autograd.grad(y, (x, w, b), gy.bfloat16())
    want = torch.autograd.grad(full, (x, w, b), gy)
    for g, v in zip(got, want, strict=True):
        assert g.dtype == torch.float32
        assert float((g - v).norm() / v.norm()) < 2e-2  # bfloat16 keeps 8 bits
    double = inputs(device, torch.float64)
    with torch.autocast(device, torch.bfloat16):
        assert dropconnect_linear(*double, p=0.5, key=KEY).dtype == torch.float64


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_of_a_sum_has_stride_zero(device):
    x, w, b = inputs(device, torch.float32)
    y = dropconnect_linear(x, w, b, p=0.5, key=KEY)
    summed = torch.autograd.grad(y.sum(), (x, w, b), retain_graph=True)
    ones = torch.autograd.grad(y, (x, w, b), torch.ones_like(y))
    for a, e in zip(summed, ones, strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", ["inverted", "none"])
@pytest.mark.parametrize("scope", ["row", "sample", "pass"])
def test_scopes(scope, scale, device):
    """Which rows share a mask, for [B, L, K] inputs and two passes, against the reference."""
    B, L, N, K, passes = 3, 2, 5, 7, 2
    x = torch.randn(passes * B, L, K, dtype=torch.float64, device=device)
    _, w, b = inputs(device, grad=False)
    sample_ids, pass_ids = torch.tensor([4, 9, 2]), torch.tensor([1, 6])
    got = dropconnect_linear(
        x,
        w,
        b,
        p=0.25,
        key=KEY,
        sample_ids=sample_ids.to(device),
        pass_ids=pass_ids.to(device),
        scope=scope,
        scale=scale,
    )
    ids, shape = {
        "row": ((sample_ids[:, None] * L + torch.arange(L)).flatten(), (passes, B * L, 1, K)),
        "sample": (sample_ids, (passes, B, L, K)),
        "pass": (torch.zeros(1, dtype=torch.int64), (passes, 1, B * L, K)),
    }[scope]
    digits = keep_digits(0.25)
    mask = explicit_masks(layer_key(*KEY), ids, pass_ids, N, K, digits)
    factor = 4 / 3 if scale == "inverted" else 1.0
    want = forward(x.cpu().view(shape), w.cpu(), b.cpu(), mask, factor).view(passes * B, L, N)
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.5, 0.0])
def test_shared_input_equals_repeated_input(p, device):
    """S rows and P passes: every pass reads the same rows."""
    x, w, b = inputs(device, torch.float32, grad=False)
    at = {
        "sample_ids": torch.arange(3, device=device),
        "pass_ids": torch.arange(4, device=device),
    }
    shared = dropconnect_linear(x, w, b, p=p, key=KEY, **at)
    repeated = dropconnect_linear(x.repeat(4, 1), w, b, p=p, key=KEY, **at)
    assert shared.shape == (12, 5)
    if p:
        assert torch.equal(shared, repeated)
    else:  # a vendor's matrix product may round with the number of rows
        torch.testing.assert_close(shared, repeated)


@pytest.mark.parametrize("device", DEVICES)
def test_one_dimensional_and_empty_inputs(device):
    x, w, b = inputs(device, torch.float32, grad=False)
    one = dropconnect_linear(x[0], w, b, key=KEY)
    assert one.shape == (5,)
    assert torch.equal(one, dropconnect_linear(x[:1], w, b, key=KEY)[0])
    empty = torch.zeros(0, 7, device=device, requires_grad=True)
    w = w.requires_grad_()
    y = dropconnect_linear(empty, w, b, key=KEY)
    assert y.shape == (0, 5)
    y.sum().backward()
    assert torch.equal(w.grad, torch.zeros_like(w))


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_passes_of_a_one_dimensional_input(p):
    x, w, b = inputs("cpu", torch.float32)
    options = {"p": p, "key": KEY, "pass_ids": torch.arange(3), "sample_ids": torch.tensor([4])}
    y = dropconnect_linear(x[0], w, b, **options)
    assert y.shape == (3, len(w))
    assert torch.equal(y, dropconnect_linear(x[:1], w, b, **options))


def test_no_drop_is_f_linear():
    x, w, b = inputs("cpu", torch.float32)
    for scale in ("inverted", "none"):
        assert torch.equal(
            dropconnect_linear(x, w, b, p=0.0, key=KEY, scale=scale), F.linear(x, w, b)
        )


def test_rows_of_one_batch_differ_and_seeds_differ():
    """One mask per row, and 64-bit seeds that differ in their upper half only."""
    x, w = torch.ones(8, 64), torch.randn(16, 64)
    y = dropconnect_linear(x, w, key=MaskKey(7))
    assert len({tuple(row.tolist()) for row in y}) == 8
    assert not torch.equal(y, dropconnect_linear(x, w, key=MaskKey(7 + 2**32)))
    assert not torch.equal(y, dropconnect_linear(x, w, key=MaskKey(7, layer=1)))


X, W, B = torch.zeros(4, 3), torch.zeros(2, 3), torch.zeros(2)
IDS = torch.arange(4)


@pytest.mark.parametrize(
    ("error", "text", "change"),
    [
        (ValueError, "p must be a drop probability in [0, 1); got 1.0", {"p": 1.0}),
        (ValueError, "p must be a drop probability in [0, 1); got -0.1", {"p": -0.1}),
        (ValueError, "p must be a drop probability in [0, 1); got nan", {"p": float("nan")}),
        (TypeError, "p must be a real number in [0, 1)", {"p": "0.5"}),
        (TypeError, "p must be a real number in [0, 1)", {"p": True}),
        (TypeError, "x must be a torch.Tensor; got ndarray. Wrap it", {"x": X.numpy()}),
        (TypeError, "weight must be a torch.Tensor; got NoneType", {"weight": None}),
        (TypeError, "bias must be a torch.Tensor; got list", {"bias": [0.0, 0.0]}),
        (TypeError, "x must be a floating point tensor; got torch.int64", {"x": X.long()}),
        (TypeError, "got torch.float8_e4m3fn. Convert it", {"x": X.to(torch.float8_e4m3fn)}),
        (TypeError, "x must be a dense tensor; got layout torch.spar", {"x": X.to_sparse()}),
        (ValueError, "x must have 3 features in its last dimension", {"x": X[:, :2]}),
        (ValueError, "got a scalar", {"x": torch.tensor(1.0)}),
        (ValueError, "weight must have shape [N, K]; got [3]", {"weight": W[0]}),
        (ValueError, "bias must have shape [2]; got [3]", {"bias": torch.zeros(3)}),
        (ValueError, "x, weight and bias must have one dtype", {"x": X.double()}),
        (ValueError, "must be on one device", {"weight": W.to("meta")}),
        (ValueError, "scope must be one of ('row', 'sample', 'pass')", {"scope": "batch"}),
        (ValueError, "scale must be one of ('inverted', 'none')", {"scale": "mean"}),
        (ValueError, "key must be a MaskKey(seed, layer) or an int64 tensor [2]", {"key": 3}),
        (ValueError, "key must be a MaskKey", {"key": torch.zeros(3, dtype=torch.int64)}),
        (ValueError, "key must be a MaskKey(seed, layer)", {"key": 3, "p": 0.0}),
        (ValueError, "seed must be an integer in 0 … 2**64 − 1; got -1", {"key": MaskKey(-1)}),
        (ValueError, "seed must be an integer", {"key": MaskKey(2**64)}),
        (ValueError, "layer must be an integer", {"key": MaskKey(0, 2**32)}),
        (ValueError, "sample_ids must be an int64 tensor", {"sample_ids": IDS.int()}),
        (ValueError, "pass_ids must be an int64 tensor", {"pass_ids": [0]}),
        (ValueError, "2 × 3 = 6, pass after pass", {"sample_ids": IDS[:3], "pass_ids": IDS[:2]}),
        (ValueError, "and x has 4,\nwhich is no multiple of 3.", {"pass_ids": IDS[:3]}),
    ],
)
def test_errors_teach(error, text, change):
    arguments = {"x": X, "weight": W, "bias": B, "p": 0.5, "key": KEY} | change
    x, weight, bias = (arguments.pop(name) for name in ("x", "weight", "bias"))
    with pytest.raises(error) as caught:
        dropconnect_linear(x, weight, bias, **arguments)
    assert text in str(caught.value)


@pytest.mark.interpreter
def test_the_cuda_implementations_of_the_operators(monkeypatch):
    """What the dispatcher calls for CUDA tensors, on CPU tensors in the interpreter; 2 splits."""
    case = make_case(Shape(1, 70, 1, 5, 6), integers=True)
    at = (torch.tensor(layer_key(5, 1)), case.sample_ids, case.pass_ids, 1, 1, 1.0)
    want = case.expected()
    monkeypatch.setattr(op, "launcher", op._triton)
    y = op._linear(case.x, case.w, case.b, *at)
    assert_bitwise_equal(y, want["y"], "y")
    assert_bitwise_equal(op._linear_dx(case.gy, case.w, *at), want["dx"], "dx")
    assert _launch_splits(case) == 2
    assert_bitwise_equal(op._dw_triton(case.gy, case.x, *at), want["dw"], "dw")


def _launch_splits(case):
    from bayes_dc.ops import _launch

    P, S, R, N, K = case.shape
    return _launch.dw_splits(P * S * R, N, K)
