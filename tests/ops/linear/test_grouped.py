"""Masks shared by rows, on tensor cores: the reference's bits, for any shape and strides."""

import importlib

import pytest
import torch
from harness import (
    GROUPED,
    KEY,
    Case,
    Shape,
    assert_bitwise_equal,
    device_of,
    make_case,
    relative_error,
    shape_id,
)

from bayes_dc.ops import _grouped
from bayes_dc.ops._grouped import GroupedConfig
from bayes_dc.ops.linear import op

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [
    Shape(1, 1, 16, 32, 16),  # one tile
    Shape(2, 3, 17, 37, 23),  # every tail, primes
    Shape(1, 2, 33, 10, 50),  # fewer outputs than a word
    Shape(3, 1, 5, 65, 40),  # fewer rows than a tile
    Shape(1, 1, 1, 1, 1),
]
BIG = [
    Shape(2, 2, 130, 264, 328),  # aligned rows, tails everywhere
    Shape(1, 3, 256, 128, 64),
    Shape(3, 1, 100, 72, 784),
    Shape(2, 1, 300, 10, 1024),
]
PORTABLE = [
    GroupedConfig(rows=16, outputs=32, inputs=16),
    GroupedConfig(rows=32, outputs=64, inputs=32),
]
# Tiles of the Hopper kernels: columns of the result and depth of a step are outputs and inputs of
# the forward, inputs and outputs of dx. Rows, columns, warps, stages:
TILES = [
    (64, 64, 4, 2),
    (128, 64, 4, 4),
    (256, 64, 4, 2),
    (128, 128, 4, 3),
    (128, 256, 8, 2),
    (256, 128, 8, 3),
]
DW_TILES = [(128, 128, 8, 4), (64, 128, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3)]


@pytest.fixture(autouse=True)
def tf32():
    """Float32 products as TensorFloat-32: integers of the tests stay exact."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def check(case: Case, backend: str, **options) -> None:
    """y, dx and dw equal the reference bit for bit."""
    got, want = case.run(backend, **options), case.expected()
    for name in got:
        assert_bitwise_equal(got[name], want[name].to(got[name].dtype), name)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_integer_inputs_are_exact(shape, dtype, backend):
    """A wrong bit, index or tail shows as a difference."""
    check(make_case(shape, dtype=dtype, integers=True), backend)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("shape", BIG, ids=shape_id)
def test_integer_inputs_of_several_tiles_are_exact(shape, dtype):
    """Shapes that the Hopper kernels can read, with tails along rows, outputs and inputs."""
    check(make_case(shape, dtype=dtype, integers=True), "grouped-cuda")


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("p", [0.25, 0.1, 0.9])
def test_every_drop_probability_is_exact(p, backend):
    """Many binary digits."""
    shape = Shape(1, 2, 18, 33, 12) if "inter" in backend else BIG[0]
    check(make_case(shape, p, torch.bfloat16, integers=True), backend)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("config", PORTABLE, ids=lambda c: "-".join(map(str, c)))
def test_every_configuration_gives_equal_bits(config, backend):
    """Tuning changes speed only."""
    for dtype in (torch.bfloat16, torch.float32):
        case = make_case(Shape(1, 2, 20, 70, 40), 0.25, dtype, integers=True)
        check(case, backend, config=config)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
def test_every_tile_of_the_hopper_kernel_gives_equal_bits(tile, dtype):
    """Forward and dx, 5 or 6 steps of 128 bytes and 11 of them, tails everywhere."""
    rows, columns, warps, stages = tile
    depth = 128 // dtype.itemsize
    assert _grouped.suits_wgmma(rows, columns, depth, warps, stages, dtype)
    case = make_case(Shape(2, 2, 300, 328, 344), 0.25, dtype, integers=True)
    check(case, "grouped-cuda", only="y", config=GroupedConfig(rows, columns, depth, warps, stages))
    check(
        case, "grouped-cuda", only="dx", config=GroupedConfig(rows, depth, columns, warps, stages)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
@pytest.mark.parametrize("tile", DW_TILES, ids=lambda tile: "-".join(map(str, tile)))
def test_every_tile_of_the_hopper_weight_gradient_gives_equal_bits(tile, dtype):
    """An odd and an even number of groups in a run, several and single steps in a group."""
    outputs, inputs, warps, stages = tile
    config = GroupedConfig(128 // dtype.itemsize, outputs, inputs, warps, stages)
    assert _grouped.suits_wgmma_dw(config, dtype)
    for shape in (Shape(1, 5, 300, 200, 328), Shape(2, 2, 24, 200, 72)):
        case = make_case(shape, 0.25, dtype, integers=True)
        for splits in (1, 2):
            check(case, "grouped-cuda", only="dw", splits=splits, config=config)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
def test_overlapping_rows_and_a_single_row_of_wider_weights(dtype, backend):
    """Windows 8 elements apart, which no tensor map describes; one output cut from [4, 100]."""
    shape = Shape(1, 1, 20, 1, 64)
    case = make_case(shape, dtype=dtype, integers=True)
    line = make_case(Shape(1, 1, 1, 1, 19 * 8 + 64), dtype=dtype, integers=True).x
    case.x = line.view(-1).unfold(0, 64, 8)[None, None]
    wide = torch.zeros(4, 100, dtype=dtype)
    wide[:1, :64] = case.w
    case.w = wide[:1, :64]
    assert case.x.shape[2:] == (20, 64)
    check(case, backend)


@pytest.mark.parametrize("name", ["fwd", "dx", "dw"])
@pytest.mark.parametrize("hopper", [False, True])
def test_which_configuration_the_portable_kernels_get(name, hopper, monkeypatch):
    """A tuned or explicit one; on Hopper, tiles of the Hopper kernel make way for portable ones."""
    pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
    module = importlib.import_module(f"bayes_dc.ops.linear.triton_grouped_{name}")
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **constants: launched.append(constants)

    monkeypatch.setattr(module, f"grouped_linear_{name}_kernel", Kernel())
    monkeypatch.setattr(_grouped._device, "on_hopper", lambda device: hopper)
    monkeypatch.setattr(
        _grouped._device, "gpu", lambda device: _grouped._device.Gpu((9, 0), 132, 0)
    )
    monkeypatch.setattr(_grouped, "INTERPRETED", False)
    case = make_case(Shape(1, 2, 40, 65, 63), dtype=torch.bfloat16)  # rows of no whole 16 bytes
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)
    operands = {
        "fwd": (case.x, case.w, None, *at, torch.empty_like(case.gy)),
        "dx": (case.gy, case.w, *at, torch.empty_like(case.x)),
        "dw": (case.gy, case.x, *at, torch.empty_like(case.w)),
    }
    options = {"keep": 1, "bits": 1, "scale": 1.0}

    def launch(**more):
        getattr(module, f"launch_{name}")(*operands[name], **options, **more)
        got = launched.pop()
        return GroupedConfig(*(got[k] for k in ("BR", "BN", "BK", "num_warps", "num_stages")))

    portable = _grouped.portable_config(f"linear_grouped_{name}", 40, torch.bfloat16)
    assert launch() == portable
    small = GroupedConfig(16, 32, 48, 2, 5)
    for_hopper = GroupedConfig(64, 64, 64, 4, 3)
    tuned = [small]
    monkeypatch.setattr(_grouped._tuned, "lookup", lambda *args, **sizes: tuned[0]._asdict())
    assert launch() == small
    assert launch(config=for_hopper) == for_hopper
    tuned[0] = for_hopper
    assert launch() == (portable if hopper else for_hopper)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_split_weight_gradient_is_exact(splits, backend):
    """Runs of groups, also such that the last is short or empty."""
    case = make_case(Shape(2, 2, 18, 34, 19), dtype=torch.float32, integers=True)
    check(case, backend, only="dw", splits=splits)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
def test_strided_and_expanded_inputs(dtype, backend):
    """Column slices, transposed weights, inputs shared by passes or samples: read in place."""
    shape = Shape(2, 2, 17, 33, 24) if "inter" in backend else Shape(3, 2, 20, 40, 48)
    plain = make_case(shape, dtype=dtype, integers=True)
    P, S, R, N, K = shape
    wide = torch.zeros(P, S, R, 2 * K, dtype=dtype)
    wide[..., ::2] = plain.x
    strided = Case(**vars(plain))
    strided.x = wide[..., ::2]
    strided.w = plain.w.t().contiguous().t()
    strided.b = plain.b[:1].expand(N)
    strided.gy = plain.gy.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    check(strided, backend)
    for index in (slice(None, 1), slice(None)), (slice(None), slice(None, 1)):
        shared = Case(**vars(plain))
        shared.x = plain.x[index].expand(P, S, R, K)
        shared.gy = plain.gy[index].expand(P, S, R, N)
        check(shared, backend)
    swapped = Case(**vars(plain))
    swapped.x = plain.x.transpose(0, 1).contiguous().transpose(0, 1)
    swapped.gy = plain.gy[:1, :1, :1, :1].expand(P, S, R, N)
    check(swapped, backend)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, of what is not chosen
def test_a_dropped_weight_leaves_no_trace(bad, dtype, backend):
    """A dropped inf or NaN is selected away."""
    case = make_case(Shape(1, 6, 16, 40, 16), dtype=dtype, integers=True)
    case.x.clamp_(1, 2)
    case.gy.clamp_(1, 2)
    case.w[39, 15] = bad
    got = case.run(backend, only="y dx")
    kept = case.mask[0, :, 39, 15]
    assert 0 < kept.sum() < 6
    for name, row in (("y", 39), ("dx", 15)):
        finite = got[name][0].isfinite()
        assert finite[~kept].all()
        assert not finite[kept][..., row].any()


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
def test_error_is_within_twice_the_eager_error(dtype, backend):
    """The eager error is that of masked weights and torch's products in the same type."""
    big = device_of(backend) == "cuda"
    if not big and dtype == torch.bfloat16:
        pytest.skip("the interpreter rounds to bfloat16 towards zero; compiled kernels do not")
    case = make_case(Shape(2, 2, 130, 264, 520) if big else Shape(1, 2, 20, 40, 70), 0.25, dtype)
    got, want, eager = case.run(backend), case.expected(), case.expected(dtype, device_of(backend))
    for name in want:
        assert relative_error(got[name], want[name]) <= 2 * relative_error(eager[name], want[name])


@pytest.mark.parametrize("backend", GROUPED)
def test_two_runs_give_equal_bits(backend):
    """Real inputs, no atomics."""
    case = make_case(Shape(2, 2, 17, 33, 24) if "inter" in backend else Shape(2, 3, 20, 70, 48))
    first, second = case.run(backend, splits=2), case.run(backend, splits=2)
    for name in first:
        assert_bitwise_equal(second[name], first[name], name)


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(0, 1, 16, 4, 8),
        Shape(1, 2, 0, 4, 8),
        Shape(1, 2, 16, 0, 8),
        Shape(1, 2, 16, 4, 0),
    ],
    ids=shape_id,
)
def test_empty_dimensions(shape, backend):
    """No rows: dw is 0. No inputs: y is the bias. No outputs: dx is 0."""
    check(make_case(shape, integers=True), backend)


def test_which_rows_go_to_the_tensor_cores():
    """16 rows and more; float32 where torch may use TensorFloat-32; never float64."""
    assert _grouped.uses_tensor_cores(16, torch.bfloat16)
    assert _grouped.uses_tensor_cores(1000, torch.float16)
    assert not _grouped.uses_tensor_cores(15, torch.bfloat16)
    assert _grouped.uses_tensor_cores(16, torch.float32)
    assert not _grouped.uses_tensor_cores(16, torch.float64)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not _grouped.uses_tensor_cores(16, torch.float32)


def test_the_operators_launch_what_the_rows_ask_for():
    """Sixteen rows that share a mask in 16 bits: the tensor-core kernels."""
    pytest.importorskip("triton", reason="needs triton")
    for R, part in ((15, "triton_"), (16, "triton_grouped_")):
        rows = torch.zeros(1, 1, R, 8, dtype=torch.bfloat16)
        for name in ("fwd", "dx", "dw"):
            launch = op._triton(f"launch_{name}", rows)
            assert launch.__module__ == f"bayes_dc.ops.linear.{part}{name}"


@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("R", [16, 64, 65, 128, 129, 300, 1000, 1 << 20])
@pytest.mark.parametrize(("N", "K"), [(10, 1024), (1024, 784), (64, 65)])
def test_default_configurations_fit_the_hopper_kernels(N, K, R, dtype, monkeypatch):
    """A default that does not fit would run the portable kernels, slowly and unseen."""
    monkeypatch.setattr(_grouped._device, "on_hopper", lambda device: True)
    monkeypatch.setattr(_grouped, "INTERPRETED", False)
    cpu = torch.device("cpu")
    fwd = _grouped.fwd_config(100, R, N, K, dtype, cpu)
    tile = (fwd.rows, fwd.outputs, fwd.inputs, fwd.warps, fwd.stages)
    assert _grouped.suits_wgmma(*tile, dtype)
    dx = _grouped.dx_config(100, R, N, K, dtype, cpu)
    tile = (dx.rows, dx.inputs, dx.outputs, dx.warps, dx.stages)
    assert _grouped.suits_wgmma(*tile, dtype)
    assert _grouped.suits_wgmma_dw(_grouped.dw_config(100, R, N, K, dtype, cpu), dtype)


@pytest.mark.parametrize("op", ["fwd", "dx", "dw"])
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("R", [1, 16, 100, 5000])
def test_portable_configurations_fit_96_kilobytes(R, dtype, op, monkeypatch):
    """Tiles of rows, and of weights or of both products, in every stage."""
    monkeypatch.setattr(_grouped, "INTERPRETED", False)
    c = _grouped.portable_config(f"linear_grouped_{op}", R, dtype)
    elements = {
        "fwd": (c.rows + c.outputs) * c.inputs,
        "dx": (c.rows + c.inputs) * c.outputs,
        "dw": (c.outputs + c.inputs) * c.rows,
    }
    assert c.stages * elements[op] * dtype.itemsize <= 96 * 1024
    assert c.outputs % 32 == 0


def test_copies_along_rows_have_room_for_aligned_columns():
    """Stride 1 along R, columns 16 bytes aligned, what groups share once."""
    t = torch.zeros(1, 3, 37, 10).expand(2, 3, 37, 10)
    room = _grouped.room_along_rows(t)
    assert room.shape == (1, 3, 37, 10)
    assert room.stride()[2:] == (1, 40)


@pytest.mark.interpreter
def test_copies_along_rows_round_to_nearest():
    """TensorFloat-32 keeps 10 bits; what is not finite stays so."""
    t = make_case(Shape(2, 3, 37, 70, 5)).gy
    t[0, 0, 0, :4] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    t[0, 0, 0, 4] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    copy = op._along_rows(t)
    assert copy.stride(2) == 1
    exact = copy.view(torch.int32) & 0x1FFF
    assert not exact.any()
    finite = t.isfinite()
    assert torch.equal(copy.isfinite(), finite)
    assert ((copy - t)[finite].abs() <= t[finite].abs() * 2**-11).all()


def test_splits_are_a_function_of_the_shape():
    """Enough programs for a large GPU, no more than groups, and bounded partial sums."""
    assert _grouped.dw_splits(512, 2048, 2048) * 256 <= 1024
    assert _grouped.dw_splits(4, 10, 64) == 4
    assert _grouped.dw_splits(1, 10, 64) == 1
    assert _grouped.dw_splits(512, 1 << 14, 1 << 14) == 1
