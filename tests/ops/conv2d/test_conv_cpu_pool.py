"""Convolutions on a CPU that write the largest of 2 × 2 results: the bits of two steps."""

import pytest
import torch
import torch.nn.functional as F
from conv_harness import KEY, PLAIN, Shape, assert_bitwise_equal, conv_id, make_case

from bayes_dc.ops.conv2d import _cpu_launch, cpu
from bayes_dc.ops.conv2d.reference import Geometry

PAD = Geometry((1, 1), (1, 1))
CASES = [
    (Shape(2, 3, 9, 8, 3, 6), PAD),
    (Shape(1, 3, 12, 13, 6, 16, 5, 5), PLAIN),
    (Shape(2, 2, 7, 11, 14, 40), Geometry((2, 1), (0, 2))),
    (Shape(1, 2, 30, 31, 4, 66), Geometry((1, 2), (2, 1), (2, 1))),
    (Shape(1, 3, 8, 8, 40, 40), Geometry((1, 1), (1, 1), groups=40)),
    (Shape(2, 2, 9, 10, 12, 27), Geometry((1, 1), (1, 1), groups=3)),
    (Shape(1, 2, 5, 4, 3, 7), PLAIN),
    *((Shape(1, 2, 40, width, 2, 3), PAD) for width in (2, 3, 4, 5, 6, 15)),
]
"""Windows left over at the edges, and more than a task holds."""
EPILOGUES = [None, (None, None, True), "affine"]


def empty(case, pool, last, dtype):
    """Memory for results, full of something else."""
    P, B, H, W, N = case.gy.shape
    H, W = (H // 2, W // 2) if pool else (H, W)
    if last:
        return torch.full((P, B, H, W, N), 7.0, dtype=dtype)
    return torch.full((P, B, N, H, W), 7.0, dtype=dtype).permute(0, 1, 3, 4, 2)


def computed(case, epilogue, pool, last, workspace=False):
    """Results of a launcher; its workspace is full of NaN."""
    out = empty(case, pool, last, case.x.dtype)
    at = (torch.tensor(KEY), case.sample_ids, case.pass_ids)
    options = case.options | {"epilogue": epilogue, "pool": pool}
    if workspace:
        size = cpu.workspace_bytes(case.x, case.w, out, **case.at._asdict(), pool=pool)
        options["workspace"] = torch.full((size,), 0xFF, dtype=torch.uint8)
    cpu.launch_fwd(case.x, case.w, case.b, *at, out, **options)
    return out


def pooled(y):
    """The same by torch."""
    images = y.permute(0, 1, 4, 2, 3).flatten(0, 1)
    return F.max_pool2d(images, 2).unflatten(0, y.shape[:2]).permute(0, 1, 3, 4, 2)


def assert_pools(case, epilogue, last):
    if not last:
        case.x = case.x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
    if epilogue == "affine":
        generator = torch.Generator().manual_seed(3)
        vectors = torch.randn(2, case.w.shape[0], generator=generator).to(case.x.dtype)
        epilogue = (*vectors, True)
    want = pooled(computed(case, epilogue, False, last))
    assert_bitwise_equal(computed(case, epilogue, True, last), want, "y")
    assert_bitwise_equal(computed(case, epilogue, True, last, workspace=True), want, "y")


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=["none", "relu", "affine"])
@pytest.mark.parametrize(("shape", "at"), CASES, ids=conv_id)
def test_results_are_those_of_two_steps(shape, at, epilogue, last):
    """Real numbers; factors of both signs, so that the largest is not that of the sums."""
    assert_pools(make_case(shape, at, scale=1.25), epilogue, last)
    assert_pools(make_case(shape, at, shared=True), epilogue, last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("shape", "at"), [CASES[0], CASES[4]], ids=conv_id)
def test_other_types(shape, at, last, dtype):
    """The largest of four is rounded, not the largest of four rounded: the same."""
    assert_pools(make_case(shape, at, dtype=dtype), EPILOGUES[1], last)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_nan_is_the_largest(last):
    case = make_case(Shape(1, 3, 12, 13, 3, 5), PAD)
    case.x[0, 1, 4, 5] = float("nan")
    case.x[0, 2, 4, 5] = float("-inf")
    assert_pools(case, None, last)
    got = computed(case, (None, None, True), True, last)
    assert got[0, 1].isnan().any()
    assert not got[0, 0].isnan().any()


def test_no_digits_pool_too():
    case = make_case(Shape(1, 3, 12, 13, 3, 5), PAD)
    case.digits = case.digits._replace(keep=1, bits=0)
    for last in (False, True):
        assert_pools(case, EPILOGUES[1], last)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_threads_and_tasks_do_not_change_a_bit(last, monkeypatch):
    case = make_case(Shape(2, 5, 21, 20, 6, 16), PAD)
    monkeypatch.setattr(_cpu_launch, "SMALL", 0)
    count = torch.get_num_threads()
    try:
        want = pooled(computed(case, None, False, last))
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            assert_bitwise_equal(computed(case, None, True, last), want, "y")
    finally:
        torch.set_num_threads(count)


def test_no_weights_leave_the_bias():
    case = make_case(Shape(1, 2, 5, 5, 0, 4))
    got = computed(case, None, True, True)
    assert_bitwise_equal(got, case.b.expand(got.shape), "y")
