"""Faults that users of such tools have met: launches, offsets, precision and gradients."""

import ast
import warnings
from pathlib import Path

import conv_harness
import pytest
import torch
from harness import BACKENDS, GROUPED, KEY, TRITON, Shape, assert_bitwise_equal, make_case
from torch import nn

from bayes_dc import (
    DropConnectLinear,
    convert,
    dropconnect_conv2d,
    dropconnect_linear,
    predict_with_uncertainty,
)
from bayes_dc.ops.linear import reference
from bayes_dc.rng import keep_digits
from bayes_dc.types import MaskKey

OPS = Path(__file__).parents[2] / "bayes_dc" / "ops"
MASKS = MaskKey(5, 1)


def bits_of_masks(ids, N, K, p=0.5):
    """Masks of samples in pass 0, bool [S, N, K]."""
    none = torch.zeros(1, dtype=torch.int64)
    return reference.explicit_masks(KEY, ids, none, N, K, keep_digits(p))[0]


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
def test_layers_without_inputs_or_outputs(sizes):
    """source: triton-lang/triton#10427: sizes of zero divide by zero in the launch."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # torch says that there is nothing to initialise
        layer = DropConnectLinear(*sizes, p=0.5)
    x = torch.zeros(2, sizes[0], requires_grad=True)
    y = layer(x)
    assert torch.equal(y, layer.bias.expand(2, sizes[1]))
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert layer.weight.grad.shape == layer.weight.shape
    assert torch.equal(layer.bias.grad, torch.full((sizes[1],), 2.0))


def grids(path):
    """Launch grids of a file: kernel and line, and the sizes behind the first, as written."""
    tree = ast.parse(path.read_text())
    named = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            named |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        kernel, grid = ast.unparse(node.func.value), node.func.slice
        if "kernel" in kernel:
            grid = named.get(ast.unparse(grid), grid)
            sizes = grid.elts[1:] if isinstance(grid, ast.Tuple) else [grid]
            yield f"{kernel} {path.name}:{node.lineno}", [ast.unparse(size) for size in sizes]


def test_rows_lie_along_the_first_dimension_of_a_grid():
    """source: triton-lang/triton#3299: the others hold 65 535 at most."""
    found = dict(grid for path in sorted(OPS.glob("*/triton_*.py")) for grid in grids(path))
    assert len(found) > 20
    others = {name.split()[0]: sizes for name, sizes in found.items() if sizes}
    assert others == {"mc_stats_passes_kernel": ["J + 3"]}  # J partial sums, at most 20


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_seventy_thousand_rows(kind):
    """source: triton-lang/triton#3299: one mask for each of more rows than 65 535."""
    at = torch.tensor([0, 65_535, 69_999])
    x = torch.randint(-2, 3, (70_000, 4), generator=torch.Generator().manual_seed(0)).float()
    w = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    y = dropconnect_linear(x.to(kind), w.to(kind), key=MASKS, scale="none").cpu()[at]
    want = (bits_of_masks(at, 2, 4) * w * x[at, None]).sum(-1)
    assert_bitwise_equal(y, want, "linear")
    images, kernel = x.view(-1, 4, 1, 1), w.view(2, 4, 1, 1)
    y = dropconnect_conv2d(images.to(kind), kernel.to(kind), key=MASKS, scale="none").cpu()[at]
    assert_bitwise_equal(y[:, :, 0, 0], want, "conv2d")


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_stride_beyond_two_to_the_31(backend):
    """source: microsoft/dion#102: offset 2 400 000 000 wraps to −1 894 967 296 in int32.

    The memory is asked for and not touched: 4.8 GB of addresses, a page for each row.
    """
    rows, stride, K = 3, 1_200_000_000, 4
    case = make_case(Shape(1, rows, 1, 3, K), dtype=torch.float16, integers=True)
    far = torch.empty((rows - 1) * stride + K, dtype=torch.float16)
    far = far.as_strided((1, rows, 1, K), (0, stride, 0, 1))
    far.copy_(case.x)
    want = case.expected()
    case.x = far
    for name, value in case.run(backend, only="y dw").items():
        assert_bitwise_equal(value, want[name], name)


@pytest.mark.parametrize("backend", [*TRITON, *GROUPED])
def test_bfloat16_products_of_integers(backend):
    """source: triton-lang/triton#11584: the interpreter multiplies bit patterns of bfloat16."""
    case = make_case(Shape(1, 1, 16, 16, 16), dtype=torch.bfloat16, integers=True)
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("scope", ["row", "pass"])
def test_float32_is_not_rounded_to_tensor_float_32(p, scope):
    """source: triton-lang/triton#5895: products of float32 have 10 bits by default."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 512, generator=generator) for _ in range(2))
    y = dropconnect_linear(x.cuda(), w.cuda(), p=p, key=MASKS, scope=scope).cpu()
    want = dropconnect_linear(x.double(), w.double(), p=p, key=MASKS, scope=scope)
    assert (y - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.gpu
def test_the_first_gradient_of_a_new_shape_is_that_of_the_second():
    """source: triton-lang/triton#4217: tuning at the first call adds up its trial runs."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.randn(77, 51, generator=generator), torch.randn(93, 51, generator=generator)
    images = torch.randn(5, 3, 11, 13, generator=generator)
    convolution = images, torch.randn(7, 3, 3, 2, generator=generator)
    for function, pair in ((dropconnect_linear, linear), (dropconnect_conv2d, convolution)):
        x, w = (t.cuda().requires_grad_() for t in pair)
        first, second = (
            torch.autograd.grad(function(x, w, key=MASKS).square().sum(), (x, w)) for _ in range(2)
        )
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # NumPy, for idle rows
@pytest.mark.parametrize("backend", [*BACKENDS, *GROUPED])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_dropped_weight_is_not_multiplied_by_zero(backend, bad):
    """source: pytorch/pytorch#59421: 0 · inf is NaN, so a dropped weight still shows."""
    case = make_case(Shape(1, 8, 1, 1, 2), bias=False, scale=2.0)
    kept = case.mask[0, :, 0]
    assert {(False, True), (True, True)} <= set(map(tuple, kept.tolist()))
    case.x, case.w = torch.ones_like(case.x), torch.tensor([[bad, 1.0]])
    y = case.run(backend, only="y")["y"].flatten()
    for value, (first, second) in zip(y, kept.tolist(), strict=True):
        if first:
            assert_bitwise_equal(value, torch.tensor(bad), "kept")
        else:
            assert value == 2.0 * second


def test_masked_weights_of_a_layer_may_be_infinite():
    """source: pytorch/pytorch#59421."""
    layer = DropConnectLinear(2, 1, bias=False, p=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[torch.inf, 1.0]]))
    torch.manual_seed(0)
    y = layer(torch.ones(64, 2))
    assert set(y.flatten().tolist()) == {0.0, 2.0, torch.inf}


def a_function(kind):
    """A layer's function, and arguments that may be checked by finite differences."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    if kind == "conv2d":
        arguments = draw(3, 2, 3, 3), draw(2, 2, 2, 2), draw(2)
        return lambda x, w, b: dropconnect_conv2d(x, w, b, key=MASKS), arguments
    options = {"scope": kind} if kind != "gaussian" else {"sampler": kind}
    arguments = draw(3, 2, 5), draw(4, 5), draw(4)
    return lambda x, w, b: dropconnect_linear(x, w, b, key=MASKS, **options), arguments


@pytest.mark.parametrize("kind", ["row", "sample", "pass", "gaussian", "conv2d"])
def test_gradients_of_input_weight_and_bias(kind):
    """source: kakaobrain/trident#89: the backward kernel is wrong."""
    assert torch.autograd.gradcheck(*a_function(kind))


@pytest.mark.parametrize("kind", ["row", "gaussian", "conv2d"])
def test_second_gradients(kind):
    """source: pytorch/pytorch#58509: a backward of one's own gives wrong second gradients."""
    assert torch.autograd.gradgradcheck(*a_function(kind))


def test_the_share_of_a_million_weights_that_is_kept():
    """source: ooples/AiDotNet.Tensors#732: arguments in the wrong order drop everything."""
    p = keep_digits(0.3).p_effective
    x, w = torch.ones(1, 1_000_000, requires_grad=True), torch.ones(1, 1_000_000)
    y = dropconnect_linear(x, w, p=0.3, key=MASKS)
    y.sum().backward()
    kept = x.grad[x.grad != 0]
    assert kept.numel() / 1_000_000 == pytest.approx(0.7, abs=0.0018)
    assert kept.unique().tolist() == pytest.approx([1 / (1 - p)])
    assert abs(1 / (1 - p) - 1 / 0.7) <= 0.01 / 0.7  # p is a binary fraction, 1 % off at most
    # Sums of ones: exact where they are below 2^24, and scaled once.
    assert y.item() == pytest.approx(kept.numel() / (1 - p), rel=2.0**-22)


@pytest.mark.gpu
def test_coordinates_are_not_read_back_from_a_busy_gpu():
    """source: pytorch/pytorch#197563: the host reads the seed before the device has written it."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 64, generator=generator).cuda().requires_grad_() for _ in range(2))
    at = {"sample_ids": torch.arange(64, device="cuda")}
    at["pass_ids"] = torch.zeros(1, dtype=torch.int64, device="cuda")
    work = torch.randn(8192, 8192, device="cuda")

    def gradients(key):
        return torch.autograd.grad(dropconnect_linear(x, w, key=key, **at).sum(), (x, w))

    words = torch.tensor(KEY, device="cuda")
    idle = gradients(words)
    torch.cuda.synchronize()
    late = torch.zeros_like(words)
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it does not see all that waits
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            work @ work
        late.copy_(words)  # after all that, on the device
        busy = gradients(late)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert torch.equal(idle[0], busy[0])
    assert torch.equal(idle[1], busy[1])


@pytest.mark.gpu
def test_kernels_run_where_the_tensors_are():
    """source: triton-lang/triton#2441: they run on the current device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    convert(model, p=0.5)
    x = torch.randn(5, 2, 6, 6)
    here, there = (
        predict_with_uncertainty(model.to(device), x.to(device), T=8)
        for device in ("cuda:0", "cuda:1")
    )
    assert there.mean.device == torch.device("cuda:1")
    assert_bitwise_equal(there.mean.cpu(), here.mean.cpu(), "mean")


@pytest.mark.parametrize("backend", conv_harness.BACKENDS[:2])
def test_a_stride_of_images_beyond_two_to_the_31(backend):
    """source: microsoft/dion#102: the same for images, of which the kernels read a copy or not."""
    shape = conv_harness.Shape(B=3, H=2, W=2, C=2, N=2, KH=2, KW=2)
    case = conv_harness.make_case(shape, dtype=torch.float16, integers=True)
    want = case.expected()
    far = torch.empty(2 * 1_200_000_000 + 8, dtype=torch.float16)
    far = far.as_strided(case.x.shape, (0, 1_200_000_000, *case.x.stride()[2:]))
    far.copy_(case.x)
    case.x = far
    conv_harness.assert_same(case.run(backend, only="y dw"), want)
