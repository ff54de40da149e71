"""What the CPU launchers do with their results before they write them."""

import conv_harness
import harness
import pytest
import torch
from conv_harness import assert_bitwise_equal
from harness import KEY

from bayes_dc.ops.conv2d import cpu as conv
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.ops.linear import cpu as linear

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
ENDINGS = ["scale", "shift", "relu", "scale shift", "scale shift relu"]


def epilogue_of(ending, n, dtype):
    """Vectors of small integers, of both signs."""
    generator = torch.Generator().manual_seed(2)
    scale, shift = (torch.randint(-3, 4, (n,), generator=generator).to(dtype) for _ in range(2))
    parts = ending.split()
    return (scale if "scale" in parts else None, shift if "shift" in parts else None,
            "relu" in parts)  # fmt: skip


def in_steps(y, epilogue):
    """The same by torch, in the precision of the sums."""
    scale, shift, relu = epilogue
    y = y if scale is None else y * scale.double()
    y = y if shift is None else y + shift.double()
    return y.relu() if relu else y


def assert_close_by_one_rounding(got, want):
    """Integers: what the sums hold is exact, and the result is rounded once."""
    assert_bitwise_equal(got, want.to(got.dtype), "y")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
def test_linear(ending, dtype):
    case = harness.make_case(harness.Shape(2, 9, 1, 70, 45), dtype=dtype, integers=True)
    want = in_steps(case.expected()["y"].double(), epilogue_of(ending, 70, dtype))
    out = torch.full((2, 9, 1, 70), float("nan"), dtype=dtype)
    size = linear.workspace_bytes(case.x, case.w, case.b, out)
    linear.launch_fwd(
        *(case.x, case.w, case.b, torch.tensor(KEY), case.sample_ids, case.pass_ids, out),
        keep=case.digits.keep,
        bits=case.digits.bits,
        scale=case.scale,
        epilogue=epilogue_of(ending, 70, dtype),
        workspace=torch.full((size,), 0xFF, dtype=torch.uint8),
    )
    assert_close_by_one_rounding(out, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("N", "groups"), [(70, 1), (40, 2), (12, 12)])
def test_convolutions(N, groups, last, ending, dtype):
    at = Geometry((1, 1), (1, 1), groups=groups)
    shape = conv_harness.Shape(1, 3, 5, 6, 12, N)
    case = conv_harness.make_case(shape, at, dtype=dtype, integers=True)
    want = in_steps(case.expected()["y"], epilogue_of(ending, N, dtype))
    out = torch.full((1, 3, 5, 6, N) if last else (1, 3, N, 5, 6), float("nan"), dtype=dtype)
    out = out if last else out.permute(0, 1, 3, 4, 2)
    size = conv.workspace_bytes(case.x, case.w, out, **at._asdict())
    conv.launch_fwd(
        *(case.x, case.w, case.b, torch.tensor(KEY), case.sample_ids, case.pass_ids, out),
        **case.options,
        epilogue=epilogue_of(ending, N, dtype),
        workspace=torch.full((size,), 0xFF, dtype=torch.uint8),
    )
    assert_close_by_one_rounding(out, want)


def test_no_weights_leave_the_bias_to_be_finished():
    case = conv_harness.make_case(conv_harness.Shape(1, 2, 5, 5, 0, 4), Geometry())
    out = torch.full((1, 2, 3, 3, 4), float("nan"))
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)
    epilogue = (torch.full((4,), 2.0), None, True)
    conv.launch_fwd(case.x, case.w, case.b, *at, out, **case.options, epilogue=epilogue)
    assert_bitwise_equal(out, (case.b * 2).relu().expand(out.shape), "y")


def test_a_nan_stays_one():
    """As in torch's ReLU."""
    case = harness.make_case(harness.Shape(1, 2, 1, 40, 3))
    case.x[0, 0] = float("nan")
    out = torch.empty(1, 2, 1, 40)
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids, out)
    digits = {"keep": case.digits.keep, "bits": case.digits.bits, "scale": 1.0}
    linear.launch_fwd(case.x, case.w, case.b, *at, **digits, epilogue=(None, None, True))
    assert torch.equal(out[0, 0, 0].isnan(), case.mask[0, 0].any(1))
    images = conv_harness.make_case(conv_harness.Shape(1, 2, 3, 3, 2, 40))
    images.x[0, 0] = float("nan")
    out = torch.empty(1, 2, 1, 1, 40)
    at = (torch.tensor(KEY), images.sample_ids, images.pass_ids, out)
    conv.launch_fwd(
        images.x, images.w, images.b, *at, **images.options, epilogue=(None, None, True)
    )
    assert out[0, 0].isnan().all()
    assert (out[0, 1] >= 0).all()


@pytest.mark.parametrize("which", ["scale", "shift"])
def test_vectors_of_another_length_are_refused(which):
    case = harness.make_case(harness.Shape(1, 2, 1, 40, 3))
    epilogue = (torch.ones(39), None, False) if which == "scale" else (None, torch.ones(39), False)
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids, torch.empty(1, 2, 1, 40))
    digits = {"keep": 1, "bits": 1, "scale": 2.0}
    text = rf"epilogue {which} must be .* vector of 40 numbers .* got shape \[39\]"
    with pytest.raises(ValueError, match=text):
        linear.launch_fwd(case.x, case.w, case.b, *at, **digits, epilogue=epilogue)
