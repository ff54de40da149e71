"""Are the bits what a coin of the right weight gives?

The words are those of Numba, which other tests hold to the reference bit for bit. Seeds are fixed,
so nothing here is flaky; bounds are quantiles of the normal law for the number of comparisons made.
"""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from bayes_dc.rng import keep_digits, layer_key, masks
from bayes_dc.rng.numba_rng import mask_words

FALSE_ALARM = 1e-6
SHIFTS = range(1, 65)
LENGTH = 192  # positions along an axis: at least 128 pairs at every shift


def largest_z(comparisons):
    """Bound on the largest of so many standard normals, passed once in a million runs."""
    return stats.norm.isf(FALSE_ALARM / (2 * comparisons))


def ones(words):
    return int(np.bitwise_count(words).sum())


def correlation_z(a, b, keep):
    """Σ (a − keep)(b − keep) over the bits of two arrays of words, in standard deviations.

    Products of independent centred variables are uncorrelated even where they share a factor, so
    the variance is exact for overlapping pairs.
    """
    count = a.size * 32
    covariance = ones(a & b) - keep * (ones(a) + ones(b)) + count * keep**2
    return covariance / (np.sqrt(count) * keep * (1 - keep))


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 0.01, 0.3, 0.9, 0.001])
def test_keep_rate_on_a_hundred_million_bits(p):
    """Within 4 standard deviations in all, and in every word of a call and bit of a word."""
    digits = keep_digits(p)
    keep = digits.keep_probability
    words = mask_words(layer_key(11, 1), np.arange(100), np.zeros(100, int), 32, 1024, digits)
    count = words.size * 32
    assert count >= 10**8
    assert abs(ones(words) / count - keep) < 4 * np.sqrt(keep * (1 - keep) / count)
    by_place = [
        ones(words[:, word::4] >> np.uint64(bit) & np.uint64(1))
        for word in range(4)
        for bit in range(32)
    ]
    spread = np.sqrt(count / 128 * keep * (1 - keep))
    assert abs(np.array(by_place) - count / 128 * keep).max() < largest_z(128) * spread


def along_seed(digits):
    return [field(digits, key=layer_key(seed, 0)) for seed in range(LENGTH)]


def along_layer(digits):
    return [field(digits, key=layer_key(0, layer)) for layer in range(LENGTH)]


def along_sample(digits):
    return field(digits, samples=np.arange(LENGTH))


def along_pass(digits):
    return field(digits, passes=np.arange(LENGTH))


def along_k(digits):
    return field(digits, samples=np.arange(8), K=LENGTH).swapaxes(0, 1)


def field(digits, *, key=None, samples=None, passes=None, K=256):
    """Words [G, K, 8]; one group unless ids are given."""
    groups = 1 if samples is None and passes is None else len(samples if passes is None else passes)
    samples = np.zeros(groups, int) if samples is None else samples
    passes = np.zeros(groups, int) if passes is None else passes
    return mask_words(key or layer_key(5, 2), samples, passes, 8, K, digits).astype(np.uint32)


@pytest.mark.parametrize("p", [0.5, 0.1])
@pytest.mark.parametrize("axis", [along_seed, along_layer, along_sample, along_pass, along_k])
def test_neighbours_are_uncorrelated(axis, p):
    """Shifts 1 … 64 of whole masks along one coordinate."""
    digits = keep_digits(p)
    words = np.stack(axis(digits))
    keep = digits.keep_probability
    found = {s: correlation_z(words[:-s], words[s:], keep) for s in SHIFTS}
    assert max(map(abs, found.values())) < largest_z(len(SHIFTS)), found


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_neighbouring_outputs_are_uncorrelated(p):
    """Shifts 1 … 64 along n, across the borders of words."""
    digits = keep_digits(p)
    words = mask_words(layer_key(5, 2), np.arange(64), np.zeros(64, int), 8, 512, digits)
    shifted = partial(shifted_outputs, words)
    keep = digits.keep_probability
    found = {s: correlation_z(shifted(0), shifted(s), keep) for s in SHIFTS}
    assert max(map(abs, found.values())) < largest_z(len(SHIFTS)), found


def shifted_outputs(words, shift):
    """Words [G, K, 5] whose bit n is bit n + shift of ``words`` [G, K, 8]."""
    whole, part = divmod(shift, 32)
    low, high = words[..., whole : whole + 5], words[..., whole + 1 : whole + 6]
    return (low | high << np.uint64(32)) >> np.uint64(part) & np.uint64(0xFFFFFFFF)


def test_shifting_outputs_shifts_bits():
    """The helper above, against unpacked bits."""
    words = np.random.default_rng(0).integers(0, 2**32, (2, 3, 8), dtype=np.uint64)

    def bits(w):
        return (w[..., None] >> np.arange(32, dtype=np.uint64) & np.uint64(1)).reshape(2, 3, -1)

    for shift in (0, 1, 31, 32, 33, 64):
        got = bits(shifted_outputs(words, shift))
        np.testing.assert_array_equal(got, bits(words)[..., shift : shift + 160])


def test_no_mask_is_a_shifted_copy_of_another():
    """64 samples × 1024 weights, every pair at every shift up to ±64: 0.5 ± 0.1."""
    bits = masks(layer_key(1, 0), np.arange(64), np.zeros(64, int), 1, 1024, keep_digits(0.5))
    signs = 2 * bits.reshape(64, 1024).astype(np.float32) - 1
    others = ~np.eye(64, dtype=bool)
    for shift in range(65):
        agreement = 0.5 + signs[:, : 1024 - shift] @ signs[:, shift:].T / (2 * (1024 - shift))
        assert abs(agreement[others] - 0.5).max() < 0.1


@pytest.mark.parametrize("axis", [1, 2], ids=["n", "k"])
def test_groups_of_four_are_not_equal(axis):
    """8 samples × 64 × 64 weights: four fair bits are equal with probability 1/8."""
    bits = masks(layer_key(2, 0), np.arange(8), np.zeros(8, int), 64, 64, keep_digits(0.5))
    fours = np.moveaxis(bits, axis, -1).reshape(8, 64, 16, 4)
    share = (fours == fours[..., :1]).all(axis=-1).mean()
    assert abs(share - 0.125) < 4 * np.sqrt(0.125 * 0.875 / (8 * 64 * 16))


def test_no_row_repeats():
    """10⁷ bits of one launch: no two of 9766 masks of 32 × 32 weights are equal."""
    samples = np.arange(9766)
    words = mask_words(layer_key(3, 0), samples, samples * 0, 1, 32, keep_digits(0.5))[..., 0]
    count = words.size * 32
    assert count >= 10**7
    assert len(np.unique(words, axis=0)) == len(words)
    assert abs(ones(words) / count - 0.5) < 4 * 0.5 / np.sqrt(count)
