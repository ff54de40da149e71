"""Numbers and names as people read them."""

import math

import pytest

from bayes_dc.report.text import number, share, short


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.0, "0.000"),
        (0.031416, "0.03142"),
        (0.97214, "0.9721"),
        (0.000312, "0.0003120"),
        (1.0, "1.000"),
        (12.3456, "12.35"),
        (-12.3456, "−12.35"),
        (123456.7, "123457"),
        (2.5e6, "2.500e+06"),
        (0.0000312, "3.120e−05"),
        (math.inf, "∞"),
        ("inf", "∞"),
        (-math.inf, "−∞"),
        ("-inf", "−∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_number(value, want):
    assert number(value) == want


def test_share():
    assert share(0.97214) == "97.21\u00a0%"
    assert share(-0.1) == "−10.00\u00a0%"
    assert share(0.1, 0) == "10\u00a0%"
    assert share(None) == share(math.nan) == "–"


def test_short_keeps_both_ends_and_nothing_unprintable():
    assert short("cat") == "cat"
    assert short("x" * 24) == "x" * 24
    assert short("folder/of/many/pictures/0001.png", 12) == "folder…1.png"
    assert len(short("y" * 100, 24)) == 24
    assert short("a\nb\x00c") == "a?b?c"
