"""The portable Triton kernels of the convolution, path by path; integers, so results are exact."""

from dataclasses import replace

import pytest
import torch
from conv_harness import (
    TRITON,
    Case,
    Shape,
    assert_same,
    conv_id,
    make_case,
)
from harness import relative_error

from bayes_dc.ops import _conv, _device
from bayes_dc.ops._conv import ConvConfig
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.ops.gaussian.factors import rounded


@pytest.fixture(autouse=True)
def portable(request, monkeypatch):
    """Leave nothing to the kernels written for one GPU."""
    if "backend" in request.fixturenames:
        from bayes_dc.ops.conv2d import triton_few, triton_hopper_dw, triton_hopper_gemm

        for module in (triton_few, triton_hopper_dw, triton_hopper_gemm):
            monkeypatch.setattr(module, "suits", lambda *args, **options: False)


def check(case: Case, backend: str, **options) -> None:
    assert_same(case.run(backend, **options), case.expected())


PATHS = {
    "a tap in each step": (Shape(1, 2, 3, 4, 32, 33, 2, 1), Geometry(padding=(1, 0))),
    "k runs through taps": (Shape(1, 2, 4, 3, 12, 33, 2, 2), Geometry(padding=(0, 1))),
    "all of k in a tile": (Shape(2, 2, 4, 9, 1, 5, 3, 3), Geometry((1, 1), (1, 1))),
    "more phases than taps": (Shape(1, 1, 7, 8, 4, 3, 1, 2), Geometry((3, 2))),
    "strides that share a factor with dilation": (
        Shape(1, 1, 9, 8, 4, 3, 2, 3),
        Geometry((2, 4), (1, 2), (2, 2)),
    ),
    "dilation": (Shape(1, 1, 6, 9, 4, 5, 2, 3), Geometry((1, 1), (0, 2), (3, 2))),
    "groups of whole words": (Shape(1, 1, 3, 3, 8, 64, 1, 2), Geometry(groups=2)),
    "groups that start within a word": (Shape(1, 2, 3, 3, 6, 60, 2, 1), Geometry(groups=3)),
    "narrow groups": (Shape(1, 2, 3, 4, 6, 6, 2, 1), Geometry((2, 1), (1, 1), groups=3)),
    "depthwise": (Shape(1, 2, 4, 3, 35, 35, 3, 1), Geometry(padding=(1, 0), groups=35)),
}


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_exact(path, shared, backend):
    check(make_case(*PATHS[path], integers=True, shared=shared), backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=conv_id)
@pytest.mark.parametrize("path", ["all of k in a tile", "depthwise"])
def test_every_type_is_exact(path, dtype, backend):
    shape, at = PATHS[path]
    case = make_case(shape._replace(P=1, B=1), at, dtype=dtype, integers=True, bias=False)
    check(case, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("p", [0.25, 0.1])
def test_every_binary_digit_is_used(p, backend):
    """Also where channels are no multiple of four, so that dx meets words one by one."""
    check(make_case(Shape(1, 1, 2, 3, 3, 4, 1, 2), p=p, integers=True), backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize(
    "config",
    [
        ConvConfig(16, 32, 16),
        ConvConfig(16, 64, 32, rows_first=1),
        ConvConfig(16, 32, 32, tiles=2),
    ],
    ids=str,
)
def test_configurations_give_equal_bits(config, backend):
    case = make_case(Shape(1, 1, 5, 7, 4, 66, 2, 2), Geometry((2, 1), (1, 0)), integers=True)
    check(case, backend, config=config)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("shared", [False, True], ids=["sample", "pass"])
@pytest.mark.parametrize(
    ("path", "splits"), [("k runs through taps", 2), ("all of k in a tile", 5), ("depthwise", 3)]
)
def test_split_weight_gradient_is_exact(path, splits, shared, backend):
    """Runs of units, also such that the last is short or empty, add up to the same integers."""
    shape, at = PATHS[path]
    case = make_case(shape._replace(P=2, B=3), at, integers=True, shared=shared)
    got = case.run(backend, splits=splits, only="dw")
    assert_same(got, case.expected())


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("path", ["a tap in each step", "dilation", "narrow groups"])
def test_offsets_of_64_bits_are_exact(path, backend, monkeypatch):
    """What images of more than 2**31 elements take, on small ones."""
    monkeypatch.setattr(_conv, "is_wide", lambda t: True)
    shape, at = PATHS[path]
    check(make_case(shape._replace(B=1), at, integers=True), backend)


def in_tf32(case: Case) -> Case:
    """The case with its inputs rounded to TensorFloat-32."""
    return replace(case, x=rounded(case.x), w=rounded(case.w), gy=rounded(case.gy))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"])
@pytest.mark.parametrize("C", [3, 64])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=conv_id)
def test_error_is_within_twice_the_eager_error(dtype, precision, C, backend, monkeypatch):
    """The eager error is that of masked weights and torch's products in the same type.

    For TensorFloat-32 it is that of rounded inputs: which shapes torch multiplies so, it chooses.
    """
    monkeypatch.setattr(_device, "convolution_tensor_float32", lambda: precision == "tf32")
    shape = Shape(2, 20, 9, 8, C, 70, 3, 3)
    case = make_case(shape, Geometry((1, 2), (1, 1)), 0.25, dtype, scale=1 / 0.75)
    got, want = case.run(backend), case.expected()
    if dtype == torch.float32 and precision == "tf32":
        eager = in_tf32(case).expected()
    else:
        eager = case.expected(dtype, "cuda")
    for name in want:
        assert relative_error(got[name], want[name]) <= 2 * relative_error(eager[name], want[name])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"])
def test_float64_is_float64(backend):
    case = make_case(Shape(1, 5, 6, 5, 24, 40, 3, 3), dtype=torch.float64, scale=1 / 0.7)
    got, want = case.run(backend), case.expected()
    for name in want:
        # 216 terms of float64: a float32 sum would be off by 1e-7.
        assert relative_error(got[name], want[name]) < 1e-14


@pytest.mark.gpu
def test_an_image_of_more_than_two_to_the_31_elements():
    """A kernel of one tap reads a few of its rows; the offsets of the last need 64 bits."""
    case = make_case(Shape(1, 1, 9, 66, 1, 8, 1, 1), integers=True, bias=False)
    seen, kept = case.x.bfloat16(), case.w.flatten() * case.mask.flatten()
    case.x = torch.zeros(1, 1, 8 * 4096 + 1, 65 * 1024 + 1, 1, dtype=torch.bfloat16)
    assert case.x.numel() > 2**31
    case.x[:, :, ::4096, ::1024] = seen
    case.w, case.gy, case.at = case.w.bfloat16(), case.gy.bfloat16(), Geometry((4096, 1024))
    assert_same(case.run("cuda", only="y"), {"y": seen * kept})


@pytest.mark.parametrize(
    ("positions", "tiles", "message"),
    [
        (2**31, 5, r"takes at most 2147418112 positions .* got 2147483648 positions and 5 tiles"),
        (5, 2**31, r"and 2147483648 tiles\. Pass fewer images, or fewer pass_ids, at a time"),
    ],
)
def test_what_int32_cannot_count_is_refused(positions, tiles, message):
    with pytest.raises(ValueError, match=message):
        _conv.check_sizes(positions, tiles)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 28, 33, 224, 46341, 2**30 + 1, 2**31 - 1])
def test_division_by_multiplication_is_exact(n):
    magic, shift = _conv.divisor(n)
    assert -(2**31) <= magic < 2**31
    for r in {0, 1, n - 1, n, 2 * n - 1, 2**31 - 1, (2**31 - 1) // n * n, (2**31 - 1) // n * n - 1}:
        if 0 <= r < 2**31:
            assert (2 * r * (magic % 2**32) >> 32) >> shift == r // n


def test_splits_and_units_cover_the_images():
    """One split for each program that a large GPU lacks; units of a shared mask fill the splits."""
    assert _conv.dw_splits(2048, 64, 576) == 88
    assert _conv.dw_splits(4096, 512, 4608) == 4
    assert _conv.dw_splits(6, 64, 576) == 6
    assert _conv.dw_splits(512, 2**13, 2**13) == 1
    assert _conv.dw_unit(images=64, samples=64, splits=8) == 1
    assert _conv.dw_unit(images=64, samples=1, splits=8) == 8
    assert _conv.dw_unit(images=5, samples=1, splits=8) == 1
