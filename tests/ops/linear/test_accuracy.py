"""Real inputs against float64, and the moments of the closed form."""

import pytest
import torch
from harness import BACKENDS, Shape, device_of, make_case, relative_error, shape_id

from bayes_dc.ops.linear import reference


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [0.5, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=shape_id)
def test_error_is_within_twice_the_eager_error(dtype, p, backend):
    """The eager error is that of masked weights and torch's matrix products in the same dtype."""
    big = backend != "interpreter"
    if not big and dtype == torch.bfloat16:
        pytest.skip("the interpreter rounds to bfloat16 towards zero; compiled kernels do not")
    shape = Shape(2, 100, 1, 130, 515) if big else Shape(1, 12, 1, 34, 67)
    case = make_case(shape, p, dtype, scale=1 / (1 - p))
    got, want, eager = case.run(backend), case.expected(), case.expected(dtype, device_of(backend))
    for name in want:
        assert relative_error(got[name], want[name]) <= 2 * relative_error(eager[name], want[name])


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.values != ("interpreter",)])
def test_float64_is_float64(backend):
    """Products and sums in float64, not in float32."""
    case = make_case(Shape(1, 20, 1, 40, 300), dtype=torch.float64, scale=1 / 0.7)
    got, want = case.run(backend), case.expected()
    for name in want:
        # 300 terms of float64: a float32 sum would be off by 1e-7.
        assert relative_error(got[name], want[name]) < 1e-14


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.values != ("interpreter",)])
@pytest.mark.parametrize("p", [0.5, 0.25, 0.1])
def test_mean_and_variance_are_those_of_the_closed_form(p, backend):
    """E[y] = W x + b, Var[y_n] = p/(1−p) Σ_k (W_nk x_k)²; bounds are 5 standard errors."""
    passes, N, K = 4096, 48, 40
    case = make_case(Shape(passes, 1, 1, N, K), p)
    q = case.digits.p_effective
    case.scale = 1 / (1 - q)
    case.x = case.x[:1].expand(passes, 1, 1, K)
    y = case.run(backend)["y"].double().view(passes, N)
    x, w = case.x[0, 0, 0].double(), case.w.double()
    terms = (w * x).square()
    mean, variance = w @ x + case.b.double(), q / (1 - q) * terms.sum(dim=1)
    standard_error = (variance / passes).sqrt()
    assert ((y.mean(dim=0) - mean).abs() <= 5 * standard_error).all()
    # Var(s²) ≈ (μ₄ − σ⁴) / T with μ₄ of a sum of independent two-point variables.
    fourth = terms.square().sum(dim=1) * (q / (1 - q)) ** 2 * ((1 - q) / q + q / (1 - q) - 4)
    spread = ((fourth + 2 * variance.square()) / passes).sqrt()
    assert ((y.var(dim=0) - variance).abs() <= 5 * spread).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_published_formulation(backend):
    """p = 0.5, no scaling: one copy of the weight per row, masked, matrix product, plus bias.

    Wan et al. 2013: y = (M ⋆ W) x + b with a mask M of its own for every example.
    """
    shape = Shape(1, 8, 1, 12, 20)
    case = make_case(shape, integers=True)
    x = case.x[0, :, 0].double().requires_grad_()
    w = case.w.double().requires_grad_()
    b = case.b.double().requires_grad_()
    copies = w.unsqueeze(0).repeat(8, 1, 1) * case.mask[0].double()
    y = torch.bmm(copies, x.unsqueeze(2)).squeeze(2) + b
    y.backward(case.gy[0, :, 0].double())
    got = case.run(backend)
    assert torch.equal(got["y"][0, :, 0].double(), y.detach())
    assert torch.equal(got["dx"][0, :, 0].double(), x.grad)
    assert torch.equal(got["dw"].double(), w.grad)
    assert torch.equal(case.gy[0, :, 0].double().sum(dim=0), b.grad)


def test_reference_gradients_are_those_of_autograd():
    """The three reference functions belong together."""
    case = make_case(Shape(2, 3, 2, 4, 5), 0.3, torch.float64, scale=1.5)
    x, w = case.x.requires_grad_(), case.w.requires_grad_()
    y = reference.forward(x, w, case.b, case.mask, case.scale)
    dx, dw = torch.autograd.grad(y, (x, w), case.gy)
    torch.testing.assert_close(reference.grad_input(case.gy, w, case.mask, case.scale), dx)
    torch.testing.assert_close(reference.grad_weight(case.gy, x, case.mask, case.scale), dw)
