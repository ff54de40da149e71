"""Keep rates over many more bits than the quick tests look at."""

import numpy as np
import pytest

from bayes_dc.rng import keep_digits, layer_key
from bayes_dc.rng.numba_rng import mask_words

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 0.01, 0.003, 0.97])
def test_keep_rate_over_ten_to_the_nine_bits(p):
    """|rate − keep| within 4 standard errors, for a seed not used elsewhere."""
    digits = keep_digits(p)
    groups, K, words, kept, bits = 64, 4096, 32, 0, 0
    for block in range(4):
        samples = np.arange(groups) + groups * block
        found = mask_words(layer_key(987_654_321, 3), samples, 0 * samples, words, K, digits)
        kept += int(np.bitwise_count(found).sum())
        bits += 32 * found.size
    keep = digits.keep_probability
    assert bits >= 10**9
    assert abs(kept / bits - keep) <= 4 * (keep * (1 - keep) / bits) ** 0.5
