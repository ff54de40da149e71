"""What only the CPU implementation has: blocks, threads, packed copies, its own pool of threads."""

import dataclasses
import os
import threading
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from harness import KEY, Shape, assert_bitwise_equal, make_case, shape_id

from bayes_dc.ops import _cpu_memory, _threads
from bayes_dc.ops.linear import _cpu_dw, _cpu_dx, _cpu_fwd, cpu

# Rows around 8, 64 and 128; outputs and inputs around 32, 128 and 256; groups that straddle blocks.
EDGES = [
    Shape(1, 7, 1, 31, 127),
    Shape(1, 9, 1, 32, 128),
    Shape(3, 43, 1, 33, 129),
    Shape(1, 64, 1, 257, 31),
    Shape(5, 13, 2, 255, 33),
    Shape(2, 3, 3, 129, 257),
    Shape(1, 3, 9, 1, 65),
    Shape(2, 2, 65, 65, 1),
    Shape(1, 2, 130, 127, 40),
]
EMPTY = [
    Shape(0, 2, 1, 3, 3),
    Shape(2, 0, 1, 3, 3),
    Shape(2, 2, 0, 3, 3),
    Shape(2, 2, 1, 0, 3),
    Shape(2, 2, 1, 3, 0),
]


@pytest.fixture
def threads():
    """Sets the number of threads and makes every call worth them; restores both."""
    count = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_SMALL", 0)
        yield torch.set_num_threads
    torch.set_num_threads(count)


def assert_same(got, want):
    """Equal bits of y, dx and dw."""
    for name in want:
        assert_bitwise_equal(got[name], want[name], name)


@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize("shape", EDGES, ids=shape_id)
def test_every_edge_of_the_blocks_is_exact(shape, p, monkeypatch):
    """Sums of integers cannot round; scratch memory full of NaN shows what is read unwritten."""
    monkeypatch.setattr(_cpu_memory, "new", lambda size: np.full(size, 0xFF, np.uint8))
    case = make_case(shape, p, integers=True)
    assert_same(case.run("cpu"), case.expected())


@pytest.mark.parametrize("shape", EMPTY, ids=shape_id)
def test_empty_dimensions(shape):
    """No rows: nothing; no inputs: the bias; no outputs: zero gradients."""
    case = make_case(shape)
    result = case.run("cpu")
    P, S, R, N, K = shape
    assert_bitwise_equal(result["y"], case.b.expand(P, S, R, N), "y")
    assert_bitwise_equal(result["dx"], torch.zeros(P, S, R, K), "dx")
    assert_bitwise_equal(result["dw"], torch.zeros(N, K), "dw")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [Shape(3, 47, 1, 70, 301), Shape(2, 9, 17, 290, 70)], ids=shape_id
)
def test_threads_and_tasks_do_not_change_a_bit(shape, dtype, threads, monkeypatch):
    """Real numbers: another order of additions would show."""
    case = make_case(shape, dtype=dtype)
    threads(1)
    want = case.run("cpu")
    for count, per_thread in ((2, 1), (2, 4), (3, 64), (7, 4)):
        threads(count)
        monkeypatch.setattr(cpu, "_TASKS_PER_THREAD", per_thread)
        assert_same(case.run("cpu"), want)


@pytest.mark.parametrize("rows", [1, 8, 20])
def test_a_row_does_not_know_its_batch(rows):
    """Any part of a batch, in any order, gives the bits that the whole batch gave."""
    whole = make_case(Shape(2, 50, rows, 70, 150))
    y = whole.run("cpu")
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    for chosen in (order, order[:1], order[:9]):
        part = dataclasses.replace(
            whole,
            shape=whole.shape._replace(S=len(chosen)),
            x=whole.x[:, chosen],
            gy=whole.gy[:, chosen],
            sample_ids=whole.sample_ids[chosen],
        )
        got = part.run("cpu")
        for name in ("y", "dx"):
            assert_bitwise_equal(got[name], y[name][:, chosen], name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_layouts_do_not_change_a_bit(dtype):
    """Expanded, transposed and strided operands, expanded gradients, a strided result."""
    case = make_case(Shape(3, 4, 2, 37, 43), dtype=dtype)
    expanded = dataclasses.replace(
        case, x=case.x[:1].expand(case.x.shape), gy=case.gy[:1, :1, :1, :1].expand(case.gy.shape)
    )
    dense = dataclasses.replace(
        case, x=expanded.x.contiguous(), gy=expanded.gy.contiguous(), w=case.w.contiguous()
    )
    want = dense.run("cpu")
    assert_same(expanded.run("cpu"), want)
    strided = dataclasses.replace(
        case,
        x=dense.x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        gy=torch.stack((dense.gy, -dense.gy), -1)[..., 0],
        w=case.w.t().contiguous().t(),
        b=torch.stack((case.b, -case.b), -1)[:, 0],
        sample_ids=torch.stack((case.sample_ids, -case.sample_ids), -1)[:, 0],
    )
    assert_same(strided.run("cpu"), want)
    out = torch.full((37, 2, 4, 3), float("nan"), dtype=dtype).permute(3, 2, 1, 0)
    key = torch.tensor(KEY)
    cpu.launch_fwd(
        dense.x,
        dense.w,
        dense.b,
        key,
        case.sample_ids,
        case.pass_ids,
        out,
        keep=case.digits.keep,
        bits=case.digits.bits,
        scale=case.scale,
    )
    assert_bitwise_equal(out, want["y"], "y")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_once(dtype):
    """The result is the float32 result of the same numbers, rounded to the type."""
    case = make_case(Shape(2, 5, 1, 40, 200), dtype=dtype, scale=1.25)
    wide = dataclasses.replace(
        case, x=case.x.float(), w=case.w.float(), b=case.b.float(), gy=case.gy.float()
    )
    want = {name: value.to(dtype) for name, value in wide.run("cpu").items()}
    assert_same(case.run("cpu"), want)


def test_a_dropped_weight_is_not_looked_at():
    """NaN and inf that the mask drops leave no trace; those it keeps do."""
    case = make_case(Shape(1, 1, 1, 40, 50))
    mask = case.mask[0, 0]
    clean = case.run("cpu")
    for bad in (float("nan"), float("inf")):
        poisoned = dataclasses.replace(case, w=torch.where(mask, case.w, bad))
        got = poisoned.run("cpu")
        assert_bitwise_equal(got["y"], clean["y"], "y")
        assert_bitwise_equal(got["dx"], clean["dx"], "dx")
    kept = dataclasses.replace(case, w=torch.where(mask, float("nan"), case.w)).run("cpu")
    assert torch.equal(kept["y"].isnan().flatten(), mask.any(1))
    assert torch.equal(kept["dx"].isnan().flatten(), mask.any(0))
    products = dataclasses.replace(case, gy=torch.full_like(case.gy, float("nan"))).run("cpu")
    assert torch.equal(products["dw"].isnan(), mask)


def test_an_expanded_operand_is_copied_once():
    """A stride of 0 survives conversion: memory is that of one pass."""
    room = _cpu_memory.Room(None, "")
    x = torch.randn(1, 4, 2, 16, dtype=torch.bfloat16).expand(1000, 4, 2, 16)
    assert cpu._operand(x, torch.float32, room).untyped_storage().nbytes() == 4 * 2 * 16 * 4
    wide = x[:1].float().expand(1000, 4, 2, 16)
    assert cpu._operand(wide, torch.float32, room) is wide


def test_memory_does_not_grow_with_the_work(threads):
    """33 million weights are masked in scratch memory of a fixed size."""
    threads(2)
    case = make_case(Shape(1, 64, 1, 512, 1024))
    case.run("cpu")  # compiled, pool started
    tracemalloc.start()
    case.run("cpu")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scratch = max(kernel.scratch_bytes(4) for kernel in (_cpu_fwd, _cpu_dx, _cpu_dw))
    assert peak < 2 * scratch + 2**18  # torch's own memory is not traced: it is the three results


def test_several_python_threads_at_once(threads):
    """Calls that overlap share the pool and do not disturb each other."""
    threads(3)
    cases = [make_case(Shape(1, 30, 1, 100, 200), seed=seed) for seed in range(6)]
    want = [case.run("cpu") for case in cases]
    with ThreadPoolExecutor(6) as callers:
        for got, expected in zip(
            callers.map(lambda c: c.run("cpu"), cases * 5), want * 5, strict=True
        ):
            assert_same(got, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own_pool(threads):
    """The parent's threads do not exist in a child, as in a DataLoader's workers."""
    threads(2)
    case = make_case(Shape(1, 30, 1, 100, 200))
    want = case.run("cpu")["y"]
    assert _threads._pool
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python ≥ 3.12 warns of any such fork
        child = os.fork()
    if child == 0:
        right = not _threads._pool and torch.equal(case.run("cpu")["y"], want)
        os._exit(0 if right and _threads._pool else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("started", [0, 1])
def test_without_more_threads_the_caller_does_the_work(started, threads, monkeypatch):
    """At the end of the interpreter, or where the system has no thread to give."""
    submitted = []

    class Refusing(ThreadPoolExecutor):
        def submit(self, *arguments):
            if len(submitted) == started:
                raise RuntimeError("can't start new thread")
            submitted.append(arguments)
            return super().submit(*arguments)

    case = make_case(EDGES[2], 0.5, integers=True)
    threads(4)
    with Refusing(2) as pool:
        monkeypatch.setattr(_threads, "workers", lambda: pool)
        out = case.run("cpu")["y"]
    assert len(submitted) == started
    assert_bitwise_equal(out, case.expected()["y"], "y")


def test_an_error_in_a_helping_thread_is_raised(threads, monkeypatch):
    """Nobody waits for ever, and nothing is hidden."""
    threads(2)
    case = make_case(Shape(1, 3, 1, 4, 5))

    begun = threading.Event()

    def refuse(*_):
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(60)
        else:
            begun.set()
            raise MemoryError("no memory in a helper")

    monkeypatch.setattr(_cpu_fwd, "run", refuse)
    with pytest.raises(MemoryError, match="no memory in a helper"):
        case.run("cpu")
