"""Normalisation, softmax and reductions of rows, wherever their elements lie."""

import pytest
import torch
import torch.nn.functional as F
from plain_harness import (
    DTYPES,
    LAYOUTS,
    TRITON,
    as_exact_as,
    equal,
    laid_out,
    numbers,
    on,
    room_like,
)

SHAPE = (3, 6, 4, 5)
LONG = 4099  # more columns than a tile has


def rows(name):
    from bayes_dc.ops.plain import triton_normalize, triton_reduce

    return getattr(triton_normalize, name, None) or getattr(triton_reduce, name)


def vectors(n, backend):
    return on(backend, *(numbers(n, dtype=torch.float32, seed=s) for s in (7, 8)))


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_of_channels(dtype, layout, backend):
    """Channels in the second dimension: a permuted view, whatever lies in memory. In place."""
    (x,) = on(backend, laid_out(numbers(*SHAPE, dtype=dtype), layout))
    weight, bias = vectors(SHAPE[1], backend)
    view = x.permute(0, 2, 3, 1)
    want = F.layer_norm(view.double(), SHAPE[1:2], weight.double(), bias.double(), 1e-6)
    eager = (
        want
        if dtype == torch.float64
        else F.layer_norm(view.float(), SHAPE[1:2], weight, bias, 1e-6).to(dtype)
    )
    rows("launch_layer_norm")(view, weight, bias, view, eps=1e-6)
    as_exact_as(view, eager, want, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 768), (2, LONG), (1, 1)], ids=str)
def test_layer_norm_of_rows(shape, backend):
    """One tile for a row, and several; without weight or bias; two dimensions together."""
    (x,) = on(backend, numbers(*shape, dtype=torch.float32))
    weight, bias = vectors(shape[-1], backend)
    for w, b in ((weight, bias), (weight, None), (None, None)):
        out = room_like(x)
        rows("launch_layer_norm")(x, w, b, out, eps=1e-5)
        parts = [None if t is None else t.double() for t in (w, b)]
        want = F.layer_norm(x.double(), shape[-1:], *parts)
        as_exact_as(out, F.layer_norm(x, shape[-1:], w, b), want, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups, layout, backend):
    (x,) = on(backend, laid_out(numbers(*SHAPE, dtype=torch.float32), layout))
    weight, bias = vectors(SHAPE[1], backend)
    want = F.group_norm(x.double(), groups, weight.double(), bias.double())
    eager = F.group_norm(x.contiguous(), groups, weight, bias)
    out = room_like(x)
    rows("launch_group_norm")(x, weight, bias, out, groups=groups, eps=1e-5)
    as_exact_as(out, eager, want, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_of_positions(dtype, kind, layout, backend):
    (x,) = on(backend, laid_out(numbers(*SHAPE, dtype=dtype, integers=True), layout))
    exact = x.cpu().double() if dtype == torch.float64 else x.cpu().float()
    reduced = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[kind]
    want = reduced(exact, dim=(2, 3)).to(dtype)
    out = room_like(want.to(x.device))
    rows("launch_reduce")(x, out, dims=2, kind=kind)
    if backend != "interpreter" or dtype != torch.bfloat16:  # it rounds towards zero
        equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(LONG,), (3, 2 * LONG), (300, 3), (0, 4)], ids=str)
def test_reductions_of_rows(shape, kind, backend):
    (x,) = on(backend, numbers(*shape, dtype=torch.float64, integers=True))
    # On the CPU: torch multiplies by a rounded 1 / n on a GPU.
    want = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[kind](x.cpu(), dim=-1)
    out = room_like(want.to(x.device))
    rows("launch_reduce")(x, out, dims=1, kind=kind)
    equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
def test_a_nan_is_the_maximum(backend):
    x = numbers(4, 50, dtype=torch.float32)
    x[1, 20] = float("nan")
    (x,) = on(backend, x)
    out = room_like(x[:, 0].clone())
    rows("launch_reduce")(x, out, dims=1, kind="max")
    equal(out, x.amax(1))


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_softmax_of_channels(dtype, logarithm, layout, backend):
    """In place; numbers whose powers overflow without the maximum taken away."""
    (x,) = on(backend, laid_out(50 * numbers(*SHAPE, dtype=dtype), layout))
    softmax = F.log_softmax if logarithm else F.softmax
    view = x.permute(0, 2, 3, 1)
    want, eager = softmax(view.double(), -1), softmax(view.float(), -1).to(dtype)
    rows("launch_softmax_rows")(view, view, logarithm=logarithm)
    as_exact_as(view, eager, want, backend)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("shape", [(3, 10), (2, LONG), (130, 1), (0, 4)], ids=str)
def test_softmax_of_rows(shape, logarithm, backend):
    (x,) = on(backend, numbers(*shape, dtype=torch.float32))
    softmax = F.log_softmax if logarithm else F.softmax
    out = room_like(x)
    rows("launch_softmax_rows")(x, out, logarithm=logarithm)
    as_exact_as(out, softmax(x, -1), softmax(x.double(), -1), backend)
