"""Standard normals: their formula, their ends and their law."""

import math

import numpy as np
import pytest
from scipy import stats

from bayes_dc.rng import layer_key, normals, philox4x32, reference

IDS = np.arange(50)


def test_every_normal_by_its_formula():
    """Box–Muller of SPEC.md on the words of each (row, n // 4), one by one."""
    key = layer_key(4, 1)
    got = normals(key, np.array([6, 2**32 - 1]), np.array([3, 9]), 3, 10)
    assert got.shape == (2, 3, 10)
    for g, (sample, step) in enumerate([(6, 3), (2**32 - 1, 9)]):
        for row in range(3):
            for n in range(10):
                words = philox4x32(key, (row, n // 4 | 0xFF << 24, sample, step))
                a, b = (int(w) for w in words[n % 4 // 2 * 2 :][:2])
                u = float(np.float32((a + 0.5) * 2.0**-32))
                theta = 2 * math.pi * b * 2.0**-32
                turn = math.sin if n % 2 else math.cos
                want = math.sqrt(-2 * math.log(u)) * turn(theta)
                # Sine and cosine of angles up to 2π: a few roundings of float64.
                assert got[g, row, n] == pytest.approx(want, rel=0, abs=2.0**-47)


@pytest.mark.parametrize("word", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFF7F, 0xFFFFFFFE, 0xFFFFFFFF])
def test_the_uniform_number_is_strictly_between_0_and_1(word, monkeypatch):
    """u from the radius: z₀² + z₁² = −2 ln u."""
    words = tuple(np.full((1, 1, 1), w, np.uint64) for w in (word, 0x20000000, word, 0xFFFFFFFF))
    monkeypatch.setattr(reference, "philox4x32", lambda key, counter: words)
    z = normals((0, 0), np.array([0]), np.array([0]), 1, 4)[0, 0]
    assert np.isfinite(z).all()
    for pair in (z[:2], z[2:]):
        squared_radius = (pair**2).sum()
        assert -2 * math.log(1 - 2.0**-24) * (1 - 2.0**-45) <= squared_radius
        assert squared_radius <= -2 * math.log(2.0**-33) * (1 + 2.0**-45)


def test_moments_and_law():
    """10⁶ normals: four moments within 5 standard errors, and Kolmogorov–Smirnov."""
    z = normals(layer_key(8, 0), IDS, IDS * 0, 20, 1000).ravel()
    count = z.size
    assert count == 10**6
    # Var(zᵏ) = E z²ᵏ − (E zᵏ)²
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < 5 * math.sqrt(variance / count)
    assert stats.kstest(z, "norm").pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["sample", "row", "n"])
@pytest.mark.parametrize("shift", range(1, 9))
def test_neighbours_are_uncorrelated(axis, shift):
    """Products, and products of squares, which Box–Muller pairs share a radius in."""
    z = normals(layer_key(8, 1), IDS, IDS * 0, 20, 200)
    a, b = np.delete(z, np.s_[-shift:], axis), np.delete(z, np.s_[:shift], axis)
    assert abs((a * b).mean()) < 5 / math.sqrt(a.size)
    # Var((a² − 1)(b² − 1)) = 4
    assert abs(((a**2 - 1) * (b**2 - 1)).mean()) < 5 * 2 / math.sqrt(a.size)


def test_normals_do_not_touch_the_mask_words():
    """Their own tag in the counter: layers that draw both use no word twice."""
    key = layer_key(0, 0)
    tagged = philox4x32(key, (0, 0xFF << 24, 0, 0))
    for digit in range(16):
        assert philox4x32(key, (0, digit << 24, 0, 0)) != tagged
