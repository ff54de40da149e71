"""Few outputs on a CPU, whose lanes are positions: the bits of the other kernel, and no others."""

import ctypes
import dataclasses
import mmap
import sys

import pytest
import torch
from conv_harness import KEY, PLAIN, Shape, assert_bitwise_equal, conv_id, make_case

from bayes_dc.ops.conv2d import (
    _cpu_gather,
    _cpu_launch,
    _cpu_planes,
    _cpu_planes_launch,
    cpu,
)
from bayes_dc.ops.conv2d.reference import Geometry

PAD = Geometry((1, 1), (1, 1))
# Positions of a plane around 48 and 1024; outputs around 8 and 32; weights around 128 and 256.
EDGES = [
    (Shape(1, 3, 6, 8, 3, 4, 3, 1), Geometry((1, 1), (1, 0))),
    (Shape(2, 3, 6, 10, 1, 1, 1, 1), PLAIN),
    (Shape(1, 2, 28, 28, 1, 6, 5, 5), Geometry((1, 1), (2, 2))),
    (Shape(2, 2, 14, 14, 6, 16, 5, 5), PLAIN),
    (Shape(1, 2, 33, 31, 3, 7), PAD),
    (Shape(1, 2, 41, 64, 2, 9, 2, 3), Geometry((1, 1), (1, 2), (2, 1))),
    (Shape(1, 1, 5, 340, 2, 3), PAD),
    (Shape(1, 2, 12, 16, 32, 10, 2, 2), Geometry((1, 1), (0, 1))),
    (Shape(1, 2, 12, 17, 43, 8, 1, 3), PLAIN),
    (Shape(1, 2, 15, 16, 12, 54), Geometry((1, 1), (1, 1), groups=3)),
    (Shape(1, 2, 9, 16, 2, 26), Geometry((1, 1), (1, 1), groups=2)),
    (Shape(1, 2, 1, 70, 3, 5, 1, 3), PLAIN),
]


def planes(t):
    """The same values, every channel a plane."""
    return t.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)


def computed(case, out=None, pool=False, epilogue=None):
    """Results with channels first."""
    P, B, H, W, N = case.gy.shape
    if out is None:
        out = planes(torch.full((P, B, H // (1 + pool), W // (1 + pool), N), float("nan")))
        out = out.to(case.x.dtype)
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)
    options = case.options | {"epilogue": epilogue, "pool": pool}
    cpu.launch_fwd(case.x, case.w, case.b, *at, out, **options)
    return out


@pytest.fixture
def other(monkeypatch):
    """Computes a case with the other kernel; the test fails if the first was not this one's."""
    seen = []

    def asked(*args, **options):
        seen.append(_cpu_planes_launch.suits(*args, **options))
        return seen[-1]

    monkeypatch.setattr(cpu, "suits", asked)

    def run(case, **options):
        assert all(seen)
        assert seen
        monkeypatch.setattr(cpu, "suits", lambda *args, **options: False)
        try:
            return computed(case, **options)
        finally:
            monkeypatch.setattr(cpu, "suits", asked)

    return run


@pytest.mark.parametrize("pool", [False, True], ids=["all", "pooled"])
@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize(("shape", "at"), EDGES, ids=conv_id)
def test_the_bits_of_the_other_kernel(shape, at, p, pool, other):
    """Real numbers: another order of additions would show."""
    if pool and 1 in at.out_size(shape[2:4], shape[6:]):
        return
    generator = torch.Generator().manual_seed(3)
    affine = (*torch.randn(2, shape.N, generator=generator), False)
    for shared, epilogue in ((False, (None, None, True)), (True, affine)):
        case = make_case(shape, at, p, shared=shared, scale=1.25)
        case.x = planes(case.x)
        options = {"pool": pool, "epilogue": epilogue}
        got = computed(case, **options)
        assert_bitwise_equal(got, other(case, **options), "y")


@pytest.mark.parametrize(("shape", "at"), EDGES, ids=conv_id)
def test_sums_of_integers_are_exact(shape, at, other):
    case = make_case(shape, at, 0.3, integers=True)
    case.x = planes(case.x)
    want = case.expected()["y"]
    assert_bitwise_equal(computed(case), want, "y")
    assert_bitwise_equal(other(case), want, "y")


def test_no_digits_are_a_plain_convolution(other):
    case = make_case(*EDGES[3])
    case.x, case.digits = planes(case.x), case.digits._replace(keep=1, bits=0)
    assert_bitwise_equal(computed(case), other(case), "y")


def test_low_precision_is_rounded_once(other):
    case = make_case(*EDGES[2], dtype=torch.bfloat16)
    case.x = planes(case.x)
    got = computed(case, pool=True)
    assert_bitwise_equal(got, other(case, pool=True), "y")
    wide = dataclasses.replace(case, x=case.x.float(), w=case.w.float(), b=case.b.float())
    assert_bitwise_equal(got, computed(wide, pool=True).bfloat16(), "y")


def test_dropped_weights_and_the_rest_of_a_line_do_not_matter(other):
    """A NaN reaches the positions that read it with any weight, and no others."""
    case = make_case(*EDGES[2])
    case.x = planes(case.x)
    case.x[0, 0, 5, 27] = float("nan")
    case.w[2, 3, 3] = float("nan")
    got = computed(case)
    assert_bitwise_equal(got, other(case), "y")
    others = got[..., torch.arange(6) != 2]
    assert others[0, 0, 3:8, 25:].isnan().all()
    assert others.isnan().sum() == 5 * 5 * 3
    kept = case.mask[0, :, 2].view(2, 25)[:, 18]
    assert torch.equal(got[0, :, :2, :2, 2].isnan().flatten(1).all(1), kept)


def test_images_that_passes_share(other):
    case = make_case(Shape(5, 3, 14, 14, 2, 8), PAD)
    case.x = planes(case.x[:1]).expand(case.x.shape)
    assert_bitwise_equal(computed(case), other(case), "y")


def test_lines_with_room_between(other):
    """Lines of the source and of the results that do not follow one another; nothing between."""
    case = make_case(Shape(1, 3, 12, 20, 2, 6), PLAIN)
    case.x = planes(torch.nn.functional.pad(case.x, (0, 0, 0, 7)))[:, :, :, :20]
    computed(case)
    want = other(case)
    room = torch.full((1, 3, 6, 15, 23), 7.0)
    out = room[:, :, :, 2:12, 3:21].permute(0, 1, 3, 4, 2)
    computed(case, out=out)
    assert_bitwise_equal(out, want, "y")
    assert (room == 7).sum() == room.numel() - out.numel()


def test_lines_too_far_apart_for_a_tile(monkeypatch):
    """A band of one line has fewer positions than a tile: the first would begin before it."""
    answers = []

    def asked(*args, **options):
        answers.append(_cpu_planes_launch.suits(*args, **options))
        return answers[-1]

    monkeypatch.setattr(cpu, "suits", asked)
    for room, chosen in ((0, True), (1500, False)):
        case = make_case(Shape(1, 2, 8, 10, 2, 3, 1, 1), PLAIN, integers=True)
        wide = planes(torch.nn.functional.pad(case.x, (0, 0, 0, room)))
        want, case.x = case.expected()["y"], wide[:, :, :, :10]
        assert_bitwise_equal(computed(case), want, "y")
        assert answers.pop() == chosen


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("pool", [False, True], ids=["all", "pooled"])
def test_nothing_behind_the_last_image_is_read_or_written(pool, other):
    """Both end where memory ends: a vector too far would end the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    case = make_case(Shape(1, 2, 9, 11, 2, 5), PLAIN)
    size = (1, 2, 5, 7 // (1 + pool), 9 // (1 + pool))
    want = None
    for shape in ((1, 2, 2, 9, 11), size):
        page, count = mmap.PAGESIZE, torch.Size(shape).numel()
        bytes_ = -(-count * 4 // page) * page
        memory = mmap.mmap(-1, bytes_ + page)
        whole = torch.frombuffer(memory, dtype=torch.float32)
        assert libc.mprotect(whole.data_ptr() + bytes_, page, 0) == 0
        t = whole[bytes_ // 4 - count : bytes_ // 4].view(shape).permute(0, 1, 3, 4, 2)
        if want is None:
            case.x = t.copy_(case.x)
            computed(case, pool=pool)
            want = other(case, pool=pool)
        else:
            assert_bitwise_equal(computed(case, out=t, pool=pool), want, "y")


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_threads_and_tasks_do_not_change_a_bit(shared, other, monkeypatch):
    case = make_case(Shape(3, 7, 40, 41, 3, 12), PAD, shared=shared)
    case.x = planes(case.x)
    want = computed(case)
    assert_bitwise_equal(want, other(case), "y")
    monkeypatch.setattr(_cpu_launch, "SMALL", 0)
    count = torch.get_num_threads()
    try:
        for threads, per_thread in ((1, 4), (2, 1), (2, 4), (3, 64), (7, 400)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(_cpu_planes_launch, "TASKS_PER_THREAD", per_thread)
            assert_bitwise_equal(computed(case), want, "y")
    finally:
        torch.set_num_threads(count)


CHOSEN = [
    (Shape(2, 2, 28, 28, 1, 6, 5, 5), Geometry((1, 1), (2, 2)), True),
    (Shape(2, 2, 14, 14, 6, 16, 5, 5), PLAIN, True),
    (Shape(1, 2, 32, 32, 3, 24), PAD, True),
    (Shape(1, 2, 32, 32, 3, 32), PAD, False),  # no fewer products
    (Shape(1, 2, 32, 32, 3, 33), PAD, False),
    (Shape(1, 2, 32, 32, 29, 8), PAD, False),  # 261 weights of an output
    (Shape(1, 2, 28, 28, 3, 6), Geometry((1, 2), (1, 1)), False),
    (Shape(1, 2, 28, 28, 3, 6), Geometry((2, 1), (1, 1)), False),
    (Shape(1, 2, 5, 7, 3, 6), PAD, False),  # 43 positions
    (Shape(1, 2, 4, 1030, 3, 6), PLAIN, False),
    (Shape(1, 2, 28, 28, 6, 6), Geometry((1, 1), (1, 1), groups=6), False),  # depthwise
]


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "at", "chosen"), CHOSEN, ids=conv_id)
def test_which_convolutions(shape, at, chosen, dtype, last, monkeypatch):
    case = make_case(shape, at, dtype=dtype)
    answers = []

    def asked(*args, **options):
        answers.append(_cpu_planes_launch.suits(*args, **options))
        return False

    monkeypatch.setattr(cpu, "suits", asked)
    case.x = case.x if last else planes(case.x)
    computed(case, out=torch.empty(case.gy.shape, dtype=dtype) if last else None)
    assert answers == [chosen and not last and dtype == torch.float32]


def test_a_workspace_for_one_kernel_is_enough_for_the_other():
    assert _cpu_planes.scratch_bytes(4) <= _cpu_gather.scratch_bytes(4)
