"""The CPU's mask words against the known answers and the NumPy reference, as integers."""

import numpy as np
import pytest

from bayes_dc.rng import KNOWN_ANSWERS, keep_digits, mask_words, numba_rng

KEY = (0xFFFFFFF1, 0x9ABCDEF0)


def aligned(words):
    """Poisoned uint32 memory on a 64-byte boundary."""
    memory = np.full(words + 16, 0xDEADBEEF, np.uint32)
    skip = -memory.ctypes.data % 64 // 4
    return memory[skip : skip + words]


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN_ANSWERS)
def test_known_answers(key, counter, answer):
    """The first call of a block, with any counter word, gives the published words."""
    words = aligned(numba_rng.GROUPS * numba_rng.INPUTS)
    ids = np.array([[counter[2]] * numba_rng.GROUPS, [counter[3]] * numba_rng.GROUPS])
    numba_rng.fill_dropped(
        words.ctypes.data,
        numba_rng.INPUTS * 4,
        0,
        1,
        1,
        1,
        np.array(key).ctypes.data,
        counter[0],
        counter[1],
        ids[0].ctypes.data,
        ids[1].ctypes.data,
        1,
        1,
    )
    for group in words.reshape(numba_rng.GROUPS, -1):
        assert tuple(~group[:4]) == answer


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 0.3, 0.01, 0.999])
@pytest.mark.parametrize(("groups", "N", "K"), [(1, 1, 1), (3, 70, 10), (4, 32, 32), (9, 33, 131)])
def test_words_are_the_references(p, groups, N, K):
    """Any number of digits, tails along every axis, ids beyond 32 bits and negative."""
    samples = np.arange(groups) * 7 + 2**32 - 8
    passes = 3 - np.arange(groups) * 2
    arguments = (KEY, samples, passes, -(-N // 32), K, keep_digits(p))
    np.testing.assert_array_equal(numba_rng.mask_words(*arguments), mask_words(*arguments))
