"""Digits of a drop probability, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bayes_dc.rng import KeepDigits, check_layer, check_p, check_seed, keep_digits

LOW, HIGH = 2.0**-16, 1 - 2.0**-16


@pytest.mark.parametrize(
    ("p", "keep", "bits", "digits"),
    [
        (0.0, 1, 0, ""),
        (0.5, 1, 1, "1"),
        (0.25, 3, 2, "11"),
        (0.75, 1, 2, "01"),
        (0.1, 512 - 51, 9, "111001101"),
        (0.3, 256 - 77, 8, "10110011"),
    ],
)
def test_examples_of_the_specification(p, keep, bits, digits):
    got = keep_digits(p)
    assert got == KeepDigits(keep, bits)
    assert got.digits == tuple(int(q) for q in digits)


@settings(max_examples=1000, deadline=None)
@given(p=st.floats(LOW, HIGH))
@example(p=LOW)
@example(p=HIGH)
@example(p=1.5 * LOW)  # halfway between 1 and 2: the even one
@example(p=2.5 * LOW)
@example(p=0.01)
@example(p=0.99)
def test_digits_are_the_fewest_that_come_within_one_percent(p):
    """The rule of SPEC.md in exact fractions."""
    got = keep_digits(p)
    exact = Fraction(p)
    tolerance = Fraction(0.01 * min(p, 1.0 - p))

    def dropped(bits):
        return round(exact * 2**bits)  # to the even one of two equally near

    def fits(bits):
        a = dropped(bits)
        return 0 < a < 2**bits and abs(Fraction(a, 2**bits) - exact) <= tolerance

    fitting = [bits for bits in range(1, 17) if fits(bits)]
    assert got.bits == (fitting[0] if fitting else 16)
    assert got.keep == 2**got.bits - dropped(got.bits)
    assert 0 < got.keep < 2**got.bits
    assert Fraction(got.p_effective) == 1 - Fraction(got.keep, 2**got.bits)
    assert Fraction(got.keep_probability) == Fraction(got.keep, 2**got.bits)
    value = sum(Fraction(q, 2**i) for i, q in enumerate(got.digits, start=1))
    assert value == Fraction(got.keep, 2**got.bits)


def test_a_p_too_near_to_the_ends_is_refused_with_the_reachable_range():
    with pytest.raises(ValueError, match="too close to 0") as error:
        keep_digits(0.5 * LOW)  # halfway between 0 and 1: 0 is the even one
    text = str(error.value)
    assert text.startswith("p = 7.62939453125e-06 is too close to 0 for a mask of 16 digits; ")
    assert text.endswith("use p = 0 or a p in [1.5e-05, 0.999985].")
    with pytest.raises(ValueError, match=r"too close to 1 .* use p = 0\.999985 or a p in"):
        keep_digits(1 - 0.25 * LOW)
    # What the message offers is accepted.
    for offered in (1.5e-05, 0.999985):
        assert 0 < keep_digits(offered).p_effective < 1


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), float("inf"), -1e-300])
def test_a_p_outside_its_range_is_refused(p):
    with pytest.raises(ValueError, match=r"p must be a drop probability in \[0, 1\); got") as error:
        keep_digits(p)
    assert str(p) in str(error.value)
    assert "p is the share of weights dropped (torch's convention)" in str(error.value)


@pytest.mark.parametrize(
    "p",
    ["0.5", b"0.5", True, None, 0.5j, [0.5], np.array([0.1, 0.2]), torch.tensor([0.1, 0.2])],
    ids=repr,
)
def test_a_p_that_is_no_number_is_refused(p):
    with pytest.raises(TypeError, match=r"p must be a real number in \[0, 1\)") as error:
        keep_digits(p)
    assert f"got {p!r} ({type(p).__name__})." in str(error.value)


@pytest.mark.parametrize(
    "p", [0, 0.25, np.float32(0.25), np.float64(0.25), torch.tensor(0.25), Fraction(1, 4)]
)
def test_every_real_number_is_a_p(p):
    got = check_p(p)
    assert type(got) is float
    assert got == float(p)


@pytest.mark.parametrize("value", [0, 5, 2**32 - 1, np.int64(5), np.uint8(5), torch.tensor(5)])
@pytest.mark.parametrize("check", [check_seed, check_layer])
def test_seeds_and_layers_are_integers_of_any_kind(check, value):
    got = check(value)
    assert type(got) is int
    assert got == int(value)


BAD = [-1, 2**64, 5.0, "5", True, None, np.array([1, 2]), torch.tensor(2.5), torch.tensor([1, 2])]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_bad_seeds_are_refused(value):
    with pytest.raises(
        ValueError, match=r"seed must be an integer in 0 … 2\*\*64 − 1; got"
    ) as error:
        check_seed(value)
    assert str(error.value).endswith(f"got {value!r}.")


@pytest.mark.parametrize("value", [*BAD, 2**32], ids=repr)
def test_bad_layers_are_refused(value):
    message = r"layer must be an integer in 0 … 2\*\*32 − 1; got"
    with pytest.raises(ValueError, match=message) as error:
        check_layer(value)
    assert str(error.value).endswith(f"got {value!r}.")


def test_the_largest_seed_is_valid():
    assert check_seed(2**64 - 1) == 2**64 - 1
