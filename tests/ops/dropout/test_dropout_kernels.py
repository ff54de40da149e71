"""Masks and arithmetic of keyed dropout: every implementation against the reference."""

import harness
import numpy as np
import pytest
import torch
from harness import BACKENDS, TRITON, device_of, moved

from bayes_dc.ops.dropout import reference
from bayes_dc.rng import dropout_key, keep_digits

KEY = dropout_key(3, 1)
# Passes, samples, channels, positions: single ones, primes, over and under 128, several blocks.
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 1, 7),
    (3, 2, 1, 128),
    (1, 2, 1, 131),
    (2, 1, 1, 9001),
    (2, 2, 5, 26),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def assert_bitwise_equal(got, want):
    harness.assert_bitwise_equal(got, want, "y")


def launcher(backend):
    if backend == "cpu":
        from bayes_dc.ops.dropout.cpu import launch_dropout
    else:
        from bayes_dc.ops.dropout.triton_dropout import launch_dropout
    return launch_dropout


def run(backend, x, *, p=0.5, scale=2.0, by_channel=False, samples=None, passes=None, out=None):
    """What a backend writes, on the CPU, and what the reference does; outputs are poisoned."""
    P, S, U, V = x.shape
    device, digits = device_of(backend), keep_digits(p)
    samples = torch.arange(5, 5 + S) if samples is None else samples
    passes = torch.arange(2, 2 + P) if passes is None else passes
    if out is None:
        out = torch.empty(P, S, U, V, dtype=x.dtype)
    out = torch.full_like(out, float("nan"), device=device)
    at = (moved(t, device) for t in (torch.tensor(KEY), samples, passes))
    options = {"keep": digits.keep, "bits": digits.bits, "scale": scale}
    launcher(backend)(moved(x, device), *at, out, **options, by_channel=by_channel)
    mask = reference.explicit_masks(KEY, samples, passes, U if by_channel else U * V, digits)
    return out.cpu(), reference.forward(x, mask, scale)


def integers(*shape, dtype=torch.float32):
    """Small, and not 0: a dropped element shows."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_channel", [False, True], ids=["element", "channel"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("p", [0.5, 0.1])
def test_masks(p, shape, by_channel, backend):
    if by_channel and shape[2] == 1 and shape[3] > 128:
        pytest.skip("a channel of many elements: one bit")
    assert_bitwise_equal(*run(backend, integers(*shape), p=p, by_channel=by_channel))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_channel", [False, True], ids=["element", "channel"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_round_once(dtype, by_channel, backend):
    if backend == "interpreter" and dtype == torch.bfloat16:
        pytest.skip("the interpreter rounds to bfloat16 towards zero; compiled kernels do not")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 2, 3, 50, generator=generator, dtype=torch.float64).to(dtype)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    got, want = run(backend, x, p=0.3, scale=1 / 0.7, by_channel=by_channel)
    kept = want != 0
    assert torch.equal(got != 0, kept)
    scale = torch.tensor(1 / 0.7, dtype=sums)
    assert_bitwise_equal(got[kept], (x.to(sums) * scale).to(dtype)[kept])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_channel", [False, True], ids=["element", "channel"])
def test_channels_last_and_other_strides(by_channel, backend):
    """The number of an element does not depend on where it lies."""
    x = integers(2, 2, 6, 20)
    want = run("cpu", x, by_channel=by_channel)[1]
    last = x.transpose(2, 3).contiguous().transpose(2, 3)
    room = torch.empty(2, 2, 20, 6).transpose(2, 3)
    shared = x[:1].expand(2, 2, 6, 20)
    odd = torch.zeros(2, 2, 6, 41)[..., 1::2].copy_(x)
    for given, out in ((last, room), (last, None), (x, room), (odd, None)):
        assert_bitwise_equal(run(backend, given, by_channel=by_channel, out=out)[0], want)
    assert_bitwise_equal(*run(backend, shared, by_channel=by_channel))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_of_any_stride_and_size(backend):
    """Taken modulo 2**32, read with their strides."""
    samples = torch.tensor([2**33 + 7, 0, -1, 0])[::2]
    passes = torch.tensor([2**31]).expand(3)
    got, want = run(backend, integers(3, 2, 1, 200), samples=samples, passes=passes)
    assert_bitwise_equal(got, want)
    again = run(
        backend, integers(3, 2, 1, 200), samples=torch.tensor([7, 2**32 - 1]), passes=passes
    )
    assert_bitwise_equal(got, again[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_dropped_is_zero_whatever_it_was(backend):
    x = torch.full((1, 2, 1, 300), float("nan"))
    got, want = run(backend, x)
    assert torch.equal(got == 0, want == 0)
    assert 100 < (got == 0).sum() < 500
    assert got[got != 0].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_do(backend):
    for shape in ((0, 2, 1, 4), (2, 0, 1, 4), (2, 2, 1, 0)):
        assert run(backend, torch.ones(shape))[0].shape == shape


@pytest.mark.parametrize("threads", [1, 3])
def test_cpu_parts_and_threads(threads, monkeypatch):
    """Parts of some samples, of some passes, of one large sample: they are converted together."""
    from bayes_dc.ops.dropout import cpu

    before = torch.get_num_threads()
    monkeypatch.setattr(cpu, "_SMALL", 0)
    torch.set_num_threads(threads)
    try:
        assert_bitwise_equal(*run("cpu", integers(3, 3, 1, 9000)))
        for samples in (0, 1, 2, 5, 6, 100):
            monkeypatch.setattr(cpu, "PART", samples * 9000 * 4)
            assert_bitwise_equal(*run("cpu", integers(3, 3, 1, 9000, dtype=torch.bfloat16)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", TRITON)
def test_blocks_do_not_show(backend, monkeypatch):
    from bayes_dc.ops.dropout import triton_dropout

    for block in (128, 512, 2048):
        monkeypatch.setattr(triton_dropout, "_BLOCK", block)
        monkeypatch.setattr(triton_dropout, "_UNIT_BLOCK", block)
        assert_bitwise_equal(*run(backend, integers(1, 2, 1, 1500)))
        assert_bitwise_equal(*run(backend, integers(1, 2, 9, 50)))


def test_bits_of_a_call():
    """The specification by hand: word e mod 4, bit (e div 4) mod 32, counter word e div 128."""
    from bayes_dc.rng import philox4x32

    mask = reference.explicit_masks(
        KEY, torch.tensor([7]), torch.tensor([9]), 300, keep_digits(0.5)
    )
    for e in (0, 1, 4, 127, 128, 299):
        words = philox4x32(KEY, (0, e // 128, 7, 9))
        assert mask[0, 0, e].item() == bool(int(words[e % 4]) >> (e // 4 % 32) & 1)


def test_known_answers():
    """Keys and bits that must stay: masks of old checkpoints and reports depend on them."""
    assert [hex(word) for word in dropout_key(5, 1)] == KNOWN[0]
    assert [hex(word) for word in dropout_key(5, 1, 2)] == KNOWN[1]
    mask = reference.explicit_masks(
        dropout_key(5, 1), *torch.zeros(2, 1).long(), 32, keep_digits(0.3)
    )
    assert np.packbits(mask.numpy()[0, 0]).tobytes().hex() == KNOWN[2]


KNOWN = (["0xd4e84701", "0x6f4e3988"], ["0x44b64712", "0xae9a6e9f"], "ffe7da6f")


def test_dropout_and_dropconnect_draw_apart():
    """Layer 0 of one is not layer 0 of the other, and every call has a key of its own."""
    from bayes_dc.rng import layer_key

    keys = {layer_key(0, 0), *(dropout_key(0, layer, call) for layer in (0, 1) for call in (0, 1))}
    assert len(keys) == 5


def test_share_of_dropped_units():
    """Within four standard errors of p, over samples, passes and units."""
    for p in (0.5, 0.1):
        digits = keep_digits(p)
        mask = reference.explicit_masks(KEY, torch.arange(40), torch.arange(5), 500, digits)
        share, n = 1 - mask.double().mean(), mask.numel()
        assert abs(share - digits.p_effective) < 4 * (p * (1 - p) / n) ** 0.5
