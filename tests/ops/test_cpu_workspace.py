"""CPU launchers in a workspace: the same bits, in the bytes that were asked for, and no others."""

import conv_harness
import gaussian_case
import harness
import pytest
import torch
from conv_harness import PLAIN, assert_bitwise_equal
from harness import KEY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayes_dc.ops import _cpu_memory
from bayes_dc.ops.conv2d import _cpu_operands
from bayes_dc.ops.conv2d import cpu as conv
from bayes_dc.ops.conv2d import reference as conv_reference
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.ops.dropout import cpu as dropout
from bayes_dc.ops.gaussian import cpu as gaussian
from bayes_dc.ops.linear import cpu as linear
from bayes_dc.rng import keep_digits

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
GUARD = 512


@pytest.fixture
def small_parts(monkeypatch):
    """Copies are made few rows at a time, and every call is worth all threads."""
    for module in (linear, gaussian, dropout, _cpu_operands):
        monkeypatch.setattr(module, "PART", 2048)
    for module in (linear, gaussian, dropout):
        monkeypatch.setattr(module, "_SMALL", 0)


def guarded(size, offset=0):
    """A workspace full of NaN in memory of its own, and a check that nothing else was written."""
    memory = torch.full((size + 2 * GUARD,), 0xFF, dtype=torch.uint8)
    workspace = memory[GUARD + offset : GUARD + offset + size]

    def untouched():
        head, tail = memory[: GUARD + offset], memory[GUARD + offset + size :]
        assert bool((head == 0xFF).all() and (tail == 0xFF).all())

    return workspace, untouched


def in_workspace(launch, size, out, offset=1):
    """The result of a launcher in a workspace that does not begin at a multiple of anything."""
    workspace, untouched = guarded(size, offset)
    got = torch.full_like(out, float("nan"))
    launch(got, workspace)
    untouched()
    return got


def linear_case(case, out=None):
    """Launcher, size of its workspace, and its result without one."""
    P, S, R, N, _ = case.shape
    out = torch.empty(P, S, R, N, dtype=case.x.dtype) if out is None else out
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)
    digits = {"keep": case.digits.keep, "bits": case.digits.bits, "scale": case.scale}

    def launch(into, workspace=None):
        linear.launch_fwd(case.x, case.w, case.b, *at, into, **digits, workspace=workspace)

    launch(out)
    return launch, linear.workspace_bytes(case.x, case.w, case.b, out), out


def gaussian_launch(case, out, packed=None):
    at = case.at("cpu")

    def launch(into, workspace=None):
        gaussian.launch_linear(
            *(case.x, case.w, case.b, *at, into), **case.options, packed=packed, workspace=workspace
        )

    launch(out)
    size = gaussian.workspace_bytes(case.x, case.w, case.b, out, packed=packed is not None)
    return launch, size, out


def conv_launch(case, pool=False):
    out = torch.empty_like(case.gy)
    out = out[:, :, : out.shape[2] // 2, : out.shape[3] // 2] if pool else out
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)

    def launch(into, workspace=None):
        options = case.options | {"pool": pool, "workspace": workspace}
        conv.launch_fwd(case.x, case.w, case.b, *at, into, **options)

    launch(out)
    size = conv.workspace_bytes(case.x, case.w, out, **case.at._asdict(), pool=pool)
    return launch, size, out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_linear(layout, shared, dtype, small_parts):
    case = harness.make_case(harness.Shape(3, 7, 2, 70, 45), dtype=dtype)
    if layout == "columns":
        case.x = case.x.transpose(2, 3).contiguous().transpose(2, 3)
        case.w = case.w.t().contiguous().t()
    if shared:
        case.x = case.x[:1].expand(case.x.shape)
    launch, size, want = linear_case(case)
    assert_bitwise_equal(in_workspace(launch, size, want), want, "y")


def test_linear_into_any_strides(small_parts):
    case = harness.make_case(harness.Shape(3, 7, 2, 70, 45))
    _, _, want = linear_case(case)
    strided = torch.empty(70, 2, 7, 3).permute(3, 2, 1, 0)
    launch, size, _ = linear_case(case, strided)
    assert_bitwise_equal(in_workspace(launch, size, strided), want, "y")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_gaussian(layout, shared, dtype, small_parts):
    case = gaussian_case.make_case(harness.Shape(3, 7, 2, 70, 45), dtype=dtype, shared=shared)
    if layout == "columns":
        case.x = case.x.transpose(2, 3).contiguous().transpose(2, 3)
        case.w = case.w.t().contiguous().t()
    out = torch.empty(3, 7, 2, 70, dtype=dtype)
    launch, size, want = gaussian_launch(case, out)
    assert_bitwise_equal(in_workspace(launch, size, want), want, "y")
    packed = gaussian.pack_weights(case.w)
    launch, less, again = gaussian_launch(case, torch.empty_like(out), packed)
    assert less < size
    assert_bitwise_equal(again, want, "y")
    assert_bitwise_equal(in_workspace(launch, less, want), want, "y")


def test_packed_weights_are_written_into_given_memory():
    w = torch.randn(70, 45)
    out = torch.full((1, 3, 45, 32), float("nan"))
    assert gaussian.pack_weights(w, out) is out
    assert_bitwise_equal(out.transpose(2, 3).reshape(96, 45)[:70], w, "packed")
    assert not out.transpose(2, 3).reshape(96, 45)[70:].any()


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (torch.empty(1, 3, 45, 31), "got torch.float32 [1, 3, 45, 31]"),
        (torch.empty(1, 3, 45, 32, dtype=torch.float64), "got torch.float64 [1, 3, 45, 32]"),
        (torch.empty(1, 3, 32, 45).mT, "with strides (4320, 1440, 1, 45)"),
        (torch.empty(3 * 45 * 32 + 1)[1:].view(1, 3, 45, 32), "at a multiple of 64 bytes"),
    ],
)
def test_packed_weights_of_another_shape_are_refused(packed, text):
    with pytest.raises(ValueError, match=r"packed must be contiguous torch\.float32") as caught:
        gaussian.pack_weights(torch.randn(70, 45), packed)
    assert text in str(caught.value)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@given(case=conv_harness.cases(channels=12, dtypes=DTYPES), pool=st.booleans())
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_convolutions(case, pool, shared, small_parts):
    if shared:
        case.x = case.x[:1].expand(case.x.shape)
    launch, size, want = conv_launch(case, pool)
    assert_bitwise_equal(in_workspace(launch, size, want), want, "y")


@pytest.mark.parametrize(
    ("shape", "at"),
    [
        (conv_harness.Shape(1, 3, 7, 6, 5, 40), Geometry((2, 1), (1, 2))),
        (conv_harness.Shape(1, 2, 9, 9, 40, 40), Geometry((1, 1), (1, 1), groups=40)),
        (conv_harness.Shape(1, 2, 8, 9, 6, 9, 2, 3), Geometry((1, 1), (0, 0), (2, 1), 3)),
    ],
    ids=conv_harness.conv_id,
)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_no_digits_are_a_plain_convolution(last, shape, at, small_parts):
    """Integers, so that the order of sums does not show; any key and ids."""
    case = conv_harness.make_case(shape, at, integers=True)
    case.digits, case.sample_ids = case.digits._replace(keep=1, bits=0), case.sample_ids[:1]
    if not last:
        case.x = case.x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    launch, size, got = conv_launch(case)
    kept = torch.ones(1, 1, case.w.shape[0], case.w[0].numel(), dtype=torch.bool)
    wide = (t.double() for t in (case.x, case.w, case.b))
    want = conv_reference.forward(*wide, kept, case.scale, case.at).float()
    assert_bitwise_equal(got, want, "y")
    assert_bitwise_equal(in_workspace(launch, size, want), want, "y")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("by_channel", [False, True], ids=["element", "channel"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_dropout(layout, by_channel, dtype, small_parts):
    x = torch.randn(3, 5, 6, 70).to(dtype)
    if layout == "columns":
        x = x.transpose(2, 3).contiguous().transpose(2, 3)
    digits, out = keep_digits(0.3), torch.empty_like(x)
    at = (torch.tensor(KEY), torch.arange(5), torch.arange(3))

    def launch(into, workspace=None):
        options = {"keep": digits.keep, "bits": digits.bits, "scale": 1.5}
        dropout.launch_dropout(x, *at, into, **options, by_channel=by_channel, workspace=workspace)

    launch(out)
    assert_bitwise_equal(in_workspace(launch, dropout.workspace_bytes(x, out), out), out, "y")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_fewer_threads_work_where_there_is_room_for_fewer(threads, small_parts):
    """A workspace made with another number of threads in mind is as good."""
    case = harness.make_case(harness.Shape(2, 60, 1, 70, 45))
    count = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        launch, size, want = linear_case(case)
        torch.set_num_threads(4)
        assert_bitwise_equal(in_workspace(launch, size, want), want, "y")
    finally:
        torch.set_num_threads(count)


def test_sizes_do_not_depend_on_the_rows():
    """Room for a part, whatever the batch: that is what a plan can promise."""
    w, sizes = torch.empty(64, 3, 3, 16, device="meta"), set()
    for P, B in ((1, 1), (1, 64), (100, 1000)):
        x, out = (torch.empty(P, B, 32, 32, C, device="meta") for C in (16, 64))
        pad = Geometry((1, 1), (1, 1))._asdict()
        sizes.add(conv.workspace_bytes(x, w, out, **pad))
    assert len(sizes) == 1
    sizes = set()
    for P, S in ((1, 1), (100, 1000)):
        half = {"device": "meta", "dtype": torch.bfloat16}
        x, w, out = (torch.empty(n, **half) for n in ((P, S, 1, 64), (32, 64), (P, S, 1, 32)))
        sizes.add((
            linear.workspace_bytes(x, w, None, out),
            gaussian.workspace_bytes(x, w, None, out),
            dropout.workspace_bytes(x, out),
        ))
    assert len(sizes) == 1


def small_calls():
    """Launcher, size of the workspace and result of each operator."""
    yield linear_case(harness.make_case(harness.Shape(1, 3, 1, 4, 5)))
    case = gaussian_case.make_case(harness.Shape(1, 3, 1, 4, 5))
    yield gaussian_launch(case, torch.empty(1, 3, 1, 4))
    yield conv_launch(conv_harness.make_case(conv_harness.Shape(), PLAIN))


@pytest.mark.parametrize("name", ["linear", "gaussian", "conv2d"])
def test_a_small_workspace_is_refused(name):
    which = ["linear", "gaussian", "conv2d"].index(name)
    launch, _, out = list(small_calls())[which]
    text = rf"workspace has 700 bytes(.|\n)*Size it by ops\.{name}\.cpu\.workspace_bytes"
    with pytest.raises(ValueError, match=text):
        launch(out, torch.empty(700, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("workspace", "got"),
    [
        (torch.empty(9), r"got torch.float32 \[9\] on cpu"),
        (torch.empty(9, 2, dtype=torch.uint8), r"got torch.uint8 \[9, 2\] on cpu"),
        (torch.empty(9, device="meta", dtype=torch.uint8), r"got torch.uint8 \[9\] on meta"),
        (torch.empty(9, 2, dtype=torch.uint8)[:, 0], r"got strides \(2,\)"),
    ],
)
def test_what_is_no_workspace_is_refused(workspace, got):
    with pytest.raises(ValueError, match=f"contiguous uint8 tensor on the CPU; {got}"):
        _cpu_memory.Room(workspace, "f")


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 7), (2, 0, 3), (0, 2, 1), (5, 1, 1)])
def test_parts_cover_everything_once(shape):
    for most in (1, 2, 5, 7, 19, 20, 21, 60, 100):
        seen = torch.zeros(shape)
        for part in _cpu_memory.parts(*shape, most):
            assert 0 < seen[part].numel() <= most
            seen[part] += 1
        assert bool((seen == 1).all())
