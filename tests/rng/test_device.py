"""Triton's device functions, interpreted and compiled: words as integers, normals to float32."""

import numpy as np
import pytest
import torch

from bayes_dc.rng import KNOWN_ANSWERS, keep_digits, layer_key, mask_words, normals, philox4x32

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
device = pytest.importorskip("bayes_dc.rng.device")

QUADS, WORDS = 8, 4


@triton.jit
def philox_kernel(inputs, out):
    """Four words for the key and counter of each of 4 lanes: inputs [6, 4], out [4, 4]."""
    lane = tl.arange(0, 4)
    k0 = tl.load(inputs + lane).to(tl.uint32)
    k1 = tl.load(inputs + 4 + lane).to(tl.uint32)
    c0 = tl.load(inputs + 8 + lane).to(tl.uint32)
    c1 = tl.load(inputs + 12 + lane).to(tl.uint32)
    c2 = tl.load(inputs + 16 + lane).to(tl.uint32)
    c3 = tl.load(inputs + 20 + lane).to(tl.uint32)
    w0, w1, w2, w3 = device.philox4x32(k0, k1, c0, c1, c2, c3)
    tl.store(out + lane, w0.to(tl.int64))
    tl.store(out + 4 + lane, w1.to(tl.int64))
    tl.store(out + 8 + lane, w2.to(tl.int64))
    tl.store(out + 12 + lane, w3.to(tl.int64))


@triton.jit
def mask_words_kernel(ids, out, KEEP: tl.constexpr, BITS: tl.constexpr, QUADS: tl.constexpr,
                      WORDS: tl.constexpr):  # fmt: skip
    """out [4 · QUADS, WORDS] of one group; ids: key words, sample, pass."""
    k0 = tl.load(ids).to(tl.uint32)
    k1 = tl.load(ids + 1).to(tl.uint32)
    sample = tl.load(ids + 2).to(tl.uint32)
    step = tl.load(ids + 3).to(tl.uint32)
    quad = tl.arange(0, QUADS)[:, None]
    word = tl.arange(0, WORDS)[None, :]
    r0, r1, r2, r3 = device.mask_words(
        k0, k1, quad.to(tl.uint32), word.to(tl.uint32), sample, step, KEEP, BITS
    )
    place = out + quad * (4 * WORDS) + word
    tl.store(place, r0.to(tl.int64))
    tl.store(place + WORDS, r1.to(tl.int64))
    tl.store(place + 2 * WORDS, r2.to(tl.int64))
    tl.store(place + 3 * WORDS, r3.to(tl.int64))


@triton.jit
def normals_kernel(ids, out, ROWS: tl.constexpr, QUADS: tl.constexpr):
    """out [ROWS, 4 · QUADS] of one group; ids: key words, sample, pass."""
    k0 = tl.load(ids).to(tl.uint32)
    k1 = tl.load(ids + 1).to(tl.uint32)
    sample = tl.load(ids + 2).to(tl.uint32)
    step = tl.load(ids + 3).to(tl.uint32)
    row = tl.arange(0, ROWS)[:, None]
    quad = tl.arange(0, QUADS)[None, :]
    z0, z1, z2, z3 = device.normals4(k0, k1, row.to(tl.uint32), quad.to(tl.uint32), sample, step)
    place = out + row * (4 * QUADS) + 4 * quad
    tl.store(place, z0)
    tl.store(place + 1, z1)
    tl.store(place + 2, z2)
    tl.store(place + 3, z3)


@triton.jit
def box_muller_kernel(words, out, SIZE: tl.constexpr):
    """out [2, SIZE] from words [2, SIZE]."""
    lane = tl.arange(0, SIZE)
    a = tl.load(words + lane).to(tl.uint32)
    b = tl.load(words + SIZE + lane).to(tl.uint32)
    z0, z1 = device.box_muller(a, b)
    tl.store(out + lane, z0)
    tl.store(out + SIZE + lane, z1)


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.interpreter),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def at(request):
    """Where the tensors lie."""
    return {"device": request.param}


def coordinates(seed, layer, sample, step, at):
    return torch.tensor([*layer_key(seed, layer), sample, step], **at)


def test_philox_known_answers(at):
    """The three published answers and one more lane, side by side."""
    cases = [(*key, *counter) for key, counter, _ in KNOWN_ANSWERS] + [(1, 2, 3, 4, 5, 6)]
    out = torch.full((4, 4), -1, dtype=torch.int64, **at)
    philox_kernel[(1,)](torch.tensor(cases, **at).T.contiguous(), out)
    want = [words for *_, words in KNOWN_ANSWERS]
    want.append(tuple(int(w) for w in philox4x32((1, 2), (3, 4, 5, 6))))
    assert [tuple(column) for column in out.T.tolist()] == want


@pytest.mark.parametrize("p", [0.5, 0.25, 0.75, 0.1, 0.3, 0.01])
def test_mask_words_equal_the_reference(p, at):
    digits = keep_digits(p)
    for coordinate in ((0, 0, 0, 0), (2**64 - 1, 9, 2**32 - 1, 2**31), (7, 1, 40_000, 3)):
        out = torch.full((4 * QUADS, WORDS), -1, dtype=torch.int64, **at)
        mask_words_kernel[(1,)](
            coordinates(*coordinate, at), out, digits.keep, digits.bits, QUADS, WORDS
        )
        seed, layer, sample, step = coordinate
        ids = np.array([sample]), np.array([step])
        want = mask_words(layer_key(seed, layer), *ids, WORDS, 4 * QUADS, digits)[0]
        np.testing.assert_array_equal(out.cpu().numpy().astype(np.uint64), want)


@pytest.mark.parametrize("seed", [0, 1, 16])
def test_seeds_a_compiler_might_specialise(seed, at):
    """Triton treats the arguments 0, 1 and multiples of 16 in a way of its own."""
    digits = keep_digits(0.5)
    out = torch.full((4 * QUADS, WORDS), -1, dtype=torch.int64, **at)
    mask_words_kernel[(1,)](coordinates(seed, 0, seed, seed, at), out, 1, 1, QUADS, WORDS)
    ids = np.array([seed]), np.array([seed])
    want = mask_words(layer_key(seed, 0), *ids, WORDS, 4 * QUADS, digits)[0]
    np.testing.assert_array_equal(out.cpu().numpy().astype(np.uint64), want)


def test_normals_equal_the_reference_to_float32(at):
    """Six half units in the last place of the radius.

    Two of the GPU's square root, two of sine or cosine, one of half the logarithm, one of products.
    """
    out = torch.full((4, 4 * QUADS), torch.nan, **at)
    normals_kernel[(1,)](coordinates(3, 2, 77, 5, at), out, 4, QUADS)
    want = normals(layer_key(3, 2), np.array([77]), np.array([5]), 4, 4 * QUADS)[0]
    radius = np.hypot(want[:, ::2], want[:, 1::2]).repeat(2, axis=1)
    bound = 6 * 2.0**-24 * radius
    assert (abs(out.cpu().numpy() - want) <= bound).all()


def test_box_muller_at_the_ends(at):
    """u strictly inside (0, 1) for every word: finite, and the radius not 0."""
    edge = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFE, 0xFFFFFFFF]
    out = torch.full((2, 8), torch.nan, **at)
    box_muller_kernel[(1,)](torch.tensor([edge, [0] * 8], **at), out, 8)
    radius = out[0].cpu()  # b = 0: cosine 1
    assert torch.isfinite(out).all()
    assert (radius > 0).all()
    # The largest is √(−2 ln 2⁻³³), from word 0.
    assert radius.max() == radius[0] == pytest.approx(np.sqrt(66 * np.log(2)), rel=2.0**-22)
