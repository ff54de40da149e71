"""Dropout bits on the CPU, 128 units of a row from each call of the generator."""

from typing import Any

import numpy as np

from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.spec import DIGIT_SHIFT, MULTIPLIERS, ROUNDS, WEYL

CALLS = 64
"""Calls made together: loops of this length become vectors."""

UNITS = 128 * CALLS
"""Units of one block, which is one row's."""

_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(WEYL[0]), np.uint64(WEYL[1])
_LOW, _HALF, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(DIGIT_SHIFT)
_ONE = np.uint32(1)


@inlined
def _words(words: Any, key: Any, n32: int, digit: int, sample: int, step: int) -> None:
    """The four words of CALLS calls from n32 on, in uint64: words [4, CALLS]."""
    k0, k1 = np.uint64(key[0]) & _LOW, np.uint64(key[1]) & _LOW
    third, fourth = np.uint64(sample) & _LOW, np.uint64(step) & _LOW
    tag = np.uint64(digit) << _SHIFT
    for j in range(CALLS):
        words[0, j] = np.uint64(0)
        words[1, j] = np.uint64(n32 + j) | tag
        words[2, j] = third
        words[3, j] = fourth
    for _ in range(ROUNDS):
        for j in range(CALLS):
            p0 = _M0 * words[0, j]
            p1 = _M1 * words[2, j]
            words[0, j] = (p1 >> _HALF) ^ words[1, j] ^ k0
            words[2, j] = (p0 >> _HALF) ^ words[3, j] ^ k1
            words[1, j] = p1 & _LOW
            words[3, j] = p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW


@compiled
def fill_dropped(
    out: Any,
    start: int,
    stop: int,
    first_row: int,
    key: Any,
    samples: Any,
    passes: Any,
    keep: int,
    bits: int,
) -> None:
    """Blocks start … stop − 1 of out [rows, units], rows first_row …; 1 drops a unit."""
    units = out.shape[1]
    blocks = (units + UNITS - 1) // UNITS
    words = np.empty((4, CALLS), np.uint64)
    held = np.empty((4, CALLS), np.uint32)
    bytes_of = np.empty(UNITS, np.uint8)
    for block in range(start, stop):
        row = block // blocks
        unit = block % blocks * UNITS
        number = first_row + row
        sample, step = samples[number % samples.size], passes[number // samples.size]
        held[:] = 0
        for i in range(bits):  # Horner's rule, from the last digit on
            _words(words, key, unit // 128, bits - 1 - i, sample, step)
            if (keep >> i) & 1:
                for w in range(4):
                    for j in range(CALLS):
                        held[w, j] |= np.uint32(words[w, j])
            else:
                for w in range(4):
                    for j in range(CALLS):
                        held[w, j] &= np.uint32(words[w, j])
        count = min(UNITS, units - unit)
        for j in range((count + 127) // 128):
            a, b, c, d = ~held[0, j], ~held[1, j], ~held[2, j], ~held[3, j]
            for n in range(32):
                at, bit = 128 * j + 4 * n, np.uint32(n)
                bytes_of[at] = (a >> bit) & _ONE
                bytes_of[at + 1] = (b >> bit) & _ONE
                bytes_of[at + 2] = (c >> bit) & _ONE
                bytes_of[at + 3] = (d >> bit) & _ONE
        out[row, unit : unit + count] = bytes_of[:count]
