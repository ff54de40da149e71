"""Pools without index buffers, against torch's, on every layout."""

import pytest
import torch
import torch.nn.functional as F
from plain_harness import (
    LAYOUTS,
    TRITON,
    as_exact_as,
    equal,
    laid_out,
    numbers,
    on,
    room_like,
)

SHAPE = (2, 5, 7, 9)
# kernel size, stride, padding
WINDOWS = [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 3), (1, 0))]


def pools():
    from bayes_dc.ops.plain import triton_pool

    return triton_pool


def taps(window):
    return dict(zip(("kernel_size", "stride", "padding"), window, strict=True))


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_maximum(dtype, window, layout, backend):
    """Also with windows that overhang, and with distant taps."""
    (x,) = on(backend, laid_out(numbers(*SHAPE, dtype=dtype), layout))
    for options in ({}, {"ceil_mode": True}, {"dilation": (2, 1)}):
        want = F.max_pool2d(x.double(), *window, **options)
        out = room_like(laid_out(want.to(dtype), layout))
        dilation = options.get("dilation", (1, 1))
        pools().launch_max_pool2d(x, out, **taps(window), dilation=dilation)
        equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mean(dtype, window, layout, backend):
    """A division of a sum that does not round: equal bits."""
    x = laid_out(numbers(*SHAPE, dtype=dtype, integers=True), layout)
    (x,) = on(backend, x)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    for options in (
        {},
        {"ceil_mode": True},
        {"count_include_pad": False},
        {"ceil_mode": True, "count_include_pad": False},
        {"divisor_override": 3},
    ):
        want = F.avg_pool2d(x.cpu().to(exact), *window, **options).to(dtype)
        out = room_like(laid_out(want, layout).to(x.device))
        given = {name: value for name, value in options.items() if name != "ceil_mode"}
        pools().launch_avg_pool2d(x, out, **taps(window), **given)
        equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (7, 9), (8, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_adaptive_mean(dtype, size, layout, backend):
    """Windows of different sizes, also more of them than rows."""
    (x,) = on(backend, laid_out(numbers(*SHAPE, dtype=dtype), layout))
    want = F.adaptive_avg_pool2d(x.double(), size)
    out = room_like(laid_out(want.to(dtype), layout))
    pools().launch_adaptive_avg_pool2d(x, out)
    as_exact_as(out, F.adaptive_avg_pool2d(x.float(), size).to(dtype), want, backend)


@pytest.mark.parametrize("backend", TRITON)
def test_a_nan_in_the_window_is_the_maximum(backend):
    x = numbers(1, 2, 6, 6, dtype=torch.float32)
    x[0, 1, 3, 2] = float("nan")
    (x,) = on(backend, x)
    want = F.max_pool2d(x, 3, 1)
    out = room_like(want)
    pools().launch_max_pool2d(x, out, kernel_size=(3, 3), stride=(1, 1))
    equal(out, want)
    assert out.isnan().sum() == 9


@pytest.mark.parametrize("backend", TRITON)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_more_than_a_tile(layout, backend):
    """Tiles of channels and of positions, each with a tail."""
    (x,) = on(backend, laid_out(numbers(2, 261, 35, 4, dtype=torch.float32), layout))
    want = F.max_pool2d(x, 2, (2, 1))
    out = room_like(laid_out(want, layout))
    pools().launch_max_pool2d(x, out, kernel_size=(2, 2), stride=(2, 1))
    equal(out, want)


@pytest.mark.parametrize("backend", TRITON)
def test_no_images(backend):
    (x,) = on(backend, torch.empty(0, 3, 4, 4))
    out = x.new_empty(0, 3, 2, 2)
    pools().launch_max_pool2d(x, out, kernel_size=(2, 2), stride=(2, 2))
    pools().launch_adaptive_avg_pool2d(x, out)
