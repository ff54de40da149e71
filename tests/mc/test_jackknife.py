"""The jackknife of passes at hand equals the one that streams, and its textbook form."""

import math

import numpy as np
import pytest
import torch

from bayes_dc.mc.jackknife import standard_errors, without_groups
from bayes_dc.mc.statistics import PassStatistics, entropy


def dirichlet(alpha, T, B, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(alpha, size=(T, B)))


@pytest.mark.parametrize("T", [2, 7, 20, 33, 60])
def test_equal_to_the_streaming_one(T):
    samples = dirichlet([0.5] * 4, T, 6)
    statistics = PassStatistics(T, 6, 4, torch.device("cpu"))
    statistics.update(samples)
    want = statistics.summary()
    mean, expected = without_groups(samples)
    total = entropy(mean)
    bound = {"rtol": 0, "atol": 2 * T * T * 4 * 2.0**-52}  # pseudo-values multiply roundings by 2 T
    got = standard_errors(want.entropy, total, T)
    torch.testing.assert_close(got, want.entropy_se, **bound)
    got = standard_errors(want.entropy - want.expected_entropy, total - expected, T)
    torch.testing.assert_close(got, want.mutual_information_se, **bound)


@pytest.mark.parametrize("T", [2, 9, 20])
def test_one_pass_in_a_group_is_the_ordinary_jackknife(T):
    """Means without pass t, and the standard error of a mean as it is known: s / √T."""
    samples = dirichlet([1.0] * 3, T, 5)
    mean, _ = without_groups(samples)
    for t in range(T):
        rest = torch.cat([samples[:t], samples[t + 1 :]]).mean(dim=0)
        torch.testing.assert_close(mean[t], rest, rtol=0, atol=2 * T * 2.0**-53)
    got = standard_errors(samples.mean(dim=0), mean, T)
    want = samples.std(dim=0) / math.sqrt(T)
    torch.testing.assert_close(got, want, rtol=0, atol=2 * T * T * 2.0**-52)


def test_infinite_statistics_have_no_standard_error():
    whole = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    without = whole.expand(4, 2)
    got = standard_errors(whole, without, 4)
    assert got[0] == 0
    assert got[1].isnan()
