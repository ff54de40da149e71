"""Masks bit for bit, then sums that cannot round, on every implementation."""

import pytest
import torch
from harness import (
    BACKENDS,
    KEY,
    TRITON,
    Case,
    Shape,
    assert_bitwise_equal,
    make_case,
    shape_id,
)

from bayes_dc.ops.linear import reference
from bayes_dc.rng import keep_digits

SHAPES = [
    Shape(1, 5, 1, 33, 7),  # tails along n and k
    Shape(2, 3, 2, 10, 12),  # folded passes, shared masks, quads along k only
    Shape(1, 9, 1, 64, 16),  # no tails
    Shape(3, 2, 1, 36, 21),
    Shape(1, 1, 1, 1, 1),
    Shape(1, 37, 1, 5, 130),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def probe_masks(backend: str, shape: Shape, p: float) -> dict[str, torch.Tensor]:
    """Masks read off unit inputs: [P, S, N, K] from the forward and from each gradient."""
    P, S, _, N, K = shape
    digits = keep_digits(p)
    ones = torch.ones(N, K)
    sample_ids, pass_ids = torch.arange(S) * 1_000_003, torch.arange(P) * 97 + 5

    def case(rows: int, x: torch.Tensor, gy: torch.Tensor, samples, passes) -> Case:
        size = Shape(len(passes), len(samples), rows, N, K)
        return Case(size, x, ones, None, gy, samples, passes, digits)

    eye_k = torch.eye(K).expand(P, S, K, K)
    eye_n = torch.eye(N).expand(P, S, N, N)
    found = {
        "y": case(K, eye_k, torch.zeros(P, S, K, N), sample_ids, pass_ids)
        .run(backend, only="y")["y"]
        .transpose(-1, -2),
        "dx": case(N, torch.zeros(P, S, N, K), eye_n, sample_ids, pass_ids).run(backend, only="dx")[
            "dx"
        ],
    }
    one_x, one_gy = torch.ones(1, 1, 1, K), torch.ones(1, 1, 1, N)
    one_of_each = [
        case(1, one_x, one_gy, sample_ids[s : s + 1], pass_ids[t : t + 1]).run(backend, only="dw")
        for t in range(P)
        for s in range(S)
    ]
    found["dw"] = torch.stack([one["dw"] for one in one_of_each]).view(P, S, N, K)
    found["reference"] = reference.explicit_masks(KEY, sample_ids, pass_ids, N, K, digits)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [0.5, 0.25, 0.3])
@pytest.mark.parametrize("shape", [Shape(2, 2, 1, 37, 9), Shape(1, 1, 1, 64, 8)], ids=shape_id)
def test_masks_are_those_of_the_reference(shape, p, backend):
    """Forward, dx and dw meet the reference mask in every bit."""
    found = probe_masks(backend, shape, p)
    want = found.pop("reference")
    for name, mask in found.items():
        assert_bitwise_equal(mask, want.float(), f"mask of {name}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_integer_inputs_are_exact(shape, dtype, backend):
    """With small integers no sum rounds, so a wrong bit or index shows as a difference."""
    case = make_case(shape, dtype=dtype, integers=True)
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [0.25, 0.1, 0.01, 0.9])
def test_every_drop_probability_is_exact(p, backend):
    """Many binary digits, on a shape with every tail."""
    case = make_case(Shape(2, 3, 1, 35, 6), p, integers=True)
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_split_weight_gradient_is_exact(splits, backend):
    """Runs of rows, also such that the last is short or empty, add up to the same integers."""
    case = make_case(Shape(2, 2, 2, 34, 9), integers=True)
    assert_bitwise_equal(case.run(backend, splits=splits)["dw"], case.expected()["dw"], "dw")


FORWARD = [
    {"rows": 1, "quads": 1},
    {"rows": 1, "quads": 2, "warps": 4},
    {"rows": 1, "quads": 4, "warps": 4, "registers": 168},
    {"rows": 1, "quads": 2, "warps": 16, "registers": 128},
    {"rows": 1, "quads": 1, "warps": 8, "lanes": 16},
    {"rows": 1, "quads": 1, "warps": 4, "lanes": 8},
    {"rows": 1, "quads": 1, "lanes": 1},
    {"rows": 2, "quads": 2, "registers": 168},
    {"rows": 2, "quads": 4},
    {"rows": 2, "quads": 1, "lanes": 16},
]
CONFIGURATIONS = [
    *(pytest.param("y", options, marks=pytest.mark.slow) for options in FORWARD[1:]),
    ("y", FORWARD[0]),
    *(
        ("dx", {"rows": rows, "lanes": lanes, "quads": quads})
        for rows, lanes, quads in ((1, 32, 32), (2, 16, 2), (4, 32, 8))
    ),
    *(("dw", options) for options in ({"rows": 4}, {"rows": 8, "registers": 224}, {"rows": 16})),
]


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS, ids=str)
def test_every_launch_configuration_gives_equal_bits(name, options, backend):
    """Tuning changes speed only."""
    from bayes_dc.ops._launch import RowConfig

    case = make_case(Shape(1, 37, 1, 40, 300 if backend == "cuda" else 44), integers=True)
    got = case.run(backend, config=RowConfig(**options), only=name)
    assert_bitwise_equal(got[name], case.expected()[name], name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=shape_id)
@pytest.mark.parametrize("K", [20, 512, 788])
def test_forward_rounds_alike_in_every_configuration(K, dtype):
    """One warp or many, tiles or single elements, one row or many: the same sums in order."""
    from bayes_dc.ops._launch import RowConfig

    case = make_case(Shape(1, 37, 1, 40, K), dtype=dtype)
    results = [case.run("cuda", config=RowConfig(**options), only="y")["y"] for options in FORWARD]
    for other in results[1:]:
        assert_bitwise_equal(other, results[0], "y")
    alone = Case(**vars(case) | {"shape": Shape(1, 1, 1, 40, K), "x": case.x[:, 5:6]})
    alone.sample_ids, alone.gy = case.sample_ids[5:6], case.gy[:, 5:6]
    assert_bitwise_equal(alone.run("cuda", only="y")["y"], results[0][:, 5:6], "alone")


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_and_expanded_inputs(backend):
    """Column slices, transposed weights, zero strides: read in place, same integers."""
    shape = Shape(3, 4, 1, 20, 10)
    plain = make_case(shape, integers=True)
    P, S, R, N, K = shape
    wide = torch.zeros(P, S, R, 2 * K)
    wide[..., ::2] = plain.x
    strided = Case(**vars(plain))
    strided.x = wide[..., ::2]
    strided.w = plain.w.t().contiguous().t()
    strided.b = plain.b[:1].expand(N)
    strided.gy = plain.gy.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    got, want = strided.run(backend), strided.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)
    shared = Case(**vars(plain))
    shared.x = plain.x[:1].expand(P, S, R, K)
    shared.gy = plain.gy[:1, :1, :1, :1].expand(P, S, R, N)
    got, want = shared.run(backend), shared.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_are_taken_modulo_two_to_the_32(backend):
    """Sample 2**32 + 3 is sample 3, and ids beyond 2**31 are not signed."""
    case = make_case(Shape(2, 3, 1, 33, 8), integers=True)
    case.sample_ids = torch.tensor([0, 2**31 + 5, 2**32 - 1])
    case.pass_ids = torch.tensor([2**31, 2**32 - 7])
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)
    wrapped = Case(**vars(case))
    wrapped.sample_ids = case.sample_ids + 2**32
    wrapped.pass_ids = case.pass_ids - 2**32
    again = wrapped.run(backend)
    for name in want:
        assert_bitwise_equal(again[name], want[name], name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, of what is not chosen
def test_a_dropped_weight_leaves_no_trace(bad, backend):
    """A dropped inf or NaN is selected away; one in a padding row or column never shows."""
    shape = Shape(1, 6, 1, 33, 5)
    case = make_case(shape, integers=True)
    case.w[32, 4] = bad  # the last row and column: what tails are read from
    case.w[0, 0] = bad
    got, want = case.run(backend), case.expected()
    for name in ("y", "dx"):
        assert_bitwise_equal(
            got[name].nan_to_num(0, 1e9, -1e9), want[name].nan_to_num(0, 1e9, -1e9), name
        )
        assert_bitwise_equal(got[name].isfinite(), want[name].isfinite(), f"{name} finite")
    dropped = ~case.mask[0, :, 0, 0]
    assert dropped.any()
    assert (~dropped).any()
    assert got["y"][0, dropped, 0, 0].isfinite().all()
    assert not got["y"][0, ~dropped, 0, 0].isfinite().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_one_row_does_not_touch_the_others(backend):
    """Rows share tiles, not values."""
    case = make_case(Shape(1, 7, 1, 40, 12), integers=True)
    clean = case.run(backend)
    case.x[0, 3] = float("nan")
    case.gy[0, 3] = float("nan")
    dirty = case.run(backend)
    others = [0, 1, 2, 4, 5, 6]
    for name in ("y", "dx"):
        assert_bitwise_equal(dirty[name][:, others], clean[name][:, others], name)
        assert dirty[name][0, 3].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 0, 1, 4, 8),
        Shape(0, 3, 1, 4, 8),
        Shape(1, 2, 0, 4, 8),
        Shape(1, 2, 1, 0, 8),
        Shape(1, 2, 1, 4, 0),
    ],
    ids=shape_id,
)
def test_empty_dimensions(shape, backend):
    """No rows: dw is 0. No inputs: y is the bias. No outputs: dx is 0."""
    case = make_case(shape, integers=True)
    got, want = case.run(backend), case.expected()
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_give_equal_bits(backend):
    """Real inputs, no atomics: the second run repeats the first."""
    case = make_case(
        Shape(2, 3, 1, 40, 20) if backend == "interpreter" else Shape(2, 19, 1, 70, 50)
    )
    first, second = case.run(backend), case.run(backend)
    for name in first:
        assert_bitwise_equal(second[name], first[name], name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_does_not_depend_on_its_neighbours(backend):
    """The same sample alone and in a batch: equal bits in y and dx, real inputs."""
    case = make_case(Shape(1, 13, 1, 45, 30))
    whole = case.run(backend)
    for s in (0, 6, 12):
        alone = Case(**vars(case))
        alone.shape = Shape(1, 1, 1, 45, 30)
        alone.x, alone.gy = case.x[:, s : s + 1], case.gy[:, s : s + 1]
        alone.sample_ids = case.sample_ids[s : s + 1]
        got = alone.run(backend)
        assert_bitwise_equal(got["y"], whole["y"][:, s : s + 1], "y")
        assert_bitwise_equal(got["dx"], whole["dx"][:, s : s + 1], "dx")
