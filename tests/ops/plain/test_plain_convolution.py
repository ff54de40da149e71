"""Convolutions without masks, and what forwards do to their results before they write them."""

import re

import pytest
import torch
import torch.nn.functional as F
from conv_harness import Shape, conv_id, make_case
from harness import KEY
from harness import Shape as LinearShape
from harness import make_case as make_linear_case
from plain_harness import TRITON, as_exact_as, equal, numbers, on, room_like

from bayes_dc.ops import _epilogue
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.ops.gaussian.factors import rounded

# images and channels, then geometry: of tiles, gathered, whole, in groups, one channel each
CASES = [
    (Shape(1, 3, 6, 5, 16, 40, 3, 3), Geometry(padding=(1, 1))),
    (Shape(1, 2, 7, 6, 5, 33, 3, 2), Geometry(stride=(2, 1), padding=(2, 0), dilation=(1, 2))),
    (Shape(1, 2, 6, 6, 1, 6, 5, 5), Geometry()),
    (Shape(1, 2, 5, 5, 40, 48, 3, 1), Geometry(groups=2)),
    (Shape(1, 2, 6, 5, 7, 7, 3, 3), Geometry(padding=(1, 1), groups=7)),
]
ON_HOPPER = [
    (Shape(1, 5, 12, 10, 64, 72, 3, 3), Geometry(padding=(1, 1))),
    (Shape(1, 33, 4, 4, 128, 136, 3, 3), Geometry(padding=(1, 1))),
    (Shape(1, 9, 8, 8, 72, 256, 1, 1), Geometry()),
    (Shape(1, 3, 16, 14, 64, 128, 3, 3), Geometry(stride=(2, 2), padding=(1, 1))),
    (Shape(1, 1, 9, 40, 64, 64, 5, 1), Geometry(padding=(2, 0))),
]


def convolve(x, w, bias, out, at, epilogue=None):
    from bayes_dc.ops.plain.triton_conv2d import launch_conv2d

    launch_conv2d(x, w, bias, out, **at._asdict(), epilogue=epilogue)


def inputs(shape, at, dtype, backend, *, integers=True):
    """x, w, bias as modules have them, and room for the result, all channels last."""
    case = make_case(shape, at, 0.0, dtype, integers=integers)
    x, w, bias, gy = on(backend, case.x[0], case.w, case.b, case.gy[0])
    x, w, out = (t.permute(0, 3, 1, 2) for t in (x, w, room_like(gy)))
    return x, w, bias, out


def vectors(n, backend):
    """Factors that round nothing, and summands."""
    return on(backend, *(numbers(n, dtype=torch.float32, integers=True, seed=s) for s in (4, 5)))


def finished(y, scale, shift, relu, channels=1):
    """The epilogue in float64."""
    view = [-1 if d == channels % y.dim() else 1 for d in range(y.dim())]
    y = y.double()
    y = y if scale is None else y * scale.cpu().double().view(view)
    y = y if shift is None else y + shift.cpu().double().view(view)
    return y.relu() if relu else y


def everywhere(t):
    """float64 on the CPU."""
    return None if t is None else t.cpu().double()


def cut_off(t):
    """Float32 without the bits that TensorFloat-32 has not."""
    return (t.view(torch.int32) & (-1 << 13)).view(torch.float32)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "at"), CASES, ids=conv_id)
def test_integers_are_exact(shape, at, dtype, backend):
    """With everything that follows, and with nothing."""
    x, w, bias, out = inputs(shape, at, dtype, backend)
    scale, shift = vectors(shape.N, backend)
    y = F.conv2d(*map(everywhere, (x, w, bias)), **at._asdict())
    for epilogue in (None, (scale, shift, True), (None, shift, False), (None, None, True)):
        convolve(x, w, bias, out.fill_(float("nan")), at, epilogue)
        equal(out, (y if epilogue is None else finished(y, *epilogue)).to(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "at"), ON_HOPPER, ids=conv_id)
def test_integers_are_exact_on_tensor_cores(shape, at, dtype):
    x, w, bias, out = inputs(shape, at, dtype, "cuda")
    scale, shift = vectors(shape.N, "cuda")
    y = F.conv2d(*map(everywhere, (x, w, bias)), **at._asdict())
    for epilogue in (None, (scale, shift, True)):
        convolve(x, w, bias, out.fill_(float("nan")), at, epilogue)
        equal(out, (y if epilogue is None else finished(y, *epilogue)).to(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "at"), [*CASES, *ON_HOPPER], ids=conv_id)
def test_accuracy(shape, at, dtype):
    """As cuDNN's; float32 is multiplied as TensorFloat-32, as its switch allows.

    cuDNN may not take that for small images. What it is compared with is a product of operands
    as the tensor cores read them: x without its last 13 bits, w rounded before.
    """
    x, w, bias, out = inputs(shape, at, dtype, "cuda", integers=False)
    convolve(x, w, bias, out, at)
    if dtype == torch.float32:
        operands = cut_off(x), rounded(w), bias
        eager = F.conv2d(*map(everywhere, operands), **at._asdict())
    else:
        eager = F.conv2d(x, w, bias, **at._asdict())
    as_exact_as(out, eager, F.conv2d(*map(everywhere, (x, w, bias)), **at._asdict()), "cuda")


@pytest.mark.parametrize("backend", TRITON)
def test_images_may_lie_apart(backend):
    """Channels are neighbours; rows and images are cut out of a larger tensor."""
    room = numbers(3, 9, 8, 16, dtype=torch.float32, integers=True)
    w = numbers(8, 3, 3, 16, dtype=torch.float32, integers=True)
    room, w = on(backend, room, w)
    x, w = room[:2, 1:7, 2:7].permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    out = room_like(room.new_empty(2, 4, 3, 8)).permute(0, 3, 1, 2)
    convolve(x, w, None, out, Geometry())
    equal(out, F.conv2d(x.cpu(), w.cpu()))


@pytest.mark.parametrize("name", ["x", "w", "out"])
def test_other_layouts_are_refused(name):
    pytest.importorskip("triton", reason="needs triton")
    sizes = {"x": (2, 3, 4, 4), "w": (5, 3, 2, 2), "out": (2, 5, 3, 3)}
    last = {key: torch.empty(s).to(memory_format=torch.channels_last) for key, s in sizes.items()}
    last[name] = last[name].contiguous()
    said = f"neighbours in memory; {name} has shape {list(sizes[name])} and strides "
    with pytest.raises(ValueError, match=re.escape(said)):
        convolve(last["x"], last["w"], None, last["out"], Geometry())


EPILOGUES = [(True, True, True), (True, False, False), (False, True, True)]


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("parts", EPILOGUES, ids=str)
@pytest.mark.parametrize("groups", [1, 7], ids=["products", "one channel each"])
def test_epilogue_of_a_masked_convolution(groups, parts, backend):
    """Before it is rounded, after the bias; the bits without it are those of the other tests."""
    from bayes_dc.ops.conv2d.triton_fwd import launch_fwd

    at = Geometry(padding=(1, 0), groups=groups)
    case = make_case(Shape(1, 2, 3, 4, 7, 35, 2, 1), at, 0.5, integers=True)
    scale, shift = vectors(35, backend)
    epilogue = scale if parts[0] else None, shift if parts[1] else None, parts[2]
    want = finished(case.expected()["y"], *epilogue, channels=-1)
    tensors = case.x, case.w, case.b, torch.tensor(KEY), case.sample_ids, case.pass_ids
    out = on(backend, torch.full(want.shape, float("nan")))[0]
    launch_fwd(*on(backend, *tensors), out, **case.options, epilogue=epilogue)
    equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("parts", EPILOGUES, ids=str)
@pytest.mark.parametrize("rows", [1, 20], ids=["rows", "groups"])
def test_epilogue_of_a_masked_linear_layer(rows, parts, backend):
    from bayes_dc.ops.linear import triton_fwd, triton_grouped_fwd

    case = make_linear_case(LinearShape(1, 2, rows, 37, 20), 0.5, integers=True)
    scale, shift = vectors(37, backend)
    epilogue = scale if parts[0] else None, shift if parts[1] else None, parts[2]
    want = finished(case.expected()["y"], *epilogue, channels=-1)
    launch = (triton_fwd if rows == 1 else triton_grouped_fwd).launch_fwd
    tensors = case.x, case.w, case.b, torch.tensor(KEY), case.sample_ids, case.pass_ids
    out = on(backend, torch.full(want.shape, float("nan")))[0]
    keep, bits = case.digits
    launch(*on(backend, *tensors), out, keep=keep, bits=bits, scale=case.scale, epilogue=epilogue)
    equal(out, want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_epilogue_on_tensor_cores(dtype):
    """The Hopper kernels of both ops, at sizes that they take."""
    from bayes_dc.ops.conv2d import triton_fwd as conv
    from bayes_dc.ops.linear import triton_grouped_fwd as linear

    scale, shift = vectors(128, "cuda")
    images = make_case(Shape(2, 3, 8, 8, 64, 128, 3, 3), Geometry(padding=(1, 1)), 0.5, dtype)
    for case, launch in (
        (images, conv.launch_fwd),
        (make_linear_case(LinearShape(2, 3, 64, 128, 64), 0.5, dtype), linear.launch_fwd),
    ):
        y = case.expected()["y"]
        tensors = case.x, case.w, case.b, torch.tensor(KEY), case.sample_ids, case.pass_ids
        x, w, *rest = on("cuda", *tensors)
        keep, bits = case.digits
        options = {"keep": keep, "bits": bits, "scale": case.scale}
        if launch is conv.launch_fwd:
            options |= images.at._asdict()
        plain, out = (torch.full(y.shape, float("nan"), dtype=dtype, device="cuda") for _ in "ab")
        launch(x, w, *rest, plain, **options)
        launch(x, w, *rest, out, **options, epilogue=(scale, shift, True))
        as_exact_as(out, finished(plain.cpu(), scale, shift, True, -1).to(dtype),
                    finished(y, scale, shift, True, -1), "cuda")  # fmt: skip


def test_an_epilogue_is_checked():
    out = torch.empty(2, 5)
    said = (
        "epilogue shift must be a contiguous floating-point vector of 5 numbers on cpu, one for "
        "each output; got shape [4], strides [1], torch.float32 on cpu."
    )
    with pytest.raises(ValueError, match=re.escape(said)):
        _epilogue.options((None, torch.ones(4), False), out)
    for bad in (
        torch.ones(10)[::2],
        torch.ones(5, dtype=torch.int64),
        torch.ones(5, device="meta"),
    ):
        with pytest.raises(ValueError, match="epilogue scale must be a contiguous floating-point"):
            _epilogue.options((bad, None, False), out)


def test_an_epilogue_in_steps_of_torch():
    """For results that no kernel made: products of nothing."""
    out = torch.tensor([[1.0, -2.0, 3.0]])
    _epilogue.in_place((torch.tensor([2.0, 1.0, -1.0]), torch.ones(3), True), out)
    assert out.tolist() == [[3.0, 0.0, 0.0]]
    _epilogue.in_place(None, out)
    assert _epilogue.options(None, out) == {}
    assert _epilogue.options((None, None, True), out)["EPILOGUE"] == 4
