"""Constants of the mask specification, version 1, and the digits of a drop probability."""

import math
import operator
from typing import Literal, NamedTuple

SPEC_VERSION: Literal[1] = 1
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LAYER_TAG = 0xDC
NORMAL_TAG = 0xFF
DIGIT_SHIFT = 24
MAX_BITS = 16
WORD_BITS = 32
WORDS_PER_CALL = 4
MAX_OUTPUTS = 2**29

KNOWN_ANSWERS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Philox4x32-10: (key, counter, output), from the Random123 test vectors (D. E. Shaw Research)."""

_P_TYPE = "p must be a real number in [0, 1), the share of weights dropped; got {got!r} ({kind})."
_P_RANGE = (
    "p must be a drop probability in [0, 1); got {got}. "
    "p is the share of weights dropped (torch's convention), not the share kept."
)
_P_UNREACHABLE = (
    "p = {got} is too close to {end} for a mask of {bits} digits; "
    "use p = {end_hint} or a p in [{low:.2g}, {high:.6g}]."
)
_SEED = "seed must be an integer in 0 … 2**64 − 1; got {got!r}."
_LAYER = "layer must be an integer in 0 … 2**32 − 1; got {got!r}."


class KeepDigits(NamedTuple):
    """A keep probability as a binary fraction, ``keep / 2**bits``.

    Attributes:
        keep: Numerator, 0 < keep ≤ 2**bits.
        bits: Number of binary digits, 0 … 16; 0 means that nothing is dropped.
    """

    keep: int
    bits: int

    @property
    def p_effective(self) -> float:
        """The realised drop probability, exact in float64."""
        return 1.0 - self.keep / (1 << self.bits)

    @property
    def keep_probability(self) -> float:
        """The realised keep probability, exact in float64."""
        return self.keep / (1 << self.bits)

    @property
    def digits(self) -> tuple[int, ...]:
        """q₁ … q_B, most significant first."""
        return tuple((self.keep >> (self.bits - i)) & 1 for i in range(1, self.bits + 1))


def check_p(p: object) -> float:
    """Return ``p`` as a float if it is a drop probability.

    Args:
        p: Candidate value.

    Returns:
        The same value as a Python float, in [0, 1).

    Raises:
        TypeError: If ``p`` is not a real number (a bool or a string is not).
        ValueError: If ``p`` is NaN, negative or at least 1.
    """
    if isinstance(p, bool) or not hasattr(p, "__float__"):
        raise TypeError(_P_TYPE.format(got=p, kind=type(p).__name__))
    try:
        value = float(p)
    except (TypeError, ValueError) as error:  # an array or a tensor of several elements
        raise TypeError(_P_TYPE.format(got=p, kind=type(p).__name__)) from error
    if not 0.0 <= value < 1.0:
        raise ValueError(_P_RANGE.format(got=value))
    return value


def keep_digits(p: float) -> KeepDigits:
    """Binary digits of the keep probability nearest to 1 − p (SPEC.md, Drop probability).

    Args:
        p: Drop probability in [0, 1).

    Returns:
        ``KeepDigits``; its ``p_effective`` differs from ``p`` by at most 1 % of min(p, 1 − p)
        wherever 16 digits can do that.

    Raises:
        ValueError: If a p > 0 would round to 0 or 1 at 16 digits.
    """
    value = check_p(p)
    if value == 0.0:
        return KeepDigits(keep=1, bits=0)
    tolerance = 0.01 * min(value, 1.0 - value)
    for bits in range(1, MAX_BITS + 1):
        dropped = round(math.ldexp(value, bits))
        reachable = 0 < dropped < 1 << bits
        if reachable and abs(math.ldexp(dropped, -bits) - value) <= tolerance:
            return KeepDigits((1 << bits) - dropped, bits)
    if not reachable:
        low, high = math.ldexp(1, -MAX_BITS), 1 - math.ldexp(1, -MAX_BITS)
        end, hint = ("0", "0") if value < 0.5 else ("1", f"{high:.6g}")
        raise ValueError(
            _P_UNREACHABLE.format(
                got=value, end=end, end_hint=hint, bits=MAX_BITS, low=low, high=high
            )
        )
    return KeepDigits((1 << MAX_BITS) - dropped, MAX_BITS)


def check_seed(seed: object) -> int:
    """Return ``seed`` if it is an unsigned 64-bit integer.

    Args:
        seed: Candidate value.

    Returns:
        The seed as a Python int.

    Raises:
        ValueError: If it is not an integer in 0 … 2**64 − 1.
    """
    return _unsigned(seed, 64, _SEED)


def check_layer(layer: object) -> int:
    """Return ``layer`` if it is an unsigned 32-bit integer.

    Args:
        layer: Candidate value.

    Returns:
        The layer number as a Python int.

    Raises:
        ValueError: If it is not an integer in 0 … 2**32 − 1.
    """
    return _unsigned(layer, 32, _LAYER)


def _unsigned(value: object, bits: int, message: str) -> int:
    """An integer of any kind (Python's, NumPy's, a tensor's) in 0 … 2**bits − 1."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 1 << bits:
        raise ValueError(message.format(got=value))
    return number
