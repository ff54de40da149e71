"""The kernels in the published style are right, or beating them would prove nothing."""

import pytest
import torch

from bayes_dc.rng.reference import philox4x32
from benchmarks.gates import compare, exact_products, integers

SEED = 7
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
SHAPES = [(1, 1, 1), (5, 9, 70), (4, 4, 32), (7, 3, 33)]


@pytest.fixture
def published():
    """Triton may be missing."""
    pytest.importorskip("triton")
    from benchmarks import published

    return published


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_integer_inputs_are_exact(published, shape, device):
    M, N, K = shape
    x, w, gy = integers((M, 1, K), (N, K), (M, 1, N))
    mask = published.explicit_masks(SEED, M, N, K, device).cpu().double()
    want = [2 * t for t in exact_products(x, w, gy, mask)]
    x, w, gy = (t.float().to(device).requires_grad_() for t in (x[:, 0], w, gy[:, 0]))
    y = published.linear(x, w, SEED)
    dx, dw = torch.autograd.grad(y, (x, w), gy)
    compare("published", (y, dx, dw), (want[0][:, 0], want[1][:, 0], want[2]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_mask_is_one_philox_call_for_each_weight(published, device):
    """Word 0 of the call at the weight's offset, read as a number in [0, 1), above one half."""
    M, N, K = 3, 5, 8
    offsets = torch.arange(M * N * K).numpy().astype("uint64")
    zero = 0 * offsets
    word = philox4x32((SEED, 0), (offsets, zero, zero, zero))[0].astype("uint32").view("int32")
    folded = torch.from_numpy(word).long()
    folded = torch.where(folded < 0, ~folded, folded)  # as tl.rand maps a word to [0, 1)
    found = published.explicit_masks(SEED, M, N, K, device).cpu().bool().flatten()
    assert torch.equal(found, folded.double() * 4.6566127342e-10 > 0.5)


@pytest.mark.gpu
def test_weights_beyond_int32_have_masks_of_their_own(published):
    """The last rows of 2**31 weights and rows by offsets of 64 bits."""
    M, N, K = 2049, 1024, 1024
    x = torch.zeros(M, K, device="cuda")
    x[0] = x[-1] = 1
    y = published.forward(x, torch.ones(N, K, device="cuda"), SEED)
    offsets = torch.arange(K).numpy().astype("uint64") + (M - 1) * N * K
    zero = 0 * offsets
    word = philox4x32((SEED, 0), (offsets & 0xFFFFFFFF, offsets >> 32, zero, zero))[0]
    folded = torch.from_numpy(word.astype("uint32").view("int32")).long()
    folded = torch.where(folded < 0, ~folded, folded)
    assert y[-1, 0].item() == 2 * (folded.double() * 4.6566127342e-10 > 0.5).sum().item()
    assert not torch.equal(y[0], y[-1])
