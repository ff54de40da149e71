"""Real inputs against float64, torch's own convolution, and the moments of the closed form."""

import pytest
import torch
import torch.nn.functional as F
from conv_harness import BACKENDS, THOROUGH, Case, Shape, assert_bitwise_equal, conv_id, make_case
from harness import device_of, relative_error

from bayes_dc.ops.conv2d import reference
from bayes_dc.ops.conv2d.reference import Geometry


@pytest.fixture
def no_tf32():
    """Float32 products in float32 on a GPU too, where torch's default rounds to TensorFloat-32."""
    switch = torch.backends.cudnn.conv
    before, switch.fp32_precision = switch.fp32_precision, "ieee"
    yield
    switch.fp32_precision = before


def grouped(case: Case, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """What one would write instead: a masked copy of the weights per image, one grouped conv."""
    P, B, H, W, C, N, KH, KW = case.shape
    x, w, gy = (t.to(device, dtype) for t in (case.x, case.w, case.gy))
    images = x.permute(0, 1, 4, 2, 3).reshape(1, P * B * C, H, W).requires_grad_()
    w = w.permute(0, 3, 1, 2).contiguous().requires_grad_()
    mask = (
        case.mask.to(device).view(P, -1, N, KH, KW, C // case.at.groups).permute(0, 1, 2, 5, 3, 4)
    )
    mask = mask.expand(P, B, *w.shape).reshape(P * B, *w.shape)
    masked = torch.where(mask, w, torch.zeros((), dtype=dtype, device=device)).flatten(0, 1)
    s, p, d, groups = case.at
    y = F.conv2d(images, masked * case.scale, None, s, p, d, groups * P * B)
    y = y.view(P, B, N, *y.shape[2:]).permute(0, 1, 3, 4, 2)
    dx, dw = torch.autograd.grad(y, (images, w), gy)
    if case.b is not None:
        y = y + case.b.to(device, dtype)
    out = {
        "y": y.detach(),
        "dx": dx.view(P, B, C, H, W).permute(0, 1, 3, 4, 2),
        "dw": dw.permute(0, 2, 3, 1),
    }
    return {name: t.cpu() for name, t in out.items()}


GEOMETRIES = [
    (Shape(2, 2, 7, 6, 6, 10), Geometry((1, 1), (1, 1))),
    (Shape(1, 3, 9, 8, 6, 9, 3, 2), Geometry((2, 3), (2, 1), (2, 1), groups=3)),
    (Shape(1, 2, 6, 6, 8, 8), Geometry((2, 2), (1, 1), groups=8)),
]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(("shape", "at"), GEOMETRIES, ids=conv_id)
def test_the_reference_is_torchs_convolution_with_masked_weights(shape, at, shared):
    """Integers: equal, in values and gradients."""
    case = make_case(shape, at, 0.3, torch.float64, integers=True, shared=shared, scale=2.0)
    for (name, got), want in zip(
        case.expected().items(), grouped(case, torch.float64, "cpu").values(), strict=True
    ):
        assert_bitwise_equal(got, want, name)


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("p", [0.5, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=conv_id)
@pytest.mark.parametrize(
    ("shape", "at"),
    [
        (Shape(1, 6, 10, 10, 70, 66), Geometry((1, 1), (1, 1))),
        (Shape(1, 4, 12, 12, 34, 34), Geometry((2, 2), (1, 1), groups=34)),
    ],
    ids=["plain", "depthwise"],
)
@pytest.mark.usefixtures("no_tf32")
def test_error_is_within_twice_the_eager_error(shape, at, dtype, p, backend):
    """The eager error is that of a grouped convolution with masked copies, in the same dtype."""
    if backend == "interpreter":
        if dtype == torch.bfloat16:
            pytest.skip("the interpreter rounds to bfloat16 towards zero; compiled kernels do not")
        shape = shape._replace(B=2, H=4, W=4, C=at.groups if at.groups > 1 else 9, N=34)
    case = make_case(shape, at, p, dtype, scale=1 / (1 - p), bias=False)
    got, want, eager = case.run(backend), case.expected(), grouped(case, dtype, device_of(backend))
    for name in want:
        assert relative_error(got[name], want[name]) <= 2 * relative_error(eager[name], want[name])


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.values != ("interpreter",)])
def test_float64_is_float64(backend):
    """Products and sums in float64, not in float32."""
    shape = Shape(1, 3, 6, 6, 40, 40)
    case = make_case(shape, Geometry((1, 1), (1, 1)), dtype=torch.float64, scale=1 / 0.7)
    got, want = case.run(backend), case.expected()
    for name in want:
        # 360 terms of float64: a float32 sum would be off by 1e-7.
        assert relative_error(got[name], want[name]) < 1e-14


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.values != ("interpreter",)])
@pytest.mark.parametrize("p", [0.5, 0.1])
def test_mean_and_variance_are_those_of_the_closed_form(p, backend):
    """E[y] = W * x + b, Var[y] = p/(1−p) · (W² * x²); bounds are 5 standard errors."""
    passes, at = 4096, Geometry((1, 1), (1, 1))
    case = make_case(Shape(1, 1, 3, 3, 3, 7), at, p, torch.float64)
    q = case.digits.p_effective
    plain = torch.ones(1, 1, 7, 27, dtype=torch.bool)
    mean = reference.forward(case.x, case.w, case.b, plain, 1.0, at)[0, 0]
    second, fourth = (
        reference.forward(case.x**n, case.w**n, None, plain, 1.0, at)[0, 0] for n in (2, 4)
    )
    case.scale = 1 / (1 - q)
    case.x = case.x.expand(passes, 1, 3, 3, 3)
    case.gy = case.gy.expand(passes, 1, 3, 3, 7)
    case.pass_ids = torch.arange(passes)
    y = case.run(backend, only="y")["y"][:, 0]
    variance = q / (1 - q) * second
    assert ((y.mean(dim=0) - mean).abs() <= 5 * (variance / passes).sqrt()).all()
    # Var(s²) ≈ (μ₄ − σ⁴) / T with μ₄ of a sum of independent two-point variables.
    excess = fourth * (q / (1 - q)) ** 2 * ((1 - q) / q + q / (1 - q) - 4)
    spread = ((excess + 2 * variance.square()) / passes).sqrt()
    assert ((y.var(dim=0) - variance).abs() <= 5 * spread).all()


def test_positions_of_an_image_share_its_mask_and_images_do_not():
    """Equal images: outputs differ between images, and are equal at positions that see the same."""
    case = make_case(Shape(1, 4, 6, 6, 3, 8), bias=False)
    case.x = torch.ones_like(case.x)
    y = case.run("cpu", only="y")["y"][0]
    assert (y == y[:, :1, :1]).all()
    assert len(y[:, 0, 0].unique(dim=0)) == 4
    shared = make_case(Shape(1, 4, 6, 6, 3, 8), bias=False, shared=True)
    shared.x = case.x
    assert len(shared.run("cpu", only="y")["y"][0, :, 0, 0].unique(dim=0)) == 1
