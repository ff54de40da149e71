"""Masked copies of W have independent, fair masks."""

import pytest
import torch

from bayes_dc.rng.reference import philox4x32
from benchmarks import gates

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
SEED = 5


@pytest.fixture
def expand():
    """Triton may be missing."""
    pytest.importorskip("triton")
    from benchmarks import expand

    return expand


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 7, 40), (2, 96, 64)])
def test_masks_are_bits_of_philox_words(expand, shape, device):
    G, N, K = shape
    found = expand.masked_copies(torch.ones(N, K, device=device), G, SEED).cpu().flatten(1)
    calls = torch.arange(-(-N * K // 128)).numpy().astype("uint64")
    zero = 0 * calls
    for group in range(G):
        words = philox4x32((SEED, 0), (calls, zero + group, zero, zero))
        words = torch.stack([torch.from_numpy(w.astype("int64")) for w in words], dim=1)
        bits = (words.flatten()[:, None] >> torch.arange(32)) & 1
        assert torch.equal(found[group].long(), 2 * bits.flatten()[: N * K])


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_those_of_the_copies(expand, device):
    x, w, gy = (t.float().to(device) for t in gates.integers((3, 4, 40), (7, 40), (3, 4, 7)))
    copies = expand.masked_copies(w, 3, SEED)
    assert torch.equal(expand.forward(x, w, SEED), torch.einsum("grk,gnk->grn", x, copies))
    assert torch.equal(expand.grad_input(gy, w, SEED), torch.einsum("grn,gnk->grk", gy, copies))


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_kernel_does_not_read_is_refused(expand, device):
    """Strides, and more than its grid and its offsets hold."""
    w = torch.ones(4, 6, device=device)
    message = r"w must be contiguous; got shape \(6, 4\) with strides \(1, 6\)\. Pass w\.contig"
    with pytest.raises(ValueError, match=message):
        expand.masked_copies(w.t(), 2, SEED)
    message = r"for at most 65535 groups; got 24 weights for 65536 groups\. Make the copies in sev"
    with pytest.raises(ValueError, match=message):
        expand.masked_copies(w, 65536, SEED)
    large = torch.empty(2**31 - 4096, 1, device="meta")
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31 - 4096 weights.*got 2147479552 wei"):
        expand.masked_copies(large, 1, SEED)
