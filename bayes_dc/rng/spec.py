"""Constants of the mask specification, version 1, and the digits of a drop probability."""

import math
import operator
from typing import Literal, NamedTuple

SPEC_VERSION: Literal[1] = 1
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LAYER_TAG = 0xDC
DROPOUT_TAG = 0xD0
NORMAL_TAG = 0xFF
DIGIT_SHIFT = 24
MAX_BITS = 16
WORD_BITS = 32
WORDS_PER_CALL = 4
MAX_OUTPUTS = 2**29
MAX_NORMAL_OUTPUTS = 2**26
MAX_UNITS = 2**31
FUNCTIONAL_DROPOUT = 2**32 - 1
"""Number of the dropout layer that calls of functions count for."""

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

UNIFORM_STEP = 2.0**-32
LARGEST_UNIFORM = 1 - 2.0**-24
ANGLE_STEP = 2 * math.pi * 2.0**-32
# How the compiled normals evaluate Box–Muller in float32, to a few units of its last place; first
# the highest power.
THIRDS = 0x3F2AAAAB
"""Bits of the float32 2/3: mantissas are brought into 2/3 … 4/3."""
LN2 = math.log(2)
LOG1P = (
    *(-0.130310059, 0.140869141, -0.121483095, 0.139814854, -0.166846067),
    *(0.200120345, -0.249996200, 0.333331972, -0.5),
)
"""ln(1 + f) = f + f² Σ c fⁱ for −1/3 ≤ f < 1/3."""
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
"""sin t = t + t³ Σ c t²ⁱ for |t| ≤ π/4."""
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
"""cos t = 1 − t²/2 + t⁴ Σ c t²ⁱ for |t| ≤ π/4."""

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
