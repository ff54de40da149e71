"""Moments, normals and draws of every implementation."""

import pytest
import torch
from gaussian_case import (
    EPS32,
    Case,
    launchers,
    make_case,
    normal_bound,
    poisoned,
    tensor_float32,
)
from harness import (
    BACKENDS,
    TRITON,
    Shape,
    assert_bitwise_equal,
    device_of,
    relative_error,
    shape_id,
)

from bayes_dc.ops.gaussian import reference

SHAPES = [
    Shape(1, 5, 1, 33, 7),  # tails along n and k
    Shape(2, 3, 2, 10, 12),  # several rows of a group
    Shape(1, 9, 1, 64, 32),  # no tails
    Shape(3, 2, 1, 37, 21),
    Shape(1, 1, 1, 1, 1),
    Shape(1, 37, 1, 5, 130),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=shape_id)
@pytest.mark.parametrize("shape", [Shape(2, 3, 2, 37, 1), Shape(1, 2, 1, 260, 1)], ids=shape_id)
def test_normals_are_those_of_the_reference(shape, dtype, backend):
    """Draws of mean 0 and variance 1."""
    P, S, R, N, _ = shape
    device = device_of(backend)
    case = make_case(shape)
    out = poisoned(P, S, R, N, dtype=dtype, device=device)
    mean = torch.zeros_like(out)
    launchers(backend)[0](mean, mean + 1, *case.at(device), out)
    # Without its last quad a row may lack the other half of a pair: that of four more is complete.
    padded = make_case(Shape(P, S, R, N + 4, 1)).z
    assert ((out.cpu().double() - case.z).abs() <= normal_bound(padded)[..., :N]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_integer_inputs_have_exact_moments(shape, dtype, shared, backend):
    """Sums that cannot round: draws from the moments of the kernel are those of exact moments."""
    case = make_case(shape, 0.5, dtype, integers=True, shared=shared)
    device = device_of(backend)
    mean, var = (t.float() for t in case.expected_moments())
    if backend != "cpu":
        for name, got, want in zip("mv", case.moments(backend), (mean, var), strict=True):
            assert_bitwise_equal(got, want, name)
    P, S, R, N, _ = shape
    want = poisoned(P, S, R, N, dtype=dtype, device=device)
    launchers(backend)[0](mean.to(device), var.to(device), *case.at(device), want)
    got, want = case.run(backend), want.cpu()
    if backend == "cpu" or case.x.shape[0] < P:
        assert_bitwise_equal(got, want, "y")
        return
    # A multiplication and an addition may be fused in one kernel and not in the other: in the
    # normals, and in mean + √var z. Either result is then rounded.
    sigma, z = var.sqrt(), case.z.float()
    bound = 2 * EPS32 * (mean.abs() + 2 * (sigma * z).abs()) + torch.finfo(dtype).eps * want.abs()
    padded = make_case(shape._replace(N=N + 4)).z
    bound = bound + 2 * sigma * normal_bound(padded)[..., :N]
    assert ((got - want).abs() <= bound).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=shape_id)
def test_error_is_within_twice_the_eager_error(dtype, shared, p, backend):
    """The eager error is that of torch's products, root and normals in the same dtype."""
    if backend != "cpu" and dtype == torch.float64:
        pytest.skip("float64 takes torch's products")
    if backend == "interpreter" and dtype != torch.float32:
        pytest.skip("the interpreter rounds to 16 bits towards zero; compiled kernels do not")
    shape = Shape(2, 100, 1, 130, 515) if backend != "interpreter" else Shape(1, 12, 1, 34, 67)
    case = make_case(shape, p, dtype, shared=shared)
    want = case.expected()
    with tensor_float32(True):
        eager = case.expected(dtype, device_of(backend))
    error = relative_error(case.run(backend), want)
    if dtype == torch.float64:
        # Normals are float32: their bound is what remains.
        assert error <= relative_error(case.z + normal_bound(case.z), case.z)
    elif backend == "interpreter":
        assert error <= 2 * 2.0**-8  # squares with 8 bits, cut off
    else:
        assert error <= 2 * relative_error(eager, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=shape_id)
def test_large_and_small_operands_keep_their_squares(dtype, backend):
    """Squares of 300 and of 2⁻¹² leave float16, not bfloat16."""
    case = make_case(Shape(1, 4, 1, 8, 16), 0.5, dtype, bias=False)
    case.x, case.w = case.x.sign() * 300, case.w.sign() * 2.0**-12
    got, want = case.run(backend), case.expected()
    eager = case.expected(torch.bfloat16)  # whose squares neither overflow nor vanish
    assert relative_error(got, want) <= 2 * relative_error(eager, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides(backend):
    """Transposed x and w, a bias and ids with gaps, an output within another."""
    N = 21
    case = make_case(Shape(2, 3, 1, N, 12), integers=True)
    want = case.run(backend)
    case.x = case.x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    case.w = case.w.T.contiguous().T
    case.b = torch.stack([case.b, case.b], dim=1)[:, 0]
    case.sample_ids = torch.stack([case.sample_ids, case.sample_ids], dim=1)[:, 0]
    case.pass_ids = torch.stack([case.pass_ids, case.pass_ids], dim=1)[:, 0]
    assert case.w.stride() == (1, N)
    assert_bitwise_equal(case.run(backend), want, "y")
    whole = poisoned(N + 2, 1, 5, 3, dtype=want.dtype, device=device_of(backend))
    out = whole[1:-1, :, 1:4, :2].permute(3, 2, 1, 0)
    assert_bitwise_equal(case.run(backend, out=out), want, "y within another tensor")
    assert int(whole.isnan().sum()) == whole.numel() - want.numel()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_does_not_know_the_others(backend):
    """The same bits in another batch, at another place, beside NaN, and in any order of passes."""
    N, K = 70, 150
    # NumPy's products, which the interpreter uses, round with the place of a row.
    case = make_case(Shape(3, 40, 1, N, K), integers=backend == "interpreter")
    whole = case.run(backend)
    keep = torch.tensor([17, 3, 39])
    order = torch.tensor([2, 0])
    fewer = Case(
        Shape(2, 3, 1, N, K),
        case.x[order][:, keep],
        case.w,
        case.b,
        case.sample_ids[keep],
        case.pass_ids[order],
        case.digits,
        case.scale,
    )
    assert_bitwise_equal(fewer.run(backend), whole[order][:, keep], "y")
    fewer.x[0, 1] = float("nan")
    got = fewer.run(backend)
    assert got[0, 1].isnan().all()
    assert_bitwise_equal(got[1], whole[0][keep], "the other pass")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [False, True])
def test_gradient_of_the_variance(shared, backend):
    """gy z / (2 σ), summed over the passes that share it; 0 where the variance is 0 or less."""
    P, S, R, N, _ = shape = Shape(3, 4, 2, 39, 1)
    device = device_of(backend)
    case = make_case(shape)
    generator = torch.Generator().manual_seed(1)
    gy = torch.randn(P, S, R, N, generator=generator)
    var = torch.rand(1 if shared else P, S, R, N, generator=generator) + 0.1
    var[0, 0, 0, :3] = torch.tensor([0.0, -1.0, float("nan")])
    out = poisoned(*var.shape, dtype=torch.float32, device=device)
    launchers(backend)[1](gy.to(device), var.to(device), *case.at(device), out)
    exact = var.double().requires_grad_()
    z = case.z
    reference.draw(torch.zeros_like(exact), exact, z).backward(gy.double())
    got, want = out.cpu().double(), exact.grad
    assert got[0, 0, 0, :2].tolist() == [0.0, 0.0]
    assert got[0, 0, 0, 2].isnan()
    # Every term has the error of its normal, and rounds when it is multiplied and added; the root
    # and the quotient have two half units each on a GPU, the products with them one.
    slope = gy.double().abs() / (2 * var.double().clamp(min=0.1).sqrt())
    padded = make_case(shape._replace(N=N + 4)).z
    terms = slope * (normal_bound(padded)[..., :N] + (1 + P) * EPS32 * z.abs())
    bound = terms.sum(dim=0, keepdim=True) if shared else terms
    known = ~got.isnan()
    assert ((got - want).abs()[known] <= (bound + 6 * EPS32 * want.abs())[known]).all()


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
def test_configurations_change_no_integer_moment(dtype, backend):
    from bayes_dc.ops.gaussian.triton_moments import GaussianConfig

    case = make_case(Shape(1, 70, 1, 75, 100), 0.5, dtype, integers=True)
    want = [t.float() for t in case.expected_moments()]
    draws = case.run(backend)
    for config in (
        GaussianConfig(16, 16, 16, 4, 1),
        GaussianConfig(64, 32, 32, 4, 2),
        GaussianConfig(32, 128, 64, 4, 3),
        GaussianConfig(128, 16, 16, 8, 2),
    ):
        for got, expected in zip(case.moments(backend, config=config), want, strict=True):
            assert_bitwise_equal(got, expected, str(config))
        assert_bitwise_equal(case.run(backend, config=config), draws, str(config))


@pytest.mark.interpreter
def test_the_bias_may_lie_far_apart():
    """Its last element 2**31 elements after the first: the offset does not fit an int32."""
    case = make_case(Shape(1, 2, 1, 9, 12), dtype=torch.float16, integers=True)
    want = case.run("interpreter")
    far = torch.empty(2**31 + 1, dtype=torch.float16)[:: 2**28]
    case.b = far.copy_(case.b)
    assert_bitwise_equal(case.run("interpreter"), want, "y")
