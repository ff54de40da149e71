"""The operators as torch sees them, and the sampler argument of the public function."""

import pytest
import torch
import torch.nn.functional as F
from gaussian_case import make_case, normal_bound, tensor_float32
from harness import KEY as WORDS
from harness import Shape, assert_bitwise_equal, relative_error

from bayes_dc.ops import dropconnect_linear
from bayes_dc.ops.gaussian import op, reference
from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.types import MaskKey

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
KEY = MaskKey(seed=1, layer=2)


def inputs(device, dtype=torch.float64, rows=3, N=5, K=7, grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, K), (N, K), (N,))
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_(grad) for t in made)


def draws(x, w, b=None, **options):
    return dropconnect_linear(x, w, b, sampler="gaussian", **{"p": 0.5, "key": KEY} | options)


def coordinates(device, samples=3, passes=2):
    made = (torch.tensor(layer_key(*KEY)), torch.arange(samples), torch.arange(passes))
    return tuple(t.to(device) for t in made)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("passes", [1, 3], ids=["own", "shared"])
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_gradients_and_second_gradients(p, passes, device):
    args = inputs(device)
    pass_ids = torch.arange(passes, device=device)

    def function(x, w, b):
        return draws(x, w, b, p=p, pass_ids=pass_ids)

    assert torch.autograd.gradcheck(function, args)
    assert torch.autograd.gradgradcheck(function, args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("moments", [1, 2], ids=["shared", "own"])
def test_gradients_of_the_gradient_of_a_variance(moments, device):
    """Of ``gaussian_draw_dvar``, which the second derivatives of the layer need."""
    generator = torch.Generator().manual_seed(0)
    gy = torch.randn(2, 3, 1, 5, generator=generator, dtype=torch.float64).to(device)
    var = torch.rand(moments, 3, 1, 5, generator=generator, dtype=torch.float64).to(device) + 0.1
    at = coordinates(device)

    def function(gy, var):
        return op._dvar(gy, var, *at)

    assert torch.autograd.gradcheck(function, (gy.requires_grad_(), var.requires_grad_()))


@pytest.mark.parametrize("device", DEVICES)
def test_no_variance_has_no_gradient(device):
    """A row of zeros: its draws are the bias, and the infinite slope of the root counts as 0."""
    x, w, b = inputs(device, torch.float32)
    with torch.no_grad():
        x[1] = 0
    y = draws(x, w, b)
    assert torch.equal(y[1], b)
    dx, dw, _ = torch.autograd.grad(y.square().sum(), (x, w, b), create_graph=True)
    assert torch.isfinite(dx).all()
    assert torch.isfinite(dw).all()
    second = torch.autograd.grad(dx.square().sum() + dw.square().sum(), (x, w))
    assert all(torch.isfinite(g).all() for g in second)
    at = coordinates(device, samples=1, passes=1)
    var = torch.tensor([0.0, -1.0, 4.0, 0.0], device=device).view(1, 1, 1, 4)
    slope = op._dvar(torch.ones_like(var), var, *at)
    assert (slope != 0).flatten().tolist() == [False, False, True, False]


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x, w, b = inputs(device, torch.float32, grad=False)
    at = coordinates(device)
    ops = torch.ops.bayes_dc
    torch.library.opcheck(ops.gaussian_linear, (x[None, :, None], w, b, *at, 1, 1, 2.0))
    both = x.expand(2, 1, 3, 7).transpose(1, 2)
    torch.library.opcheck(ops.gaussian_linear, (both, w, None, *at, 1, 1, 2.0))
    mean = torch.randn(1, 3, 1, 5, device=device)
    torch.library.opcheck(ops.gaussian_draw, (mean, mean.square(), *at, torch.bfloat16))
    gy = torch.randn(2, 3, 1, 5, device=device)
    torch.library.opcheck(ops.gaussian_draw_dvar, (gy, mean.square(), *at))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager(device, dynamic):
    """One graph, forward and backward."""
    x, w, b = inputs(device, torch.float32)
    key = torch.tensor(layer_key(*KEY), device=device)

    def loss(x, w, b):
        return draws(x, w, b, key=key).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    eager = torch.autograd.grad(loss(x, w, b), (x, w, b))
    got = torch.autograd.grad(compiled(x, w, b), (x, w, b))
    for a, e in zip(got, eager, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_without_gradients(device):
    """A compiler that traces a call which needs no gradient gets the same bits."""
    x, w, b = (t.detach() for t in inputs(device, torch.float32))
    compiled = torch.compile(draws, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x, w, b), draws(x, w, b))


def test_export_keeps_the_operator():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 7))

        def forward(self, x):
            return draws(x, self.weight)

    net, x = Net(), torch.randn(3, 7)
    with torch.no_grad():
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert "bayes_dc.gaussian_linear.default" in called
    other = torch.randn(6, 7)
    assert torch.equal(program.module()(other), net(other))


@pytest.mark.parametrize("device", DEVICES)
def test_functional_transforms(device):
    x, w, b = inputs(device)

    def loss(w):
        return draws(x, w, b).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(w), torch.autograd.grad(loss(w), w)[0])
    stacked = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda v: draws(v, w, b))(stacked)
    torch.testing.assert_close(mapped[1], draws(2 * x, w, b))
    each = torch.func.vmap(torch.func.grad(lambda v: draws(v, w, b).square().sum()))(stacked)
    alone = torch.autograd.grad(draws(x, w, b).square().sum(), x)[0]
    torch.testing.assert_close(each[0], alone)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_casts_like_f_linear(device):
    """Lower precision forward, float32 parameter gradients."""
    x, w, b = inputs(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        y = draws(x, w, b)
        assert y.dtype == F.linear(x, w, b).dtype == torch.bfloat16
    gy = torch.ones_like(y)
    got = torch.autograd.grad(y, (x, w, b), gy)
    z = reference.explicit_normals(layer_key(*KEY), torch.arange(3), torch.zeros(1).long(), 1, 5)

    def reference_gradients(dtype):
        cast = tuple(t.detach().to(dtype).requires_grad_() for t in (x, w, b))
        moments = reference.moments(cast[0][None, :, None], *cast[1:], 0.5, 2.0)
        y = reference.draw(*moments, z.to(device))
        return torch.autograd.grad(y, cast, gy.to(dtype)[None, :, None])

    exact, eager = reference_gradients(torch.float64), reference_gradients(torch.bfloat16)
    for g, e, v in zip(got, eager, exact, strict=True):
        assert g.dtype == torch.float32
        assert relative_error(g, v) <= 2 * relative_error(e, v)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_in_low_precision(dtype, device):
    """Within twice the error of the reference in the same dtype, float16 in bfloat16's squares."""
    case = make_case(Shape(1, 60, 1, 70, 90), 0.5, dtype)
    x, w, b = (t.to(device).requires_grad_() for t in case.on("cpu"))
    gy = torch.randn(1, 60, 1, 70, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    y = op.gaussian_linear(x, w, b, *case.at(device), *case.options.values())
    got = torch.autograd.grad(y, (x, w, b), gy)

    def reference_gradients(kind):
        x, w, b = (t.to(device).to(kind).requires_grad_() for t in case.on("cpu"))
        moments = reference.moments(x, w, b, case.digits.keep_probability, case.scale)
        y = reference.draw(*moments, case.z.to(device))
        return torch.autograd.grad(y, (x, w, b), gy.to(kind))

    exact = reference_gradients(torch.float64)
    eager = reference_gradients(torch.bfloat16 if dtype == torch.float16 else dtype)
    for g, e, want in zip(got, eager, exact, strict=True):
        assert g.dtype == dtype
        error = (g.double() - want).norm() / want.norm()
        assert error <= 2 * (e.double() - want).norm() / want.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", ["inverted", "none"])
def test_rows_of_several_dimensions_and_passes(scale, device):
    """[B, L, K] rows and two passes, against the reference."""
    B, L, N, K, passes = 3, 2, 5, 7, 2
    x = torch.randn(passes * B, L, K, dtype=torch.float64, device=device)
    _, w, b = inputs(device, grad=False)
    sample_ids, pass_ids = torch.tensor([4, 9, 2]), torch.tensor([1, 6])
    ids = {"sample_ids": sample_ids.to(device), "pass_ids": pass_ids.to(device)}
    got = draws(x, w, b, p=0.25, scale=scale, **ids)
    rows = (sample_ids[:, None] * L + torch.arange(L)).flatten()
    # A row of N outputs may lack the other half of its last pair of normals.
    wide = reference.explicit_normals(layer_key(*KEY), rows, pass_ids, 1, N + 4)
    keep = keep_digits(0.25).keep_probability
    x4 = x.cpu().view(passes, B * L, 1, K)
    factor = 1 / keep if scale == "inverted" else 1.0
    mean, var = reference.moments(x4, w.cpu(), b.cpu(), keep, factor)
    want = reference.draw(mean, var, wide[..., :N])
    assert got.shape == (passes * B, L, N)
    error = (got.cpu().view_as(want) - want).abs()
    assert (error <= var.sqrt() * normal_bound(wide)[..., :N]).all()  # normals are float32


@pytest.mark.parametrize("device", DEVICES)
def test_shared_input_equals_repeated_input(device):
    """S rows and P passes: every pass reads the same rows."""
    x, w, b = inputs(device, torch.float32, grad=False)
    at = {
        "sample_ids": torch.arange(3, device=device),
        "pass_ids": torch.arange(4, device=device),
    }
    shared, repeated = draws(x, w, b, **at), draws(x.repeat(4, 1), w, b, **at)
    assert shared.shape == (12, 5)
    if device == "cpu":
        assert torch.equal(shared, repeated)
    else:  # a vendor's matrix product may round with the number of rows
        torch.testing.assert_close(shared, repeated)


@pytest.mark.parametrize("device", DEVICES)
def test_one_dimensional_and_empty_inputs(device):
    x, w, b = inputs(device, torch.float32, grad=False)
    one = draws(x[0], w, b)
    assert one.shape == (5,)
    torch.testing.assert_close(one, draws(x[:1], w, b)[0])
    empty = torch.zeros(0, 7, device=device, requires_grad=True)
    w = w.requires_grad_()
    y = draws(empty, w, b)
    assert y.shape == (0, 5)
    y.sum().backward()
    assert torch.equal(w.grad, torch.zeros_like(w))
    assert draws(x, w[:0], b[:0]).shape == (3, 0)


def test_no_drop_is_f_linear():
    x, w, b = inputs("cpu", torch.float32)
    assert torch.equal(draws(x, w, b, p=0.0), F.linear(x, w, b))


def test_draws_differ_by_row_pass_and_key():
    x, w = torch.ones(8, 64), torch.randn(16, 64)
    y = draws(x, w)
    assert len({tuple(row.tolist()) for row in y}) == 8
    assert not torch.equal(y, draws(x, w, key=MaskKey(7)))
    assert not torch.equal(y, draws(x, w, pass_ids=torch.tensor([1])))


X, W, B = torch.zeros(4, 3), torch.zeros(2, 3), torch.zeros(2)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("sampler must be one of ('bernoulli', 'gaussian'); got 'normal'", {"sampler": "normal"}),
        (
            "sampler='gaussian' needs scope='row'; got scope='pass'. It draws every row on its own",
            {"scope": "pass"},
        ),
        ("or sampler='bernoulli' to share masks.", {"scope": "sample"}),
        (
            "sampler='gaussian' has normals for fewer than 2**26 outputs; weight has 67108864",
            {"weight": torch.zeros(1, 3).expand(2**26, 3), "bias": None},
        ),
    ],
)
def test_errors_teach(text, change):
    arguments = {"x": X, "weight": W, "bias": B, "sampler": "gaussian", "key": KEY} | change
    x, weight, bias = (arguments.pop(name) for name in ("x", "weight", "bias"))
    with pytest.raises(ValueError, match="sampler") as caught:
        dropconnect_linear(x, weight, bias, **arguments)
    assert text in str(caught.value)


@pytest.mark.interpreter
@pytest.mark.parametrize("shared", [False, True])
def test_the_cuda_implementations_of_the_operators(shared):
    """What the dispatcher calls for CUDA tensors, on CPU tensors in the interpreter."""
    case = make_case(Shape(2, 5, 1, 9, 70), integers=True, shared=shared)
    at = (torch.tensor(WORDS), case.sample_ids, case.pass_ids)
    want = case.run("cpu")
    for allowed in (True, False):
        with tensor_float32(allowed):
            got = op._linear_cuda(case.x, case.w, case.b, *at, *case.options.values())
        torch.testing.assert_close(got, want)
    gy = torch.ones_like(want)
    _, var = case.expected_moments(torch.float32)
    slope = op._dvar_by(op._triton)(gy, var, *at)
    torch.testing.assert_close(slope, op._dvar_by(op._cpu)(gy, var, *at))
    assert_bitwise_equal(
        op._draw_by(op._triton)(var, var, *at, torch.float32),
        op._draw_by(op._triton)(var, var, *at, torch.float32),
        "repeated",
    )


@pytest.mark.parametrize("device", DEVICES)
def test_no_passes_have_zero_gradients(device):
    """Gradients have the shapes of their inputs, which the absent passes share."""
    x, w, b = inputs(device, torch.float32)
    key, sample_ids, pass_ids = coordinates(device, passes=0)
    y = op.gaussian_linear(x[None, :, None], w, b, key, sample_ids, pass_ids, 1, 1, 2.0)
    assert y.shape == (0, 3, 1, 5)
    first = torch.autograd.grad(y.sum(), (x, w, b), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))
    for g, t in zip((*first, *second), (x, w, b, x, w), strict=True):
        assert torch.equal(g, torch.zeros_like(t))
