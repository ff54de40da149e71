"""Standard normals on the CPU (SPEC.md v1), a run of outputs of one row at a time.

The steps are those of ``device.py``, in float32 and without a branch, so that LLVM makes vectors of
each of the short loops.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayes_dc.rng.numba_jit import compiled, inlined
from bayes_dc.rng.spec import (
    ANGLE_STEP,
    COSINE,
    DIGIT_SHIFT,
    LARGEST_UNIFORM,
    LN2,
    LOG1P,
    MULTIPLIERS,
    NORMAL_TAG,
    ROUNDS,
    SINE,
    THIRDS,
    UNIFORM_STEP,
    WEYL,
)

QUADS = 64
"""Most quads of outputs of one call."""

_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_W0, _W1 = np.uint64(WEYL[0]), np.uint64(WEYL[1])
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_TAG = np.uint64(NORMAL_TAG << DIGIT_SHIFT)
_F = np.float32
_STEP, _TURN, _TOP, _ONE = _F(UNIFORM_STEP), _F(ANGLE_STEP), _F(LARGEST_UNIFORM), _F(1)
_LN2, _EXPONENT, _TWO, _HALF_ONE = _F(LN2), _F(2.0**-23), _F(-2), _F(0.5)
_L8, _L7, _L6, _L5, _L4, _L3, _L2, _L1, _L0 = (_F(c) for c in LOG1P)
_S2, _S1, _S0 = (_F(c) for c in SINE)
_C2, _C1, _C0 = (_F(c) for c in COSINE)
_THIRDS, _EXPONENT_BITS = np.int32(THIRDS), np.int32(-(1 << 23))
_EIGHTH, _QUARTERS = np.uint32(1 << 29), np.uint32(3 << 30)
_QUARTER, _TURN_SIGN, _SIGN = np.uint32(1 << 30), np.uint32(1 << 31), np.uint32(31)


@inlined
def _words(words: Any, key: Any, row: int, n4: int, sample: int, step: int, quads: int) -> None:
    """The four words of each quad, in uint64: words [4, QUADS]."""
    k0, k1 = np.uint64(key[0]) & _LOW, np.uint64(key[1]) & _LOW
    first = np.uint64(row) & _LOW
    third, fourth = np.uint64(sample) & _LOW, np.uint64(step) & _LOW
    for j in range(quads):
        words[0, j] = first
        words[1, j] = np.uint64(n4 + j) | _TAG
        words[2, j] = third
        words[3, j] = fourth
    for _ in range(ROUNDS):
        for j in range(quads):
            p0 = _M0 * words[0, j]
            p1 = _M1 * words[2, j]
            words[0, j] = (p1 >> _HALF) ^ words[1, j] ^ k0
            words[2, j] = (p0 >> _HALF) ^ words[3, j] ^ k1
            words[1, j] = p1 & _LOW
            words[3, j] = p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW


@inlined
def _box_muller(a: Any, b: Any, first: Any, second: Any, quads: int) -> None:
    """Two normals from two words, for every quad."""
    for j in range(quads):
        word = np.uint32(a[j])
        # The odd bit keeps a + 1/2 from rounding to even near 1, where it would show.
        u = min((np.float32(np.uint32(word | (word >> _SIGN))) + _HALF_ONE) * _STEP, _TOP)
        # ln u = e ln 2 + ln(1 + f) with −1/3 ≤ f < 1/3
        bits = np.float32(u).view(np.int32)
        e = (bits - _THIRDS) & _EXPONENT_BITS
        f = np.int32(bits - e).view(np.float32) - _ONE
        q = ((((((((_L8 * f + _L7) * f + _L6) * f + _L5) * f + _L4) * f + _L3) * f + _L2) * f + _L1)
             * f + _L0)  # fmt: skip
        log = np.float32(e) * _EXPONENT * _LN2 + (q * f * f + f)
        radius = np.sqrt(_TWO * log)
        # θ = t + q π/2 with |t| ≤ π/4
        turn = np.uint32(b[j])
        quarter = (turn + _EIGHTH) & _QUARTERS
        t = np.float32(np.uint32(turn - quarter).view(np.int32)) * _TURN
        v = t * t
        sine = ((_S2 * v + _S1) * v + _S0) * v * t + t
        cosine = ((_C2 * v + _C1) * v + _C0) * v * v - _HALF_ONE * v + _ONE
        swapped = (quarter & _QUARTER) != 0
        bits_of_radius = np.float32(radius).view(np.uint32)
        plus = np.uint32(bits_of_radius ^ ((quarter + _QUARTER) & _TURN_SIGN)).view(np.float32)
        minus = np.uint32(bits_of_radius ^ (quarter & _TURN_SIGN)).view(np.float32)
        first[j] = plus * (sine if swapped else cosine)
        second[j] = minus * (cosine if swapped else sine)


@inlined
def fill_normals(
    z: Any, parts: Any, words: Any, key: Any, row: int, n4: int, sample: int, step: int, quads: int
) -> None:
    """Normals of the outputs 4 · n4 … 4 · (n4 + quads) − 1 of one row.

    Args:
        z: float32 ``[4 · QUADS]``, the first 4 · quads are written.
        parts: float32 ``[4, QUADS]``, overwritten.
        words: uint64 ``[4, QUADS]``, overwritten.
        key: int64 ``[2]``, the layer key.
        row: Row within its group.
        n4: Number of the first quad.
        sample: Sample id, taken modulo 2**32.
        step: Pass id, taken modulo 2**32.
        quads: Quads to make, at most ``QUADS``.
    """
    _words(words, key, row, n4, sample, step, quads)
    _box_muller(words[0], words[1], parts[0], parts[1], quads)
    _box_muller(words[2], words[3], parts[2], parts[3], quads)
    for j in range(quads):
        z[4 * j] = parts[0, j]
        z[4 * j + 1] = parts[1, j]
        z[4 * j + 2] = parts[2, j]
        z[4 * j + 3] = parts[3, j]


@compiled
def _fill_rows(out: Any, key: Any, samples: Any, passes: Any) -> None:
    """Fill [G, rows, N] for the groups."""
    z = np.empty(4 * QUADS, np.float32)
    parts = np.empty((4, QUADS), np.float32)
    words = np.empty((4, QUADS), np.uint64)
    groups, rows, N = out.shape
    for g in range(groups):
        for row in range(rows):
            for first in range(0, N, 4 * QUADS):
                count = min(4 * QUADS, N - first)
                fill_normals(
                    z, parts, words, key, row, first // 4, samples[g], passes[g], (count + 3) // 4
                )
                out[g, row, first : first + count] = z[:count]


def normals(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    rows: int,
    N: int,
) -> NDArray[np.float32]:
    """Standard normals as the CPU kernels make them; see ``bayes_dc.rng.normals``.

    Args:
        key: Layer key.
        samples: Sample id of each group, ``[G]``.
        passes: Pass id of each group, ``[G]``.
        rows: Rows of each group.
        N: Number of outputs.

    Returns:
        Float32 normals ``[G, rows, N]``.
    """
    out = np.empty((len(samples), rows, N), np.float32)
    _fill_rows(out, np.array(key, np.int64), np.asarray(samples), np.asarray(passes))
    return out
