"""The mask specification in NumPy, written to be read beside SPEC.md.

Words are held in uint64 arrays so that no product overflows.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from bayes_dc.rng.spec import (
    DIGIT_SHIFT,
    DROPOUT_TAG,
    LAYER_TAG,
    MULTIPLIERS,
    NORMAL_TAG,
    ROUNDS,
    WEYL,
    WORD_BITS,
    WORDS_PER_CALL,
    KeepDigits,
    check_layer,
    check_seed,
)

Words = NDArray[np.uint64]

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _words(values: object) -> Words:
    """Integers modulo 2**32 in a uint64 array."""
    return np.asarray(values).astype(np.int64).view(np.uint64) & _MASK


def philox4x32(
    key: tuple[object, object], counter: tuple[object, object, object, object]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10.

    Args:
        key: Two 32-bit words, each an integer or an integer array.
        counter: Four 32-bit words, integers or integer arrays; all six broadcast together.

    Returns:
        Four uint64 arrays of 32-bit words.
    """
    k0, k1 = (_words(k) for k in key)
    c0, c1, c2, c3 = np.broadcast_arrays(*(_words(c) for c in counter))
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    w0, w1 = (np.uint64(w) for w in WEYL)
    for _ in range(ROUNDS):
        product0, product1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + w0) & _MASK, (k1 + w1) & _MASK
    return c0, c1, c2, c3


def layer_key(seed: int, layer: int) -> tuple[int, int]:
    """The two key words of one layer.

    Args:
        seed: Unsigned 64-bit seed.
        layer: Unsigned 32-bit layer number.

    Returns:
        (k0, k1), 32-bit words.
    """
    return _key_words(check_seed(seed), check_layer(layer), 0, LAYER_TAG)


def dropout_key(seed: int, layer: int, call: int = 0) -> tuple[int, int]:
    """The two key words of one call of a dropout layer (SPEC.md, Dropout).

    Args:
        seed: Unsigned 64-bit seed.
        layer: Unsigned 32-bit number of the dropout layer.
        call: How often the layer was called before in the same forward.

    Returns:
        (k0, k1), 32-bit words.
    """
    return _key_words(check_seed(seed), check_layer(layer), call, DROPOUT_TAG)


@functools.lru_cache(maxsize=4096)
def _key_words(seed: int, layer: int, call: int, tag: int) -> tuple[int, int]:
    """Kept, because every prediction asks again."""
    words = philox4x32((seed & 0xFFFFFFFF, seed >> 32), (layer, call, 0, tag))
    return int(words[0]), int(words[1])


def dropout_masks(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    units: int,
    digits: KeepDigits,
) -> NDArray[np.bool_]:
    """Dropout masks: unit e has the bit of weight (n, k) = (e div 4, e mod 4); True keeps it.

    Args:
        key: Key of the call.
        samples: Sample id of each row, ``[G]``.
        passes: Pass id of each row, ``[G]``.
        units: Units of each row: elements, or channels.
        digits: Binary digits of the keep probability.

    Returns:
        Boolean masks ``[G, units]``.
    """
    quads = -(-units // WORDS_PER_CALL)
    found = masks(key, samples, passes, quads, WORDS_PER_CALL, digits)
    return found.reshape(found.shape[0], quads * WORDS_PER_CALL)[:, :units]


def mask_words(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    n_words: int,
    K: int,
    digits: KeepDigits,
) -> Words:
    """Mask words; bit n % 32 of entry [g, k, n // 32] belongs to weight (n, k).

    Args:
        key: Layer key.
        samples: Sample id of each group, ``[G]``.
        passes: Pass id of each group, ``[G]``.
        n_words: Words along n, ceil(N / 32).
        K: Number of inputs.
        digits: Binary digits of the keep probability; ``bits`` ≥ 1.

    Returns:
        32-bit words, ``[G, K, n_words]``.
    """
    calls = -(-K // WORDS_PER_CALL)
    sample = np.asarray(samples).reshape(-1, 1, 1)
    step = np.asarray(passes).reshape(-1, 1, 1)
    k4 = np.arange(calls).reshape(1, -1, 1)
    n32 = np.arange(n_words).reshape(1, 1, -1)
    result = np.zeros((sample.shape[0], calls, WORDS_PER_CALL, n_words), np.uint64)
    for digit in reversed(range(digits.bits)):
        word = np.stack(philox4x32(key, (k4, n32 | digit << DIGIT_SHIFT, sample, step)), axis=2)
        result = result | word if digits.digits[digit] else result & word
    return result.reshape(sample.shape[0], calls * WORDS_PER_CALL, n_words)[:, :K]


def masks(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    N: int,
    K: int,
    digits: KeepDigits,
) -> NDArray[np.bool_]:
    """Masks with one entry per weight; True keeps it.

    Args:
        key: Layer key.
        samples: Sample id of each group, ``[G]``.
        passes: Pass id of each group, ``[G]``.
        N: Number of outputs.
        K: Number of inputs.
        digits: Binary digits of the keep probability.

    Returns:
        Boolean masks ``[G, N, K]``.
    """
    groups = len(np.asarray(samples))
    if digits.bits == 0:
        return np.ones((groups, N, K), np.bool_)
    words = mask_words(key, samples, passes, -(-N // WORD_BITS), K, digits)
    bits = (words[..., None] >> np.arange(WORD_BITS, dtype=np.uint64)) & np.uint64(1)
    columns = bits.reshape(groups, K, words.shape[2] * WORD_BITS)
    return columns[:, :, :N].transpose(0, 2, 1).astype(np.bool_)


def normals(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    rows: int,
    N: int,
) -> NDArray[np.float64]:
    """Standard normals, one per output (SPEC.md, Normals).

    Args:
        key: Layer key.
        samples: Sample id of each group, ``[G]``.
        passes: Pass id of each group, ``[G]``.
        rows: Rows of each group.
        N: Number of outputs.

    Returns:
        Float64 normals ``[G, rows, N]``, made from exact words.
    """
    sample = np.asarray(samples).reshape(-1, 1, 1)
    step = np.asarray(passes).reshape(-1, 1, 1)
    row = np.arange(rows).reshape(1, -1, 1)
    n4 = np.arange(-(-N // 4)).reshape(1, 1, -1)
    a, b, c, d = philox4x32(key, (row, n4 | NORMAL_TAG << DIGIT_SHIFT, sample, step))
    pairs = []
    for radius_word, angle_word in ((a, b), (c, d)):
        uniform = ((radius_word.astype(np.float64) + 0.5) * 2.0**-32).astype(np.float32)
        uniform = np.minimum(uniform, np.float32(1 - 2.0**-24)).astype(np.float64)
        radius = np.sqrt(-2.0 * np.log(uniform))
        angle = angle_word.astype(np.float64) * (2.0 * np.pi * 2.0**-32)
        pairs += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.stack(pairs, axis=-1).reshape(sample.shape[0], rows, 4 * n4.size)[:, :, :N]
