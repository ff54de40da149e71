"""Normals of the CPU kernels against the reference."""

import numpy as np
import pytest

from bayes_dc.rng import layer_key, normals, numba_normals

KEY = layer_key(3, 2)


def bound(want):
    """Three roundings of float32 of each pair's radius; ``want`` [G, rows, even N]."""
    return 3 * 2.0**-24 * np.hypot(want[..., ::2], want[..., 1::2]).repeat(2, axis=-1)


@pytest.mark.parametrize("N", [1, 3, 256, 1001])
def test_normals_are_those_of_the_reference(N):
    """Within a quad and beyond one block, ids at the ends and past 2³², rows of a group."""
    ids = np.array([0, 77, 2**32 - 1, 2**40 + 5])
    got = numba_normals.normals(KEY, ids, ids[::-1].copy(), 3, N)
    want = normals(KEY, ids, ids[::-1].copy(), 3, N + N % 2)
    assert got.dtype == np.float32
    assert (abs(got - want[..., :N]) <= bound(want)[..., :N]).all()


def test_a_million_normals_near_the_reference():
    """Every branch of the logarithm and of the turn: no normal is off by more than its bound."""
    ids = np.arange(1000)
    got = numba_normals.normals(KEY, ids, ids * 0, 1, 1000)
    want = normals(KEY, ids, ids * 0, 1, 1000)
    assert (abs(got - want) <= bound(want)).all()
