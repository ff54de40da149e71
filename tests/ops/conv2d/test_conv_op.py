"""The operator as torch sees it: derivatives, compilers, transforms, autocast."""

import contextlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conv_harness import Shape, assert_bitwise_equal, make_case
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc.ops import _conv, dropconnect_conv2d
from bayes_dc.ops.conv2d import op
from bayes_dc.ops.conv2d.reference import Geometry, explicit_masks
from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.types import MaskKey

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
KEY = MaskKey(seed=1, layer=2)


def inputs(device, dtype=torch.float64, rows=2, N=4, C=3, groups=1, size=5, grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, C, size, size), (N, C // groups, 3, 2), (N,))
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_(grad) for t in made)


def operator_arguments(device, shared=False):
    """Of bayes_dc::conv2d, stride 2 × 1, padding 1 × 0, dilation 1 × 2."""
    case = make_case(Shape(2, 3, 6, 5, 4, 6, 3, 2), Geometry((2, 1), (1, 0), (1, 2), 2))
    samples = torch.arange(1 if shared else 3)
    at = (torch.tensor(layer_key(*KEY)), samples, torch.arange(2))
    numbers = (1, 1, 2.0, 2, 1, 1, 0, 1, 2, 2)
    tensors = (t.to(device) for t in (case.x, case.w, case.b, case.gy))
    return *tensors, (*(t.to(device) for t in at), *numbers)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"stride": 2, "padding": (1, 0), "scope": "pass"},
        {"padding": "same", "dilation": 2, "p": 0.3},
    ],
    ids=str,
)
def test_gradients_and_second_gradients(options, device):
    args = inputs(device, size=4)

    def function(x, w, b):
        return dropconnect_conv2d(x, w, b, key=KEY, **options)

    assert torch.autograd.gradcheck(function, args)
    assert torch.autograd.gradgradcheck(function, args)


@pytest.mark.parametrize("groups", [2, 4])
def test_gradients_of_groups(groups):
    args = inputs("cpu", C=4, N=4, groups=groups, size=3)
    function = partial(dropconnect_conv2d, groups=groups, padding=1, key=KEY)
    assert torch.autograd.gradcheck(function, args)
    assert torch.autograd.gradgradcheck(function, args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [False, True])
def test_opcheck(shared, device):
    x, w, b, gy, at = operator_arguments(device, shared)
    ops = torch.ops.bayes_dc
    torch.library.opcheck(ops.conv2d, (x, w, b, *at))
    torch.library.opcheck(ops.conv2d, (x[:1].expand(x.shape), w, None, *at))
    torch.library.opcheck(ops.conv2d_dx, (gy, w, *at, 6, 5))
    torch.library.opcheck(ops.conv2d_dw, (gy, x, *at, 3, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager(dynamic, device):
    """One graph, forward and backward, the same bits."""
    x, w, b = inputs(device, torch.float32)
    key = torch.tensor(layer_key(*KEY), device=device)

    def loss(x, w, b):
        return dropconnect_conv2d(x, w, b, 2, 1, p=0.5, key=key).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    eager = torch.autograd.grad(loss(x, w, b), (x, w, b))
    got = torch.autograd.grad(compiled(x, w, b), (x, w, b))
    for a, e in zip(got, eager, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "frozen"])
def test_compiled_without_gradients(how, device):
    x, w, b = (t.detach() for t in inputs(device, torch.float32))
    function = partial(dropconnect_conv2d, padding="same", key=KEY)
    compiled = torch.compile(function, fullgraph=True)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with context.get(how, contextlib.nullcontext)():
        assert torch.equal(compiled(x, w, b), function(x, w, b))


def test_export_keeps_the_operator():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 3, 3, 3))

        def forward(self, x):
            return dropconnect_conv2d(x, self.weight, padding=1, p=0.5, key=KEY)

    net, x = Net(), torch.randn(3, 3, 6, 6)
    rows, height = torch.export.Dim("rows"), torch.export.Dim("height", min=4, max=64)
    with torch.no_grad():
        program = torch.export.export(net, (x,), dynamic_shapes=({0: rows, 2: height},))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert "bayes_dc.conv2d.default" in called
    other = torch.randn(4, 3, 9, 6)
    assert torch.equal(program.module()(other), net(other))


@pytest.mark.parametrize("device", DEVICES)
def test_functional_transforms(device):
    x, w, b = inputs(device)

    def loss(w, x):
        return dropconnect_conv2d(x, w, b, padding=1, key=KEY).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(w, x), torch.autograd.grad(loss(w, x), w)[0])
    stacked = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda v: dropconnect_conv2d(v, w, b, key=KEY))(stacked)
    assert torch.equal(mapped[1], dropconnect_conv2d(2 * x, w, b, key=KEY))
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, stacked)
    for got, images in zip(each, stacked, strict=True):
        torch.testing.assert_close(got, torch.func.grad(loss)(w, images))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_casts_like_f_conv2d(device):
    """Lower precision forward, float32 parameter gradients that do not overflow like float16."""
    x, w, b = inputs(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        y = dropconnect_conv2d(x, w, b, p=0.5, key=KEY)
        assert y.dtype == F.conv2d(x, w, b).dtype == torch.bfloat16
    full = dropconnect_conv2d(x, w, b, p=0.5, key=KEY)
    gy = torch.full_like(full, 1e5)
    got = torch.autograd.grad(y, (x, w, b), gy.bfloat16())
    want = torch.autograd.grad(full, (x, w, b), gy)
    for g, v in zip(got, want, strict=True):
        assert g.dtype == torch.float32
        assert float((g - v).norm() / v.norm()) < 2e-2  # bfloat16 keeps 8 bits
    with torch.autocast(device, torch.bfloat16):
        assert dropconnect_conv2d(*inputs(device), key=KEY).dtype == torch.float64


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_of_a_sum_has_stride_zero(device):
    x, w, b = inputs(device, torch.float32)
    y = dropconnect_conv2d(x, w, b, padding=1, key=KEY)
    summed = torch.autograd.grad(y.sum(), (x, w, b), retain_graph=True)
    ones = torch.autograd.grad(y, (x, w, b), torch.ones_like(y))
    for a, e in zip(summed, ones, strict=True):
        assert torch.equal(a, e)


def by_masked_weights(x, w, b, ids, passes, p, scale, padding, *geometry):
    """``F.conv2d`` with the masked weights of each row, all in float64."""
    digits = keep_digits(p)
    N, C, KH, KW = w.shape
    mask = explicit_masks(layer_key(*KEY), ids, passes, N, KH * KW * C, digits)
    mask = mask.view(len(passes), len(ids), N, KH, KW, C).permute(0, 1, 2, 5, 3, 4)
    mask = mask.expand(len(passes), len(x) // len(passes), N, C, KH, KW).flatten(0, 1)
    factor = 1 / digits.keep_probability if scale == "inverted" else 1.0
    rows = [
        F.conv2d(
            image[None], torch.where(m, w, 0.0) * factor, b, geometry[0], padding, *geometry[1:]
        )
        for image, m in zip(x, mask, strict=True)
    ]
    return torch.cat(rows)


@st.composite
def calls(draw):
    """Positional arguments and options of the public function, small integers."""
    groups, padding = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["same", "valid", 0, 1, (2, 1)])),
    )
    C, N = groups * draw(st.integers(1, 4)), groups * draw(st.integers(1, 12))
    KH, KW = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = draw(st.sampled_from([1, 2, (1, 3)]))
    stride = 1 if padding == "same" else draw(st.sampled_from([1, 2, (2, 3)]))
    P, S = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    least = 3 * (max(KH, KW) - 1) + 1

    def integers(*size):
        return torch.randint(-2, 3, size, generator=generator).double()

    x = integers(P * S, C, draw(st.integers(least, least + 4)), draw(st.integers(least, least + 4)))
    w = integers(N, C // groups, KH, KW)
    if draw(st.booleans()):
        x = x.to(memory_format=torch.channels_last)
    if draw(st.booleans()):
        w = w.to(memory_format=torch.channels_last)
    b = integers(N) if draw(st.booleans()) else None
    options = {
        "p": draw(st.sampled_from([0.5, 0.25, 0.875])),
        "scope": draw(st.sampled_from(["sample", "pass"])),
        "scale": draw(st.sampled_from(["inverted", "none"])),
        "sample_ids": torch.arange(S) + draw(st.integers(0, 5)),
        "pass_ids": torch.arange(P) + 3,
    }
    return (x, w, b, stride, padding, dilation, groups), options


@given(call=calls())
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")
def test_any_call_is_f_conv2d_with_masked_weights(call):
    """Values, gradients and the memory format of the result, over all arguments."""
    (x, w, b, stride, padding, *rest), options = call
    tensors = [t for t in (x, w, b) if t is not None]
    for t in tensors:
        t.requires_grad_()
    got = dropconnect_conv2d(x, w, b, stride, padding, *rest, key=KEY, **options)
    ids = options["sample_ids"] if options["scope"] == "sample" else torch.zeros(1).long()
    want = by_masked_weights(
        x, w, b, ids, options["pass_ids"], options["p"], options["scale"], padding, stride, *rest
    )
    # Sums of integers times 1 / keep, a power of two, or 8 for p = 7/8, or 4/3: rounded once.
    torch.testing.assert_close(got, want)
    gy = torch.randint(-2, 3, got.shape).double()
    for a, e in zip(
        torch.autograd.grad(got, tensors, gy), torch.autograd.grad(want, tensors, gy), strict=True
    ):
        torch.testing.assert_close(a, e)
    last = any(
        t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, w)
    )
    assert got.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_format_is_that_of_f_conv2d(device):
    """Contiguous unless an argument has its channels last; so ``view`` works as before."""
    x, w, b = inputs(device, torch.float32, C=4, N=6, grad=False)
    x_last = x.to(memory_format=torch.channels_last)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    for image in (x, x_last, x_last[:, :, :, ::1], turned, x[:1, :, :1].expand(2, 4, 5, 5)):
        for weight in (w, w.to(memory_format=torch.channels_last)):
            got = dropconnect_conv2d(image, weight, b, key=KEY)
            assert got.stride() == F.conv2d(image, weight, b).stride()
            want = dropconnect_conv2d(image.contiguous(), w, b, key=KEY)
            assert torch.equal(got, want)
    assert dropconnect_conv2d(x, w, b, key=KEY).view(2, -1).shape == (2, 72)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.5, 0.0])
@pytest.mark.parametrize("scope", ["sample", "pass"])
def test_shared_input_equals_repeated_input(scope, p, device):
    """S images and P passes: every pass reads the same images."""
    x, w, b = inputs(device, grad=False)
    at = {
        "sample_ids": torch.arange(2, device=device),
        "pass_ids": torch.arange(4, device=device),
        "scope": scope,
    }
    shared = dropconnect_conv2d(x, w, b, p=p, key=KEY, **at)
    repeated = dropconnect_conv2d(x.repeat(4, 1, 1, 1), w, b, p=p, key=KEY, **at)
    assert shared.shape == repeated.shape == (8, 4, 3, 4)
    torch.testing.assert_close(shared, repeated)
    assert p == 0 or torch.equal(shared, repeated)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.5, 0.0])
def test_one_image_and_none(p, device):
    x, w, b = inputs(device, torch.float32, grad=False)
    one = dropconnect_conv2d(x[0], w, b, p=p, key=KEY)
    assert one.shape == (4, 3, 4)
    assert torch.equal(one, dropconnect_conv2d(x[:1], w, b, p=p, key=KEY)[0])
    passes = torch.arange(3, device=device)
    many = dropconnect_conv2d(x[0], w, b, p=p, key=KEY, pass_ids=passes, sample_ids=passes[:1])
    assert many.shape == (3, 4, 3, 4)
    torch.testing.assert_close(many[0], one)
    empty = torch.zeros(0, 3, 5, 5, device=device, requires_grad=True)
    w = w.requires_grad_()
    y = dropconnect_conv2d(empty, w, b, p=p, key=KEY)
    assert y.shape == (0, 4, 3, 4)
    y.sum().backward()
    assert torch.equal(w.grad, torch.zeros_like(w))


def test_no_drop_is_f_conv2d():
    x, w, b = inputs("cpu", torch.float32)
    for scale in ("inverted", "none"):
        got = dropconnect_conv2d(x, w, b, 2, 1, p=0.0, key=KEY, scale=scale)
        assert torch.equal(got, F.conv2d(x, w, b, 2, 1))


def test_no_channels():
    """An empty sum is the bias."""
    y = dropconnect_conv2d(torch.zeros(2, 0, 4, 4), torch.zeros(3, 0, 3, 3), torch.ones(3), key=KEY)
    assert torch.equal(y, torch.ones(2, 3, 2, 2))


@pytest.mark.interpreter
@pytest.mark.parametrize("shared", [False, True])
def test_the_cuda_implementations_of_the_operators(shared):
    """What the dispatcher calls for CUDA tensors, on CPU tensors in the interpreter."""
    shape, geometry = Shape(1, 2, 4, 3, 4, 6, 3, 2), Geometry((1, 1), (1, 1), groups=2)
    case = make_case(shape, geometry, integers=True, shared=shared)
    at = (torch.tensor(layer_key(5, 1)), case.sample_ids, case.pass_ids, 1, 1, 1.0)
    at += (1, 1, 1, 1, 1, 1, 2)
    want = case.expected()
    x = case.x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    w = case.w.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert_bitwise_equal(op._fwd_triton(x, w, case.b, *at), want["y"], "y")
    assert_bitwise_equal(op._dx_triton(case.gy, w, *at, 4, 3), want["dx"], "dx")
    assert _conv.dw_splits(2, 6, 12) == 2
    assert_bitwise_equal(op._dw_triton(case.gy, x, *at, 3, 2), want["dw"], "dw")


def test_an_expanded_dimension_is_copied_once():
    """Passes that share images do so after the copy that channels last need."""
    x = torch.randn(1, 2, 3, 4, 5).permute(0, 1, 3, 4, 2).expand(100, 2, 4, 5, 3)
    copied = op._channels_last(x)
    assert torch.equal(copied, x)
    assert copied.stride(-1) == 1
    assert copied.untyped_storage().nbytes() == 2 * 3 * 4 * 5 * 4
    assert op._channels_last(copied) is copied
