"""R_cc, R_iu and UA: the source's example, ties, conventions, and every case counted by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_dc.metrics import (
    bootstrap_interval,
    bootstrap_metric,
    certainty_area,
    certainty_curves,
)


def test_the_example_of_the_source():
    """Mobiny et al. 2021, overview figure: 10 cc, 3 ic, 6 cu and 6 iu at T = 0.45."""
    u = torch.tensor([0.2] * 13 + [0.7] * 12, dtype=torch.float64) * math.log(10)
    correct = torch.tensor([True] * 10 + [False] * 3 + [True] * 6 + [False] * 6)
    curves = certainty_curves(u, correct, classes=10, thresholds=[0.0, 0.45, 1.0])
    assert curves.counts[1].tolist() == [10, 3, 6, 6]
    assert curves.r_cc[1] == 10 / 13
    assert curves.r_iu[1] == 6 / 9
    assert curves.ua[1] == 16 / 25
    assert curves.limit[1] == 0.45 * math.log(10)


lists = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(lists, st.sampled_from(["log_classes", "test_set"]))
def test_every_case_counted(inputs, normalisation):
    """Eighths of log C, so that limits and uncertainties tie."""
    u = torch.tensor([k / 8 * math.log(3) for k, _ in inputs], dtype=torch.float64)
    correct = torch.tensor([right for _, right in inputs])
    steps = [k / 8 for k in range(9)]
    curves = certainty_curves(u, correct, classes=3, normalisation=normalisation, thresholds=steps)
    low, high = u.min(), u.max()
    for k, t in enumerate(steps):
        limit = t * math.log(3) if normalisation == "log_classes" else torch.lerp(low, high, t)
        certain = u < limit
        cc, ic = int((certain & correct).sum()), int((certain & ~correct).sum())
        cu, iu = int((~certain & correct).sum()), int((~certain & ~correct).sum())
        assert curves.counts[k].tolist() == [cc, ic, cu, iu]
        assert curves.r_cc[k] == (cc / (cc + ic) if cc + ic else 1)
        assert curves.r_iu[k] == (iu / (iu + ic) if iu + ic else 1)
        assert curves.ua[k] == (cc + iu) / len(inputs)
    assert all(0 <= area <= 1 for area in curves.areas().values())


def test_a_tie_is_uncertain():
    u, correct = torch.tensor([0.5]).double() * math.log(2), torch.tensor([True])
    curves = certainty_curves(u, correct, classes=2, thresholds=[0.0, 0.5, 0.75])
    assert curves.counts.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0]]


def test_areas_are_means_of_trapezoids():
    """Of a step at T = 1/2 in a sweep from 1/4 to 1."""
    u, correct = torch.tensor([0.4]).double() * math.log(2), torch.tensor([True])
    curves = certainty_curves(u, correct, classes=2, thresholds=[0.25, 0.5, 0.75, 1.0])
    assert curves.ua.tolist() == [0, 1, 1, 1]
    assert curves.areas() == {"r_cc": 1, "r_iu": 1, "ua": pytest.approx(2.5 / 3)}


@pytest.mark.parametrize("normalisation", ["log_classes", "test_set"])
@pytest.mark.parametrize("of", ["r_cc", "r_iu", "ua"])
def test_an_interval_is_that_of_the_area_of_every_resample(of, normalisation):
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(9, (25,), generator=generator).double() / 8
    right = torch.rand(25, generator=generator) < 0.7
    options = {"classes": 3, "normalisation": normalisation}

    def areas(index):
        return torch.stack([certainty_area(u[i], right[i], of=of, **options) for i in index])

    want = bootstrap_interval(areas, 25, resamples=40, seed=3)
    got = bootstrap_metric(certainty_area, u, right, resamples=40, seed=3, of=of, **options)
    assert got == want
    curves = certainty_curves(u, right, **options)
    assert certainty_area(u, right, of=of, **options).item() == curves.areas()[of]


def test_perfect_and_useless_uncertainty():
    """Wrong predictions at log C and right ones at 0, and one value for all."""
    correct = torch.tensor([True, False, True, False])
    perfect = certainty_curves((~correct).double() * math.log(2), correct, classes=2)
    assert perfect.areas()["r_cc"] == perfect.areas()["r_iu"] == 1
    assert perfect.ua[1:].tolist() == [1.0] * 100
    flat = torch.full((4,), 0.3)
    useless = certainty_curves(flat, correct, classes=2, normalisation="test_set")
    assert useless.counts.unique(dim=0).tolist() == [[0, 0, 2, 2]]
    assert useless.ua.eq(0.5).all()


def test_the_range_of_the_test_set_is_asked_for_by_name():
    """One more uncertain input moves every limit; those of log C stay."""
    u, correct = torch.rand(50, generator=torch.Generator().manual_seed(0)), torch.ones(50).bool()
    more = torch.cat([u, torch.tensor([2.0])])
    all_right = torch.ones(51).bool()
    fixed = [certainty_curves(*a, classes=10) for a in ((u, correct), (more, all_right))]
    assert torch.equal(fixed[0].limit, fixed[1].limit)
    assert fixed[0].normalisation == "log_classes"
    ranged = [
        certainty_curves(*a, classes=10, normalisation="test_set")
        for a in ((u, correct), (more, all_right))
    ]
    assert ranged[0].limit[50] != ranged[1].limit[50]
    assert (ranged[0].limit[0], ranged[0].limit[-1]) == (u.min().double(), u.max().double())
    assert ranged[0].normalisation == "test_set"


GOOD = {"uncertainty": torch.ones(3), "correct": torch.ones(3).bool(), "classes": 3}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"uncertainty": [1.0]}, TypeError, "uncertainty must be a torch.Tensor; got list"),
        ({"uncertainty": torch.ones(0)}, ValueError, "no samples: uncertainty has shape [0]"),
        ({"uncertainty": torch.tensor([1, torch.nan, 1])}, ValueError, "uncertainty holds 1 NaN"),
        (
            {"correct": torch.ones(3)},
            ValueError,
            "got shape [3], dtype torch.float32. Pass metrics",
        ),
        (
            {"correct": torch.ones(2).bool()},
            ValueError,
            "correct must be a bool tensor of shape [3]",
        ),
        ({"correct": [True]}, ValueError, "True where the prediction is right; got list."),
        ({"classes": 1}, ValueError, "classes must be an integer of at least 2"),
        ({"classes": True}, ValueError, "the number of classes C; got True."),
        ({"classes": 2.0}, ValueError, "the number of classes C; got 2.0."),
        ({"normalisation": "max"}, ValueError, "one of ('log_classes', 'test_set'); got 'max'."),
        ({"thresholds": [0.5]}, ValueError, "two or more numbers in 0 … 1, ascending; got [0.5]."),
        ({"thresholds": 5}, ValueError, "two or more numbers in 0 … 1, ascending; got 5."),
        ({"thresholds": ["a", "b"]}, ValueError, "ascending; got ['a', 'b']. They are shares"),
        ({"thresholds": [0, 2.3]}, ValueError, "They are shares of log C, not nats"),
        ({"thresholds": [0.5, 0.1]}, ValueError, "ascending; got [0.5, 0.1]"),
        (
            {"uncertainty": torch.tensor([1, torch.inf, 1]), "normalisation": "test_set"},
            ValueError,
            "uncertainty must be finite where normalisation is 'test_set'; got 1.0 … inf.",
        ),
    ],
)
def test_arguments(change, error, text):
    options = GOOD | change
    with pytest.raises(error) as caught:
        certainty_curves(options.pop("uncertainty"), options.pop("correct"), **options)
    assert text in str(caught.value)


def test_the_curve_of_an_area_must_be_known():
    with pytest.raises(ValueError, match=r"of must be one of \(.*\), the curve whose .* 'nll'\."):
        certainty_area(torch.ones(3), torch.ones(3).bool(), classes=3, of="nll")


def test_classes_of_numpy():
    """As the numbers of passes are taken."""
    u, right = torch.rand(9), torch.ones(9).bool()
    got = certainty_curves(u, right, classes=np.int64(3))
    assert torch.equal(got.limit, certainty_curves(u, right, classes=3).limit)


def test_what_is_below_0_is_said():
    """Not the rounding of a difference, and not where the range is that of the test set."""
    u, right = torch.tensor([0.5, -1e-8, -0.25, -1.0]), torch.ones(4).bool()
    with pytest.warns(UserWarning, match="are below 0") as told:
        certainty_curves(u, right, classes=3)
    assert str(told[0].message) == (
        "2 of 4 uncertainties are below 0 (the least is -1), so they count as certain at every "
        "threshold. Only mutual_information_jackknife may be so, by chance; for a score such as "
        "log p of the predicted class change the sign and pass normalisation='test_set'."
    )
    certainty_curves(u[:2], right[:2], classes=3)
    certainty_curves(u, right, classes=3, normalisation="test_set")
