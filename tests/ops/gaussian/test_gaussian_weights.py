"""Which products take tensor cores, and the weights as they want them."""

import pytest
import torch
from gaussian_case import tensor_float32
from harness import KEY

from bayes_dc.ops.gaussian import op


def test_weights_for_the_tensor_cores():
    """The nearest number of 10 mantissa bits, and squares that float16 does not hold."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(9, 11, generator=generator)
    for weights in (w, w.T):
        rounded = op._rounded(weights)
        assert rounded.data_ptr() != weights.data_ptr()
        assert not (rounded.view(torch.int32) & 0x1FFF).any()
        assert ((rounded - weights).abs() <= 2.0**-11 * weights.abs()).all()
    assert op._rounded(w.half()).dtype == torch.float16
    assert torch.equal(op._squares(w), (w * w).bfloat16())
    assert op._squares(w).stride() == (16, 1)
    assert torch.isfinite(op._squares(w.half() * 600)).all()


@pytest.mark.parametrize(("K", "few"), [(63, True), (64, False)])
def test_few_squares_take_other_products(K, few):
    with tensor_float32(True):
        assert [op.on_tensor_cores(t, K) for t in (torch.float32, torch.float16)] == 2 * [not few]
        assert op.on_tensor_cores(torch.bfloat16, K)
        assert not op.on_tensor_cores(torch.float64, K)
    with tensor_float32(False):
        assert not op.on_tensor_cores(torch.float32, K)


BITS = (0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000, 0x7F800000, -0x800000, 0x7F7FFFFF, -0x80000000)
"""NaN of four kinds, ±inf, the largest number (which rounds to inf) and −0."""


def test_rounding_keeps_what_is_not_finite():
    """The bits of NaN would carry into the sign: 0x7FFFFFFF would become −0."""
    special = torch.tensor([BITS], dtype=torch.int32).view(torch.float32)
    inf = float("inf")
    rounded = op._rounded(special)
    assert rounded[0, :4].isnan().all()
    assert rounded[0, 4:].tolist() == [inf, -inf, inf, 0.0]
    assert rounded[0, 7].signbit()
    assert not (rounded.view(torch.int32) & 0x1FFF).any()


@pytest.mark.interpreter
def test_torch_and_the_kernels_round_alike():
    """Bit for bit, what is not finite too."""
    from bayes_dc.ops.linear import op as linear

    random = torch.randint(-(2**31), 2**31, (48, 8), generator=torch.Generator().manual_seed(0))
    w = torch.cat([torch.tensor([BITS]), random]).to(torch.int32).view(torch.float32)
    kernel = linear._along_rows(w[None, None])[0, 0]
    assert torch.equal(kernel.view(torch.int32), op._rounded(w).view(torch.int32))


@pytest.mark.parametrize("suits", [True, False])
def test_the_kernel_gets_the_weights_it_was_asked_about(suits, monkeypatch):
    """Rounding copies: a view that no tensor map can describe may become one that it can."""
    seen = {}

    def triton(name):
        def asked(x, w, squares, out):
            seen["asked"] = w
            return suits

        def launched(x, w, *_, **__):
            seen["launched"], seen["name"] = w, name

        return asked if name == "suits_hopper" else launched

    monkeypatch.setattr(op, "_triton", triton)
    x, w = torch.randn(1, 3, 1, 64), torch.randn(5, 65)[:, :64]
    at = (torch.tensor(KEY), torch.arange(3), torch.zeros(1, dtype=torch.int64))
    with tensor_float32(True):
        op._linear_cuda(x, w, None, *at, 1, 1, 2.0)
    assert seen["name"] == ("launch_hopper" if suits else "launch_linear")
    assert seen["launched"] is seen["asked"]
    assert torch.equal(seen["asked"], op._rounded(w))
