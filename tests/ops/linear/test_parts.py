"""Few rows for each mask, and few outputs: the reference's bits from the kernels made for them."""

import pytest
import torch
from harness import (
    GROUPED,
    Case,
    Shape,
    assert_bitwise_equal,
    device_of,
    make_case,
    relative_error,
    shape_id,
)

from bayes_dc.ops import _parts
from bayes_dc.ops._grouped import GroupedConfig
from bayes_dc.ops._parts import NarrowConfig, PartsConfig

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TILES = [
    PartsConfig(16, 128, 7, 8, 4),
    PartsConfig(16, 64, 5, 4, 4),
    PartsConfig(16, 64, 2, 4, 2),
    PartsConfig(16, 256, 4, 8, 3),
    PartsConfig(32, 128, 3, 8, 4),
    PartsConfig(64, 128, 2, 8, 3),
]
NARROW = [NarrowConfig(16, 16, 16, 2), NarrowConfig(32, 32, 32, 4)]


@pytest.fixture(autouse=True)
def tf32():
    """Float32 products as TensorFloat-32: integers of the tests stay exact."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def forward(case: Case, backend: str, config=None) -> torch.Tensor:
    return case.run(backend, only="y", config=config)["y"]


def check(case: Case, backend: str, config=None) -> None:
    want = case.expected()["y"].to(case.x.dtype)
    assert_bitwise_equal(forward(case, backend, config), want, "y")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=shape_id)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
def test_every_tile_of_several_groups_gives_equal_bits(tile, dtype):
    """Runs of passes and of samples with a tail, rows of their own and shared, tails everywhere."""
    for P, S in ((9, 2), (1, 5), (3, 1)):
        case = make_case(Shape(P, S, tile.rows + 3, 328, 344), 0.25, dtype, integers=True)
        check(case, "grouped-cuda", tile)
        case.x = case.x[:1].expand(P, S, -1, -1)
        check(case, "grouped-cuda", tile)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
def test_a_row_has_the_bits_of_the_other_hopper_kernel(tile, dtype):
    """Real inputs: neither the groups beside it nor the number of rows shows in a row."""
    case = make_case(Shape(9, 1, tile.rows, 200, 392), 0.5, dtype)
    depth = 128 // dtype.itemsize
    want = forward(case, "grouped-cuda", GroupedConfig(64, 64, depth, 4, 3))
    assert_bitwise_equal(forward(case, "grouped-cuda", tile), want, "y")


@pytest.mark.gpu
def test_what_no_tensor_map_describes_goes_to_the_portable_kernel():
    """Rows of no whole 16 bytes, with the configuration of several groups."""
    check(make_case(Shape(9, 1, 16, 72, 63), integers=True), "grouped-cuda", TILES[0])


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("config", NARROW, ids=lambda config: "-".join(map(str, config)))
def test_few_outputs_are_exact(config, dtype, backend):
    """Ranges with tails, without inputs, and of one step; rows with a tail."""
    outputs = config.outputs
    for shape in (Shape(2, 1, 19, outputs - 3, 70), Shape(1, 2, 5, outputs, 20)):
        check(make_case(shape, 0.25, dtype, integers=True), backend, config)


@pytest.mark.parametrize("backend", GROUPED)
def test_few_outputs_of_any_strides_are_exact(backend):
    """Every second input, weights by columns, one bias for all outputs."""
    case = make_case(Shape(2, 2, 17, 10, 40), integers=True)
    wide = torch.zeros(*case.x.shape[:3], 80)
    wide[..., ::2] = case.x
    case.x = wide[..., ::2]
    case.w = case.w.t().contiguous().t()
    case.b = case.b[:1].expand(10)
    check(case, backend, NARROW[0])


@pytest.mark.parametrize("backend", GROUPED)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy, of what is not chosen
def test_a_dropped_weight_of_few_outputs_leaves_no_trace(bad, backend):
    """A dropped inf or NaN is selected away."""
    case = make_case(Shape(1, 6, 16, 10, 16), integers=True)
    case.x.clamp_(1, 2)
    case.w[9, 15] = bad
    y = forward(case, backend, NARROW[0])[0]
    kept = case.mask[0, :, 9, 15]
    assert 0 < kept.sum() < 6
    assert y[~kept].isfinite().all()
    assert not y[kept][..., 9].isfinite().any()


@pytest.mark.parametrize("backend", GROUPED)
def test_the_error_of_few_outputs_is_within_twice_the_eager_error(backend):
    """The eager error is that of masked weights and torch's product in the same type."""
    case = make_case(Shape(1, 2, 20, 10, 300), 0.25)
    got, want = forward(case, backend), case.expected()["y"]
    eager = case.expected(torch.float32, device_of(backend))["y"]
    assert relative_error(got, want) <= 2 * relative_error(eager, want)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU of 132 processors."""
    monkeypatch.setattr(_parts._device, "on_hopper", lambda device: True)
    monkeypatch.setattr(_parts._device, "gpu", lambda device: _parts._device.Gpu((9, 0), 132, 0))


def choice(P, S, R, N, K=1024, shared=False):
    cpu = torch.device("cpu")
    return _parts.fwd_config(P, S, R, N, K, shared, torch.bfloat16, cpu)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES, ids=shape_id)
@pytest.mark.parametrize("R", [16, 17, 32, 33, 64])
def test_what_is_chosen_fits_the_kernel(R, dtype):
    """A choice that does not fit would run another kernel, unseen."""
    config = choice(100, 1, R, 1024)
    assert config.rows >= R
    assert _parts.suits_parts(config, dtype)


@pytest.mark.usefixtures("hopper")
def test_groups_share_weights_where_that_fills_the_gpu():
    assert choice(100, 1, 16, 1024).parts == 7
    assert choice(34, 1, 16, 1024).parts == 5
    assert choice(10, 1, 16, 1024).parts == 2
    assert choice(25, 1, 32, 1024).parts == 4
    assert choice(1, 100, 16, 1024).parts == 7
    assert choice(100, 1, 65, 1024) is None
    assert choice(1, 1, 16, 1 << 14) is None
    assert choice(4, 1, 16, 1024) is None
    assert choice(100, 1, 16, 17) is None


@pytest.mark.usefixtures("hopper")
def test_chunks_of_passes_do_not_change_the_kernel_of_few_outputs():
    """Its sums have another order: it must not depend on the number of groups."""
    assert {choice(P, S, 16, 10) for P in (1, 7, 100) for S in (1, 3)} == {choice(1, 1, 16, 10)}


def test_without_a_hopper_gpu_a_group_has_a_kernel_of_its_own():
    assert choice(100, 1, 16, 1024) is None
    assert choice(100, 1, 16, 10) is None
