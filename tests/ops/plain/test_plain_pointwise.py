"""Scale, shift, residual and ReLU in one pass, on every layout."""

import pytest
import torch
from plain_harness import DTYPES, LAYOUTS, TRITON, equal, laid_out, numbers, on, room_like

SHAPE = (3, 5, 4, 6)


def affine(*args, **options):
    from bayes_dc.ops.plain.triton_affine import launch_affine_act

    launch_affine_act(*args, **options)


def expected(x, scale, shift, residual, *, relu, channel_dim=1):
    """In float64, whatever the types."""
    shape = [-1 if d == channel_dim else 1 for d in range(x.dim())]
    y = x.double()
    y = y if scale is None else y * scale.double().view(shape)
    y = y if shift is None else y + shift.double().view(shape)
    y = y if residual is None else y + residual.double()
    return y.relu() if relu else y


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_are_exact(dtype, layout, backend):
    """Everything at once, and each part alone; float32 vectors, a residual laid out otherwise."""
    x = laid_out(numbers(*SHAPE, dtype=dtype, integers=True), layout)
    residual = laid_out(numbers(*SHAPE, dtype=dtype, integers=True, seed=1), "channels last")
    scale, shift = (numbers(5, dtype=torch.float32, integers=True, seed=s) for s in (2, 3))
    x, scale, shift, residual = on(backend, x, scale, shift, residual)
    parts = [(scale, shift, residual, True), (scale, None, None, False), (None, shift, None, False)]
    for *operands, relu in [*parts, (None, None, residual, False), (None, None, None, True)]:
        out = room_like(x)
        affine(x, *operands, out, relu=relu)
        equal(out, expected(x, *operands, relu=relu))


@pytest.mark.parametrize("backend", TRITON)
def test_passes_share_what_does_not_depend_on_them(backend):
    """A stride of 0 over passes, for x and for the residual; [passes, images, C, H, W]."""
    plain, drawn = (numbers(2, 3, 5, 4, dtype=torch.float32, integers=True, seed=s) for s in (0, 1))
    drawn = torch.stack([drawn, drawn + 1, -drawn])
    scale = numbers(3, dtype=torch.float32, integers=True)
    plain, drawn, scale = on(backend, plain, drawn, scale)
    for x, residual in ((plain.expand(3, -1, -1, -1, -1), drawn), (drawn, plain)):
        out = room_like(drawn)
        affine(x, scale, None, residual, out, relu=True, channel_dim=2)
        want = expected(x, scale, None, residual, relu=True, channel_dim=2)
        equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("onto", ["x", "residual"])
def test_in_place(onto, layout, backend):
    x, residual = (
        laid_out(numbers(*SHAPE, dtype=torch.float32, integers=True, seed=s), layout)
        for s in (0, 1)
    )
    shift = numbers(5, dtype=torch.float32, integers=True)
    x, residual, shift = on(backend, x, residual, shift)
    want = expected(x, None, shift, residual, relu=True)
    out = x if onto == "x" else residual
    affine(x, None, shift, residual, out, relu=True)
    equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 5), (4099,), (2, 5, 1031), (0, 5)], ids=str)
def test_edges(shape, backend):
    """Nothing, single elements, more than a tile; rows of channels."""
    x = numbers(*shape, dtype=torch.float32, integers=True)
    (x,) = on(backend, x)
    out = room_like(x)
    affine(x, None, None, None, out, relu=True)
    equal(out, x.relu())


@pytest.mark.parametrize("backend", TRITON)
def test_a_nan_stays_one(backend):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3.0])
    (x,) = on(backend, x)
    out = room_like(x)
    affine(x, None, None, None, out, relu=True)
    equal(out, x.relu())
