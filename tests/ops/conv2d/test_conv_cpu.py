"""What only the CPU implementation has: blocks, threads, scratch memory, copies, phases."""

import dataclasses
import os
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conv_harness import (
    KEY,
    Shape,
    assert_bitwise_equal,
    assert_same,
    cases,
    conv_id,
    make_case,
)
from hypothesis import HealthCheck, given, settings

from bayes_dc.ops import _cpu_memory
from bayes_dc.ops.conv2d import (
    _cpu_dw,
    _cpu_frame_kernel,
    _cpu_gather,
    _cpu_launch,
    _cpu_operands,
    cpu,
)
from bayes_dc.ops.conv2d.reference import Geometry

PAD = Geometry((1, 1), (1, 1))
# Positions around 8, 64, 128 and 256; outputs around 32; weights around 8, 128 and 256.
EDGES = [
    (Shape(1, 5, 4, 2, 14, 31), PAD),
    (Shape(1, 3, 3, 3, 15, 33), PAD),
    (Shape(2, 3, 8, 8, 29, 32), PAD),
    (Shape(1, 2, 13, 5, 3, 65), PAD),
    (Shape(1, 2, 16, 16, 2, 34), PAD),
    (Shape(1, 2, 19, 27, 1, 5, 5, 5), Geometry((1, 1), (2, 2))),
    (Shape(2, 2, 9, 9, 4, 130, 1, 1), Geometry((2, 2))),
    (Shape(1, 1, 17, 16, 66, 66), Geometry((1, 1), (1, 1), groups=66)),
]


@pytest.fixture
def threads():
    """Sets the number of threads and makes every call worth them; restores both."""
    count = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cpu_launch, "SMALL", 0)
        yield torch.set_num_threads
    torch.set_num_threads(count)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize(("shape", "at"), EDGES, ids=conv_id)
def test_every_edge_of_the_blocks_is_exact(shape, at, p, shared, monkeypatch):
    """Sums of integers cannot round; scratch memory full of NaN shows what is read unwritten."""
    monkeypatch.setattr(_cpu_memory, "new", lambda size: np.full(size, 0xFF, np.uint8))
    case = make_case(shape, at, p, integers=True, shared=shared)
    assert_same(case.run("cpu"), case.expected())


@given(case=cases(channels=12, dtypes=[torch.float32]))
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_case_reads_only_what_was_written(case, monkeypatch):
    monkeypatch.setattr(_cpu_memory, "new", lambda size: np.full(size, 0xFF, np.uint8))
    assert_same(case.run("cpu"), case.expected())


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(
    ("shape", "at"),
    [
        (Shape(2, 5, 11, 10, 20, 70), PAD),
        (Shape(1, 3, 21, 20, 9, 35), Geometry((2, 1), (1, 1))),
        (Shape(1, 3, 12, 12, 40, 40), Geometry((1, 1), (1, 1), groups=40)),
    ],
    ids=conv_id,
)
def test_threads_and_tasks_do_not_change_a_bit(shape, at, shared, threads, monkeypatch):
    """Real numbers: another order of additions would show."""
    case = make_case(shape, at, shared=shared)
    threads(1)
    want = case.run("cpu")
    for count, per_thread in ((2, 1), (2, 4), (3, 64), (7, 400)):
        threads(count)
        monkeypatch.setattr(_cpu_launch, "TASKS_PER_THREAD", per_thread)
        assert_same(case.run("cpu"), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_once(dtype):
    """The result is the float32 result of the same numbers, rounded to the type."""
    case = make_case(Shape(1, 3, 6, 6, 20, 40), PAD, dtype=dtype, scale=1.25)
    wide = dataclasses.replace(
        case, x=case.x.float(), w=case.w.float(), b=case.b.float(), gy=case.gy.float()
    )
    want = {name: value.to(dtype) for name, value in wide.run("cpu").items()}
    assert_same(case.run("cpu"), want)


def test_a_result_may_have_any_strides():
    case = make_case(Shape(2, 3, 5, 4, 6, 10), PAD)
    want = case.run("cpu", only="y")["y"]
    out = torch.full((10, 4, 5, 3, 2), float("nan")).permute(4, 3, 2, 1, 0)
    key = torch.tensor(KEY)
    cpu.launch_fwd(case.x, case.w, case.b, key, case.sample_ids, case.pass_ids, out, **case.options)
    assert_bitwise_equal(out, want, "y")


def test_images_that_passes_share_are_copied_once():
    """A stride of 0 survives padding and conversion: memory is that of one pass."""
    x = torch.randn(1, 2, 4, 5, 16, dtype=torch.bfloat16).expand(1000, 2, 4, 5, 16)
    taps, room = [(-1, -1), (1, 1)], _cpu_memory.Room(None, "")
    for lanewise, channels in ((False, 16), (True, 32)):
        frame = _cpu_operands.frame_of(x, taps, (4, 5), (1, 1), lanewise)
        source = _cpu_operands.source_of(x, frame, (1, 1), torch.float32, room)
        assert source.images.shape == (1000, 2, 6, 7, channels)
        assert source.images.untyped_storage().nbytes() == 2 * 6 * 7 * channels * 4
    wide = x[:1].float().expand(x.shape)
    frame = _cpu_operands.frame_of(wide, [(0, 0)], (4, 5), (1, 1), False)
    source = _cpu_operands.source_of(wide, frame, (1, 1), torch.float32, room)
    assert source.images.data_ptr() == wide.data_ptr()


def test_phases_of_a_stride_share_out_taps_and_positions():
    """Every tap is met in one phase; every position lies in one."""
    for stride in ((1, 1), (2, 3), (4, 1)):
        for dilation in ((1, 1), (2, 3)):
            found = _cpu_operands.phases((3, 4), (7, 5), stride, (2, 1), dilation)
            taps = sorted(number for _, taps, _ in found for number, _ in taps)
            assert taps == list(range(12))
            assert sum(h * w for _, _, (h, w) in found) == 35
            for (h, w), taps, _ in found:
                for number, (i, j) in taps:
                    # Input h + stride · a is read by output a + i with this tap, for any a.
                    assert (i * stride[0] + number // 4 * dilation[0] - 2) == h
                    assert (j * stride[1] + number % 4 * dilation[1] - 1) == w


def test_memory_does_not_grow_with_the_work(threads):
    """The masks of 64 images, 2.4 million weights, are made in scratch memory of a fixed size."""
    threads(2)
    case = make_case(Shape(1, 64, 4, 4, 64, 64), PAD)
    case.run("cpu")  # compiled, pool started
    tracemalloc.start()
    case.run("cpu")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scratch = max(k.scratch_bytes(4) for k in (_cpu_gather, _cpu_dw, _cpu_frame_kernel))
    assert scratch <= 110_000
    # Torch's own memory is not traced: results, the padded input, tiles of weights.
    assert peak < 2 * scratch + 2**18


def test_several_python_threads_at_once(threads):
    """Calls that overlap share the pool and do not disturb each other."""
    threads(3)
    made = [make_case(Shape(1, 3, 8, 8, 12, 40), PAD, seed=seed) for seed in range(4)]
    want = [case.run("cpu") for case in made]
    with ThreadPoolExecutor(4) as callers:
        for got, expected in zip(
            callers.map(lambda c: c.run("cpu"), made * 4), want * 4, strict=True
        ):
            assert_same(got, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_convolve(threads):
    """As in a DataLoader's workers."""
    threads(2)
    case = make_case(Shape(1, 3, 8, 8, 12, 40), PAD)
    want = case.run("cpu")["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python ≥ 3.12 warns of any such fork
        child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(case.run("cpu")["y"], want) else 1)
    assert os.waitpid(child, 0)[1] == 0
