"""The kernels of the pass statistics against the torch code: state, summary, chunks, edges."""

import math
from typing import Any

import pytest
import torch
from harness import moved
from torch import Tensor

from bayes_dc.mc.statistics import MAX_GROUPS, PassStatistics, Summary
from bayes_dc.ops.mc_stats import PassState, new_state, op

BACKENDS = [
    pytest.param("compiled", id="cpu"),
    pytest.param("cpu", marks=pytest.mark.interpreter, id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
WITHOUT_INTERPRETER = [BACKENDS[0], BACKENDS[2]]
# Passes, inputs, classes: one of each, primes, more and fewer than 20 passes, several tiles.
SHAPES = [(1, 3, 4), (2, 1, 1), (7, 5, 10), (23, 3, 2), (41, 2, 3), (3, 2, 133), (4, 1, 1031)]
ROUNDING = 2.0**-52

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN, interpreted


def logits(shape, *, dtype=torch.float32, seed=0):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def run(
    values: Tensor,
    device: str,
    link: Any = "softmax",
    *,
    chunk: int = 1 << 30,
    kept: bool = True,
) -> tuple[PassState, Summary, Tensor]:
    """State, summary and samples [T, B, C] of the kernels, on the CPU; all of it poisoned first.

    ``"compiled"`` are the kernels of the CPU, ``"cpu"`` those of the GPU in the interpreter.
    """
    on_cpu = device == "compiled"
    if on_cpu:
        device = "cpu"
        from bayes_dc.ops.mc_stats.cpu import launch_summary, launch_update
    else:
        from bayes_dc.ops.mc_stats.triton_summary import launch_summary
        from bayes_dc.ops.mc_stats.triton_update import launch_update

    T, B, C = values.shape
    state = new_state(min(T, 20), B, C, torch.device(device), ranges=link == "identity")
    if C:
        for part in state:
            if part is not None:
                part.fill_(7 if part.dtype == torch.int64 else float("nan"))

    def poisoned(*size: int) -> Tensor:
        return torch.full(size, float("nan"), dtype=torch.float64, device=device)

    samples = poisoned(T, B, C)
    outputs = moved(values, device)
    options = {"softmax": link == "softmax"}
    if not on_cpu:
        passes, ranges = min(chunk, T), link == "identity"
        room = op.row_entries(passes, passes * B, C if kept else 0, ranges=ranges)
        options["rows"] = poisoned(room)
    for first in range(0, T, chunk):
        part = slice(first, first + chunk)
        launch_update(outputs[part], *state, samples[part], first=first, **options)
    classes, inputs = poisoned(3, B, C), poisoned(7, B)
    launch_summary(*state[:6], classes, inputs, T=T)
    found = PassState(*(None if t is None else t.cpu() for t in state))
    return found, Summary(*(t.cpu() for t in op.fields(classes, inputs))), samples.cpu()


def torch_statistics(values: Tensor, link: Any = "softmax") -> tuple[PassState, Summary, Tensor]:
    """The same by the torch code on the CPU."""
    T, B, C = values.shape
    statistics = PassStatistics(T, B, C, torch.device("cpu"), link)
    samples = torch.empty(T, B, C, dtype=torch.float64)
    statistics.update(values, samples)
    return statistics._state, statistics.summary(), samples


def assert_same(got: Any, want: Any) -> None:
    """Equal to the bit in every field, NaN equal to NaN."""
    for name, a, b in zip(got._fields, got, want, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=name)


def assert_near(got: Tensor, want: Tensor, bound: float, name: str) -> None:
    assert (got.isnan() == want.isnan()).all(), name
    assert torch.equal(got.isinf(), want.isinf()), name
    finite = want.isfinite()
    error = (got - want)[finite].abs().max().item() if finite.any() else 0.0
    assert error <= bound, f"{name}: {error} > {bound}"


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_torch_code(shape, link, device):
    """Probabilities given: their moments to the bit. The rest: to the roundings of float64."""
    T, _, C = shape
    values = logits(shape) if link == "softmax" else logits(shape).double().softmax(dim=-1)
    state, summary, samples = run(values, device, link)
    want, want_summary, want_samples = torch_statistics(values, link)
    assert torch.equal(state.votes, want.votes)
    if link == "identity":
        for name in ("mean", "m2", "probs"):
            assert torch.equal(getattr(state, name), getattr(want, name)), name
        for name in ("mean", "variance"):
            assert torch.equal(getattr(summary, name), getattr(want_summary, name)), name
        assert torch.equal(samples, values)
        # Sums of C terms that are 1 together.
        assert_near(state.ranges, want.ranges, C * ROUNDING, "ranges")
    assert_near(samples, want_samples, (C + 8) * ROUNDING, "samples")
    # A term −p log p has an error of a few roundings, H ≤ log C of them add in other orders, and a
    # group holds ⌈T / J⌉ passes. Pseudo-values multiply by up to T, J of them add.
    one = (C + 8) * (1 + math.log(C)) * ROUNDING
    for name in ("mean", "m2", "expected", "probs", "entropies"):
        assert_near(getattr(state, name), getattr(want, name), 2 * T * one, name)
    for name in Summary._fields:
        got, wanted = getattr(summary, name), getattr(want_summary, name)
        if name.endswith("_se"):
            # Of squares: a root near 0 has no bounded error.
            got, wanted = got.square(), wanted.square()
        assert_near(got, wanted, 2 * T * T * one, name)


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("classes", [3, 1031])
def test_chunks_change_no_bit(classes, device):
    values = logits((25, 3, classes))
    want = run(values, device)
    for chunk in (1, 7, 20, 24):
        state, summary, samples = run(values, device, chunk=chunk, kept=chunk > 7)
        assert_same(state, want[0])
        assert_same(summary, want[1])
        assert torch.equal(samples, want[2])


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("classes", [1, 2, 10, pytest.param(133, marks=pytest.mark.slow)])
def test_inputs_beside_change_no_bit(classes, device):
    values = logits((21, 11, classes))
    _, want, _ = run(values, device)
    for rows in (slice(0, 1), slice(3, 5), slice(2, 11)):
        _, got, _ = run(values[:, rows], device)
        assert_same(got, Summary(*(field[rows] for field in want)))


@pytest.mark.parametrize("device", WITHOUT_INTERPRETER)
@pytest.mark.parametrize("classes", [10, 100])
def test_many_inputs_beside_change_no_bit(classes, device):
    """Enough for other launch configurations than those of few inputs."""
    values = logits((21, 1100, classes))
    state, want, _ = run(values, device, chunk=8)
    for rows in (slice(0, 1), slice(3, 70), slice(600, 1100)):
        few, got, _ = run(values[:, rows], device)
        assert_same(got, Summary(*(field[rows] for field in want)))
        assert torch.equal(few.m2, state.m2[rows])


@pytest.mark.parametrize("device", BACKENDS[1:])
@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("kept", [True, False])
def test_launch_configurations_change_no_bit(kept, link, device, monkeypatch):
    from bayes_dc.ops.mc_stats import triton_summary, triton_update

    values = logits((37, 3, 5))
    if link == "identity":
        values = values.double().softmax(dim=-1)
    want = run(values, device, link, kept=kept)
    for block, unroll, ahead, warps in [(32, 8, False, 4), (64, 4, True, 1), (32, 12, True, 8)]:
        config = triton_update.PassesConfig(block, unroll, 8, ahead=ahead)
        monkeypatch.setattr(triton_update, "passes_config", lambda *_, made=config, **__: made)
        monkeypatch.setattr(triton_summary, "warps_of", lambda *_, made=warps: made)
        for part, expected in zip(run(values, device, link, kept=kept)[:2], want[:2], strict=True):
            assert_same(part, expected)


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("T", [1, 2, 21])
@pytest.mark.parametrize("classes", [10, 1031])
def test_equal_passes_have_exactly_no_spread(classes, T, device):
    """H(mean) and the mean of H(p) are one sum, in one order."""
    values = logits((1, 2, classes)).expand(T, 2, classes)
    state, summary, samples = run(values, device)
    assert torch.equal(state.mean, samples[0])
    assert torch.equal(summary.entropy, summary.expected_entropy)
    for name in ("variance", "mean_se", "mutual_information", "variation_ratio"):
        assert not getattr(summary, name).any(), name
    if T == 1:
        for name in ("mutual_information_corrected", "entropy_se", "mutual_information_se"):
            assert not getattr(summary, name).any(), name


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_outputs_of_other_types(dtype, device):
    """The values of any type are exact in float64."""
    if device == "compiled" and dtype.itemsize == 2:
        pytest.skip("the engine converts 16-bit outputs to float32 first")
    values = logits((5, 3, 10), dtype=dtype)
    assert_same(run(values, device)[0], run(values.double(), device)[0])


@pytest.mark.parametrize("device", BACKENDS)
def test_strided_outputs(device):
    values = logits((6, 5, 20))
    views = {
        "transposed": values.transpose(1, 2).contiguous().transpose(1, 2),
        "columns": values[..., ::2],
        "passes": values.transpose(0, 1),
        "expanded": values[:1].expand(6, 5, 20),
        "shifted": values.flatten()[1:541].view(6, 5, 18),
    }
    for name, view in views.items():
        got, want = run(view, device)[0], run(view.clone(), device)[0]
        for a, b in zip(got[:6], want[:6], strict=True):
            assert torch.equal(a, b), name


NAN, INF = float("nan"), float("inf")
ROWS = {
    "nan": [0.5, NAN, 0.25, 0.25],
    "nan first": [NAN, 0.5, NAN, 0.5],
    "infinite": [0.0, INF, 1.0, 2.0],
    "two infinite": [INF, 0.0, INF, 1.0],
    "minus infinite": [-INF, 0.5, 0.25, 0.25],
    "all minus infinite": [-INF, -INF, -INF, -INF],
    "negative": [-0.5, 0.5, 0.5, 0.5],
    "tie": [0.25, 0.25, 0.25, 0.25],
    "late tie": [0.0, 0.5, 0.0, 0.5],
    "one-hot": [0.0, 0.0, 1.0, 0.0],
    "tiny": [5e-324, 1e-310, 1e-300, 1.0],
    "far": [-800.0, 0.0, -745.0, -709.0],
}


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("link", ["softmax", "identity"])
@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_are_special(kind, link, device):
    """As torch: what is NaN or infinite, what argmax votes for, and no other input is touched."""
    T = 3
    values = logits((T, 3, 4), dtype=torch.float64).softmax(dim=-1)
    plain, _, _ = run(values, device, link)
    values[1, 1] = torch.tensor(ROWS[kind], dtype=torch.float64)
    state, summary, samples = run(values, device, link)
    want, want_summary, want_samples = torch_statistics(values, link)
    assert torch.equal(state.votes, want.votes)
    scale = 1 + values[values.isfinite()].abs().max().item()
    bound = 64 * T * scale * scale * ROUNDING
    assert_near(samples, want_samples, bound, "samples")
    for name in ("mean", "m2", "expected", "probs", "entropies"):
        assert_near(getattr(state, name), getattr(want, name), bound, name)
        whole = getattr(plain, name)
        rows = [0, 2]
        dimension = whole.ndim - (1 if name in ("expected", "entropies") else 2)
        index = torch.tensor(rows)
        assert torch.equal(
            getattr(state, name).index_select(dimension, index),
            whole.index_select(dimension, index),
        ), name
    for name in Summary._fields:
        got, wanted = getattr(summary, name), getattr(want_summary, name)
        assert (got.isnan() == wanted.isnan()).all(), name
    if link == "identity" and "infinite" not in kind:
        assert_near(state.ranges, want.ranges, bound, "ranges")


@pytest.mark.parametrize("device", WITHOUT_INTERPRETER)
@pytest.mark.parametrize("inputs", [3, 1100])
@pytest.mark.parametrize("kind", ROWS)
def test_special_rows_among_many_passes(kind, inputs, device):
    """Moments of given probabilities as torch's to the bit, also where they end infinite or NaN."""
    values = logits((41, inputs, 4), dtype=torch.float64).softmax(dim=-1)
    values[20, 1] = torch.tensor(ROWS[kind], dtype=torch.float64)
    got = run(values, device, "identity", chunk=37)[0]
    want = torch_statistics(values, "identity")[0]
    for name in ("mean", "m2", "votes", "probs"):
        torch.testing.assert_close(
            getattr(got, name), getattr(want, name), rtol=0, atol=0, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_special_values_in_a_later_tile(value, device):
    """More classes than a tile holds; a NaN behind the first tile is found."""
    values = logits((2, 2, 1031), dtype=torch.float64).softmax(dim=-1)
    values[1, 1, 1030] = value
    state, _, samples = run(values, device, "identity")
    want, _, _ = torch_statistics(values, "identity")
    assert torch.equal(state.votes, want.votes)
    for name in ("mean", "m2", "probs"):
        torch.testing.assert_close(
            getattr(state, name), getattr(want, name), rtol=0, atol=0, equal_nan=True
        )
    softmax = run(values, device)[2]
    assert_near(softmax, torch_statistics(values)[2], 1100 * ROUNDING, "samples")
    assert torch.equal(samples.isnan(), values.isnan())


@pytest.mark.parametrize("device", BACKENDS)
def test_no_inputs(device):
    state, summary, samples = run(logits((3, 0, 5)), device)
    assert state.mean.shape == summary.mean.shape == (0, 5)
    assert summary.entropy.shape == (0,)
    assert samples.shape == (3, 0, 5)


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("link", ["softmax", "identity"])
def test_no_classes(link, device):
    """Entropies of 0, and the summary that the torch code makes of such a state."""
    T, B = 3, 2
    state, summary, samples = run(logits((T, B, 0)), device, link)
    want = PassStatistics(T, B, 0, torch.device("cpu"), link)
    want.passes = T
    assert_same(state._replace(ranges=None), want._state._replace(ranges=None))
    assert_same(summary, want.summary())
    assert samples.shape == (T, B, 0)


@pytest.mark.gpu
def test_many_inputs_and_classes():
    """More programs than a grid's second dimension holds; an ImageNet-21k head."""
    for shape in ((2, 70_001, 3), (3, 2, 21_843)):
        values = logits(shape)
        state, _, _ = run(values, "cuda")
        want, _, _ = torch_statistics(values)
        assert torch.equal(state.votes, want.votes)
        assert_near(state.mean, want.mean, (shape[2] + 8) * ROUNDING, "mean")


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31_elements():
    C, B = 4, 3
    far = torch.zeros(2**31 // 4 + 40, 4, dtype=torch.float16, device="cuda")
    far[-6:] = logits((6, C), dtype=torch.float16).cuda()
    y = torch.as_strided(far, (2, B, C), (far.stride(0) * (len(far) - 3), far.stride(0), 1))
    statistics = PassStatistics(2, B, C, y.device, "softmax")
    statistics.update(y)
    near = PassStatistics(2, B, C, y.device, "softmax")
    near.update(y.clone())
    assert_same(statistics.summary(), near.summary())


@pytest.mark.gpu
def test_eight_bit_outputs():
    values = logits((4, 3, 5)).to(torch.float8_e4m3fn).cuda()
    eight, wide = (PassStatistics(4, 3, 5, values.device, "softmax") for _ in range(2))
    eight.update(values)
    wide.update(values.float())
    assert_same(eight.summary(), wide.summary())


def test_a_tile_holds_every_group():
    """A group beyond the tile would be left out of the jackknife."""
    triton_summary = pytest.importorskip(
        "bayes_dc.ops.mc_stats.triton_summary", exc_type=ImportError
    )
    assert 2**triton_summary.GROUP_STEPS >= MAX_GROUPS


def test_without_triton_a_cuda_state_is_refused(monkeypatch):
    """The message, in a process where triton cannot be imported."""
    import sys

    monkeypatch.setitem(sys.modules, "bayes_dc.ops.mc_stats.triton_update", None)
    monkeypatch.setitem(sys.modules, "bayes_dc.ops.mc_stats.triton_summary", None)
    with pytest.raises(ImportError) as caught:
        op.summary(new_state(1, 2, 3, torch.device("cpu")), passes=1)
    text = str(caught.value)
    assert text.startswith("Statistics of CUDA tensors need triton, which could not be imported")
    assert "pip install triton" in text
    assert text.endswith("or move the model and its input to the CPU.\n")
