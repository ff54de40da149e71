"""Words and masks: published answers, frozen words, a second implementation, coordinates."""

import numpy as np
import pytest

from bayes_dc.rng import (
    KNOWN_ANSWERS,
    KeepDigits,
    keep_digits,
    layer_key,
    mask_words,
    masks,
    numba_rng,
    philox4x32,
)

SAMPLES = np.array([0, 7, 2**32 - 1, 40_000, 5])
PASSES = np.array([0, 3, 2**31, 2**32 - 1, 11])


def plain_philox(key, counter):
    """Ten rounds on Python integers, written from the paper (Salmon et al. 2011)."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def plain_bit(seed, layer, sample, step, n, k, p):
    """One mask bit as SPEC.md says it: the first digit in which u < keep is settled decides.

    Horner's rule from the last digit on is the comparison of a uniform number, whose digits are the
    complements of the words', with 0.q₁q₂…: another way to the same bit.
    """
    k0, k1, *_ = plain_philox((seed % 2**32, seed >> 32), (layer, 0, 0, 0xDC))
    keep, bits = p
    for i in range(bits):
        q = keep >> (bits - 1 - i) & 1
        counter = (k // 4, n // 32 | i << 24, sample, step)
        bit = plain_philox((k0, k1), counter)[k % 4] >> n % 32 & 1
        if bit == q:  # (1 | 1, whatever follows) = 1, (0 & 0, whatever follows) = 0
            return bool(q)
    return False  # r starts at 0


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN_ANSWERS)
def test_philox_known_answers(key, counter, words):
    assert tuple(int(w) for w in philox4x32(key, counter)) == words
    assert plain_philox(key, counter) == words


def test_the_known_answers_are_the_published_ones():
    """Random123's kat_vectors: typed in once more, so that no edit of the constants goes unseen."""
    text = [" ".join(f"{w:08x}" for w in words) for _, _, words in KNOWN_ANSWERS]
    assert text == [
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ]


def test_philox_takes_arrays_of_any_integers():
    """32-bit, 64-bit, signed and unsigned counters mean the same words."""
    counters = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
    want = [plain_philox((1, 2), (int(c), 0, int(c), 0)) for c in counters]
    for dtype in (np.int64, np.uint64, np.uint32):
        got = philox4x32((1, 2), (counters.astype(dtype), 0, counters.astype(dtype), 0))
        assert [tuple(int(w[i]) for w in got) for i in range(5)] == want
    wrapped = counters.astype(np.uint32).view(np.int32)
    got = philox4x32((1, 2), (wrapped, 0, wrapped, 0))
    assert [tuple(int(w[i]) for w in got) for i in range(5)] == want


# Computed once from reference.py: words [k = 0, 1, 6, 7][n // 32 = 0, 1] of
# (seed, layer, sample, pass, p).
GOLDEN = {
    (0, 0, 0, 0, 0.5): ("b79b8d68 537bdfdc 87333f92 f1a1f3df e188d34e eae386ea 4c7323a5 8a1f80f0"),
    (1, 0, 0, 0, 0.5): ("17879caa d1390429 aab4565b f4351f2d b02e9b91 f77a5d1f 453683ca 822691cf"),
    (0, 1, 0, 0, 0.5): ("d21d4aa9 1cd6d615 6e75ff8a 55673ca4 0f825e27 d20639e5 42b668fb df0f8679"),
    (2**64 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, 0.5): (
        "f62bc21a 9280404a 71a02925 a352e9eb 661b9ebe b15f0bce 41409cc2 da3a9c36"
    ),
    (0, 0, 0, 0, 0.25): ("ff9fcd68 f7fffffe 87b73f9f fdf5ffff e58ef7de efffa6ef ddf7ebff 8abfd2f3"),
    (20240607, 3, 59999, 7, 0.25): (
        "b3bfdef5 bddf2cf7 d375a7dd 9ebffeee d83fdf4d d3cf3bff ffffecbf bfbbe3ff"
    ),
    (0, 0, 0, 0, 0.1): ("fffffd6e f7fffffe a7ff7fff fdf5ffff fddeffff ffffffff fff7fbff 8efff3f7"),
    (20240607, 3, 59999, 7, 0.1): (
        "bffffeff bdfffdf7 fbf5bfff dfffffef ff3ffffd dbefbfff ffffffff bfbfebff"
    ),
    (0, 0, 0, 0, 0.01): ("ffffffef ffffffff ffffffff ffffffff fdffffff ffffffff fff7ffff bffffff7"),
    (7 + 2**32, 5, 40000, 99, 0.01): (
        "fffffbff ffffffff ffffffff ffffffff ffffffff ffffffff dfffffff bfffffff"
    ),
}


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
def test_golden_words(golden):
    """A change of these is a new version of the specification: stored runs would not repeat."""
    seed, layer, sample, step, p = golden
    digits = keep_digits(p)
    key = layer_key(seed, layer)
    for make in (mask_words, numba_rng.mask_words):
        words = make(key, np.array([sample]), np.array([step]), 2, 8, digits)
        assert " ".join(f"{w:08x}" for w in words[0, [0, 1, 6, 7]].ravel()) == GOLDEN[golden]
    for k in (0, 1, 6, 7):
        for n in range(64):
            bit = int(words[0, k, n // 32]) >> n % 32 & 1
            assert bool(bit) == plain_bit(seed, layer, sample, step, n, k, digits), (n, k)


@pytest.mark.parametrize(
    ("seed", "layer"), [(0, 0), (1, 0), (0, 1), (7 + 2**32, 2), (2**64 - 1, 3)]
)
def test_layer_keys(seed, layer):
    """All 64 bits of the seed count."""
    want = plain_philox((seed % 2**32, seed >> 32), (layer, 0, 0, 0xDC))[:2]
    assert layer_key(seed, layer) == want


def test_seeds_that_agree_in_32_bits_have_other_keys():
    keys = {layer_key(seed, 0) for seed in (7, 7 + 2**32, 7 + 2**63, 2**64 - 1, 2**32 - 1)}
    assert len(keys) == 5


def test_every_numerator_of_four_digits():
    """All digit patterns, reference and Numba, against the second implementation."""
    key, ids = layer_key(1, 0), (np.array([9]), np.array([2]))
    for keep in range(1, 16):
        digits = KeepDigits(keep, 4)
        want = [[plain_bit(1, 0, 9, 2, n, k, digits) for k in range(5)] for n in range(34)]
        np.testing.assert_array_equal(masks(key, *ids, 34, 5, digits)[0], want)
        words = numba_rng.mask_words(key, *ids, 2, 5, digits)
        np.testing.assert_array_equal(words, mask_words(key, *ids, 2, 5, digits))


@pytest.mark.parametrize(("N", "K"), [(1, 1), (31, 3), (33, 4), (64, 6), (65, 9)])
def test_masks_are_windows_of_one_field(N, K):
    """The bit of weight (n, k) does not depend on how many weights there are, nor on its group."""
    digits = keep_digits(0.3)
    key = layer_key(1, 1)
    whole = masks(key, SAMPLES, PASSES, 70, 12, digits)
    assert whole.shape == (5, 70, 12)
    part = masks(key, SAMPLES[1:3], PASSES[1:3], N, K, digits)
    np.testing.assert_array_equal(part, whole[1:3, :N, :K])


def test_p_zero_keeps_everything():
    digits = keep_digits(0.0)
    assert masks((1, 2), SAMPLES, PASSES, 5, 6, digits).all()
    assert masks((1, 2), SAMPLES, PASSES, 5, 6, digits).shape == (5, 5, 6)


def test_coordinates_are_32_bits_wide():
    """Nothing repeats after 2**32 draws (256 × 256 weights × 65 536 samples), 2**31 or 2**16."""
    key, digits = layer_key(0, 0), keep_digits(0.5)
    ids = np.array([0, 65_536, 40_000, 2**31, 2**32 - 1])
    for samples, passes in ((ids, np.zeros_like(ids)), (np.zeros_like(ids), ids)):
        bits = masks(key, samples, passes, 256, 256, digits).reshape(5, -1)
        for i in range(5):
            for j in range(i):
                agree = (bits[i] == bits[j]).mean()
                # 65 536 fair bits: a standard deviation is 1/512; 5 of them.
                assert abs(agree - 0.5) < 5 / 512
    wrapped = masks(key, ids + 2**32, ids - 2**32, 40, 9, digits)
    np.testing.assert_array_equal(wrapped, masks(key, ids, ids, 40, 9, digits))


def test_the_probability_is_finer_than_a_byte():
    """p = 0.001 on 10⁶ weights: 8 random bits could only give 0 or 0.0039."""
    digits = keep_digits(0.001)
    mask = masks(layer_key(0, 0), np.array([0]), np.array([0]), 1000, 1000, digits)
    rate = 1 - mask.mean()
    assert abs(rate - 0.001) < 4 * np.sqrt(0.001 * 0.999 / 1e6)
    # p = 0.3 in one row of a million weights.
    mask = masks(layer_key(0, 1), np.array([0]), np.array([0]), 1, 1_000_000, keep_digits(0.3))
    assert abs(mask.mean() - 0.7) < 4 * np.sqrt(0.3 * 0.7 / 1e6)
