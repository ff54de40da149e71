"""Masks bit for bit, then sums that cannot round, on every implementation."""

import pytest
import torch
from conv_harness import (
    BACKENDS,
    DTYPES,
    KEY,
    THOROUGH,
    Case,
    Shape,
    assert_bitwise_equal,
    assert_same,
    conv_id,
    make_case,
)

from bayes_dc.ops.conv2d import reference
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.rng import keep_digits

CASES = [
    (Shape(1, 2, 6, 5, 3, 4), Geometry((1, 1), (1, 1))),
    (Shape(2, 3, 7, 6, 5, 33), Geometry((2, 1), (1, 2))),
    (Shape(1, 2, 9, 8, 36, 6), Geometry((3, 2), (2, 0), (2, 3))),
    (Shape(2, 1, 5, 5, 12, 20, 3, 2), Geometry((1, 2), (1, 1), groups=4)),
    (Shape(1, 3, 6, 6, 35, 35, 3, 3), Geometry((2, 2), (1, 1), groups=35)),
    (Shape(1, 2, 6, 5, 4, 12, 3, 3), Geometry((1, 1), (2, 2), (2, 1), groups=4)),
    (Shape(3, 2, 4, 4, 40, 64, 1, 1), Geometry((2, 2))),
    (Shape(1, 1, 1, 1, 1, 1, 1, 1), Geometry((1, 1), (3, 1))),
    (Shape(1, 2, 5, 6, 140, 34, 3, 3), Geometry((1, 1), (1, 1))),
]


def probe_masks(backend: str, shape: Shape, groups: int, p: float) -> dict[str, torch.Tensor]:
    """Masks read off unit inputs that all share one: [P, N, K], from forward and gradients."""
    P, _, _, _, C, N, KH, KW = shape
    K = KH * KW * C // groups
    at, digits = Geometry(groups=groups), keep_digits(p)
    sample, passes = torch.tensor([1_000_003]), torch.arange(P) * 97 + 5
    ones = torch.ones(N, KH, KW, C // groups)

    def case(images: int, x: torch.Tensor, gy: torch.Tensor, pass_ids: torch.Tensor) -> Case:
        size = Shape(len(pass_ids), images, KH, KW, C, N, KH, KW)
        return Case(size, at, x, ones, None, gy, sample, pass_ids, digits)

    eye_k = torch.eye(K).view(1, K, KH, KW, 1, C // groups).expand(P, K, KH, KW, groups, -1)
    eye_n = torch.eye(N).view(1, N, 1, 1, N).expand(P, N, 1, 1, N)
    inputs = case(K, eye_k.reshape(P, K, KH, KW, C), torch.zeros(P, K, 1, 1, N), passes)
    outputs = case(N, torch.zeros(P, N, KH, KW, C), eye_n, passes)
    dx = outputs.run(backend, only="dx")["dx"].view(P, N, KH * KW, groups, C // groups)
    own = torch.arange(N) // (N // groups)  # the group of channels that output n reads
    one_x, one_gy = torch.ones(1, 1, KH, KW, C), torch.ones(1, 1, 1, 1, N)
    dw = [case(1, one_x, one_gy, passes[t : t + 1]).run(backend, only="dw")["dw"] for t in range(P)]
    return {
        "y": inputs.run(backend, only="y")["y"].view(P, K, N).transpose(1, 2),
        "dx": dx[:, torch.arange(N), :, own].transpose(0, 1).reshape(P, N, K),
        "dw": torch.stack(dw).view(P, N, K),
        "reference": reference.explicit_masks(KEY, sample, passes, N, K, digits)[:, 0],
    }


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("p", [0.5, 0.25, 0.3])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        (Shape(P=2, C=5, N=37, KH=2, KW=3), 1),
        (Shape(C=32, N=64, KH=1, KW=2), 1),
        (Shape(C=6, N=42, KH=3, KW=1), 3),
        (Shape(C=34, N=34, KH=2, KW=2), 34),
    ],
    ids=str,
)
def test_masks_are_those_of_the_reference(shape, groups, p, backend):
    """Forward, dx and dw meet the reference mask in every bit."""
    found = probe_masks(backend, shape, groups, p)
    want = found.pop("reference")
    for name, mask in found.items():
        assert_bitwise_equal(mask, want.float(), f"mask of {name}")


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("dtype", DTYPES, ids=conv_id)
@pytest.mark.parametrize(("shape", "at"), CASES, ids=conv_id)
def test_integer_inputs_are_exact(shape, at, dtype, shared, backend):
    """With small integers no sum rounds, so a wrong bit or index shows as a difference."""
    case = make_case(shape, at, dtype=dtype, integers=True, shared=shared)
    assert_same(case.run(backend), case.expected())


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("p", [0.25, 0.1, 0.01, 0.9])
def test_every_drop_probability_is_exact(p, backend):
    case = make_case(Shape(2, 2, 5, 4, 5, 35), Geometry((1, 1), (1, 0)), p, integers=True)
    assert_same(case.run(backend), case.expected())


@pytest.mark.parametrize("backend", THOROUGH[1:])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_split_weight_gradient_is_exact(splits, shared, backend):
    """Runs of images, also such that the last is short or empty, add up to the same integers."""
    case = make_case(Shape(2, 2, 5, 4, 5, 34), Geometry((1, 1)), integers=True, shared=shared)
    assert_bitwise_equal(case.run(backend, splits=splits)["dw"], case.expected()["dw"], "dw")


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("groups", [1, 2, 10])
def test_strided_and_expanded_inputs(groups, backend):
    """Channels first, slices, transposed weights, zero strides: same integers."""
    at = Geometry((1, 2), (1, 1), groups=groups)
    plain = make_case(Shape(3, 2, 5, 4, 10, 10), at, integers=True)
    strided = Case(**vars(plain))
    wide = torch.zeros(*plain.x.shape[:-1], 20)
    wide[..., ::2] = plain.x
    strided.x = wide[..., ::2]
    strided.w = plain.w.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    strided.b = plain.b[:1].expand(10)
    strided.gy = plain.gy.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    assert_same(strided.run(backend), strided.expected())
    shared = Case(**vars(plain))
    shared.x = plain.x[:1].expand(plain.x.shape)
    shared.gy = plain.gy[:1, :1, :1, :1, :1].expand(plain.gy.shape)
    assert_same(shared.run(backend), shared.expected())


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_are_taken_modulo_two_to_the_32(backend):
    """Sample 2**32 + 3 is sample 3, and ids beyond 2**31 are not signed."""
    case = make_case(Shape(2, 3, 4, 4, 3, 33), integers=True)
    case.sample_ids = torch.tensor([0, 2**31 + 5, 2**32 - 1])
    case.pass_ids = torch.tensor([2**31, 2**32 - 7])
    want = case.expected()
    assert_same(case.run(backend), want)
    wrapped = Case(**vars(case))
    wrapped.sample_ids = case.sample_ids + 2**32
    wrapped.pass_ids = case.pass_ids - 2**32
    assert_same(wrapped.run(backend), want)


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_dropped_weight_leaves_no_trace(bad, backend):
    """One mask drops all that is not finite; a padding row or column never shows."""
    case = make_case(Shape(1, 1, 4, 4, 5, 33), Geometry((1, 1), (1, 1)), integers=True)
    clean = case.run(backend)
    dropped = ~case.mask[0, 0].view(case.w.shape)
    assert dropped[32, 2].any(), "a weight that tails are read from"
    case.w = torch.where(dropped, bad, case.w)
    got = case.run(backend)
    for name in ("y", "dx"):
        assert_bitwise_equal(got[name], clean[name], name)
    case.w = torch.where(dropped, case.w, float("nan"))
    assert case.run(backend, only="y")["y"].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_one_image_does_not_touch_the_others(backend):
    """Images share tiles, not values."""
    case = make_case(Shape(1, 5, 3, 3, 4, 6), Geometry((1, 1), (1, 1)), integers=True)
    clean = case.run(backend)
    case.x[0, 3] = float("nan")
    case.gy[0, 3] = float("nan")
    dirty = case.run(backend)
    others = [0, 1, 2, 4]
    for name in ("y", "dx"):
        assert_bitwise_equal(dirty[name][:, others], clean[name][:, others], name)
        assert dirty[name][0, 3].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [Shape(P=0), Shape(B=0), Shape(P=0, B=0)], ids=conv_id)
def test_no_images(shape, backend):
    """Nothing to write; the weight gradient is 0."""
    case = make_case(shape, integers=True)
    got = case.run(backend)
    assert_bitwise_equal(got["dw"], torch.zeros_like(case.w), "dw")
    assert got["y"].numel() == got["dx"].numel() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_give_equal_bits(backend):
    """Real inputs, no atomics: the second run repeats the first."""
    big = backend != "interpreter"
    shape = Shape(2, 5, 9, 9, 20, 40) if big else Shape(1, 2, 4, 4, 3, 34)
    case = make_case(shape, Geometry((1, 1), (1, 1)))
    assert_same(case.run(backend), case.run(backend))


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("stride", [1, 2])
def test_an_image_does_not_depend_on_its_neighbours(stride, backend):
    """The same image alone and in a batch: equal bits in y and dx, real inputs."""
    at = Geometry((stride, stride), (1, 1))
    case = make_case(Shape(1, 7, 5, 5, 6, 34), at)
    whole = case.run(backend, only="y dx")
    for chosen in ([0], [6], [5, 2]):
        got = case.part(torch.tensor(chosen)).run(backend, only="y dx")
        for name in got:
            assert_bitwise_equal(got[name], whole[name][:, chosen], name)


@pytest.mark.parametrize("backend", THOROUGH)
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=conv_id)
def test_memory_formats_give_equal_bits(dtype, groups, backend):
    """Real inputs, channels first and last, for x, gy and the weights."""
    last = make_case(Shape(2, 2, 6, 5, 8, 24), Geometry((1, 1), (1, 1), groups=groups), dtype=dtype)
    first = Case(**vars(last))
    first.x, first.gy = (
        t.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2) for t in (last.x, last.gy)
    )
    first.w = last.w.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert_same(first.run(backend), last.run(backend))
