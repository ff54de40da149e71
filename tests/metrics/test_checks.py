"""Every refusal of bayes_dc.metrics, by its text."""

import inspect
import math
import re

import numpy as np
import pytest
import torch

from bayes_dc import metrics as m
from bayes_dc.metrics import (
    accuracy,
    bootstrap_interval,
    bootstrap_mean,
    brier,
    ece,
    entropy,
    entropy_from_logits,
    mutual_information,
    nll,
    nll_from_logits,
    reliability_curve,
)
from bayes_dc.metrics._table import KINDS

BINNED = [
    ece,
    m.mce,
    m.debiased_ece,
    reliability_curve,
    m.adaptive_ece,
    m.debiased_squared_error,
    m.classwise_ece,
    m.brier_decomposition,
    m.brier_reliability,
    m.brier_resolution,
]
SCORES = [accuracy, nll, brier, m.brier_uncertainty, *BINNED]
RANKED = [m.aurc, m.excess_aurc, m.risk_coverage_curve]
OOD = [m.auroc, m.aupr_in, m.aupr_out, m.fpr_at_tpr]
PROBS = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("probs", "labels", "kind", "text"),
    [
        (torch.zeros(0, 3), LABELS[:0], ValueError, r"no samples: probs has shape \[0, 3\]"),
        ([[1.0]], LABELS, TypeError, r"probs must be a torch.Tensor; got list. Wrap it"),
        (
            LABELS[:, None],
            LABELS,
            TypeError,
            r"floating point probabilities; got dtype torch.int64",
        ),
        (
            PROBS[0],
            LABELS,
            ValueError,
            r"probs must have shape \[B, C\]; got \[2\]. For a binary score",
        ),
        (PROBS[:, :0], LABELS, ValueError, r"probs must have shape \[B, C\]; got \[2, 0\]"),
        (PROBS * math.nan, LABELS, ValueError, r"4 values that are NaN or infinite.*\[0, 0\]"),
        (PROBS / 0, LABELS, ValueError, r"4 values that are NaN or infinite"),
        (
            torch.tensor([[0.5, 0.5], [1.5, -0.5]]),
            LABELS,
            ValueError,
            r"row 1 has minimum -0.5 and sum 1.*logits pass probs.softmax\(-1\)",
        ),
        (torch.tensor([[0.5, 0.7]]), LABELS[:1], ValueError, r"row 0 has minimum 0.5 and sum 1.2"),
        (PROBS, [0, 1], TypeError, r"labels must be a torch.Tensor; got list"),
        (PROBS, LABELS.float(), TypeError, r"integer class numbers; got dtype torch.float32"),
        (PROBS, LABELS.bool(), TypeError, r"integer class numbers; got dtype torch.bool"),
        (PROBS, LABELS[:1], ValueError, r"labels must have shape \[2\].*got \[1\]"),
        (PROBS, torch.eye(2).long(), ValueError, r"labels must have shape \[2\].*got \[2, 2\]"),
        (
            PROBS,
            torch.tensor([0, 2]),
            ValueError,
            r"labels must lie in 0 … 1 because probs has 2 columns; got 2 at index 1",
        ),
        (PROBS, torch.tensor([-1, 0]), ValueError, r"got -1 at index 0. Check that the labels"),
    ],
)
def test_scores_refuse(score, probs, labels, kind, text):
    with pytest.raises(kind, match=text):
        score(probs, labels)


@pytest.mark.parametrize("measure", BINNED)
@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True, None, "15"])
def test_n_bins_must_be_a_positive_integer(measure, n_bins):
    with pytest.raises(ValueError, match=r"n_bins must be a positive integer, the number of bins"):
        measure(PROBS, LABELS, n_bins)


def test_entropy_refuses():
    with pytest.raises(ValueError, match=r"probs must have shape \[..., C\]; got \[\]"):
        entropy(torch.tensor(0.5))
    with pytest.raises(ValueError, match=r"row \[1, 0\] has minimum -1"):
        entropy(torch.tensor([[[0.5, 0.5]], [[2.0, -1.0]]]))
    with pytest.raises(ValueError, match=r"samples must have shape \[T, B, C\]; got \[2, 2\]"):
        mutual_information(PROBS)


@pytest.mark.parametrize("logits", [[[0.0, math.nan]], [[-math.inf, -math.inf]], [[math.inf, 0.0]]])
def test_logits_without_a_softmax_are_refused(logits):
    with pytest.raises(ValueError, match=r"without NaN; got a row without a finite softmax"):
        entropy_from_logits(torch.tensor(logits))
    with pytest.raises(ValueError, match=r"got a row without a finite softmax, row 0"):
        nll_from_logits(torch.tensor(logits), torch.tensor([0]))


def test_logits_of_another_shape_or_dtype_are_refused():
    with pytest.raises(
        ValueError, match=r"\[B, C\] without NaN; got shape \[2\], dtype torch.float"
    ):
        nll_from_logits(torch.zeros(2), LABELS)
    with pytest.raises(ValueError, match=r"got shape \[0, 2\]"):
        nll_from_logits(torch.zeros(0, 2), LABELS[:0])
    with pytest.raises(
        ValueError, match=r"\[..., C\] without NaN; got shape \[2\], dtype torch.int64"
    ):
        entropy_from_logits(LABELS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": 1.0}, r"level must be a number strictly between 0 and 1, such as 0.95; got 1.0"),
        ({"level": 95}, r"level must be .*got 95"),
        ({"level": True}, r"level must be .*got True"),
        ({"resamples": 0}, r"resamples must be an integer of at least 1, such as 1000; got 0"),
        ({"resamples": 2.5}, r"resamples must be .*got 2.5"),
        ({"seed": -1}, r"seed must be an integer in 0 … 2\*\*63 − 1; got -1"),
        ({"seed": 2**63}, r"seed must be .*got 9223372036854775808"),
    ],
)
def test_the_bootstrap_refuses_options(options, text):
    with pytest.raises(ValueError, match=text):
        bootstrap_mean(torch.ones(3), **options)


def test_the_bootstrap_refuses_values():
    with pytest.raises(ValueError, match=r"no samples: the bootstrap needs n ≥ 1; got n = 0"):
        bootstrap_mean(torch.ones(0))
    with pytest.raises(
        ValueError, match=r"values must be a real tensor \[n\] without NaN.*shape \[1, 3\]"
    ):
        bootstrap_mean(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"got shape \[3\], dtype torch.complex64"):
        bootstrap_mean(torch.ones(3, dtype=torch.complex64))
    one = torch.ones(3)
    for first, second in ((one[None], one), (one, one * math.inf), (one.cfloat(), one)):
        with pytest.raises(ValueError, match=r"(first|second) must be a real tensor \[n\] of fin"):
            m.bootstrap_mean_difference(first, second)
    with pytest.raises(ValueError, match=r"one number per sample; got NaN"):
        bootstrap_mean(torch.tensor([math.nan]))
    with pytest.raises(ValueError, match=r"statistic must turn indices of shape \[7, 3\].*got NaN"):
        bootstrap_interval(lambda i: torch.full((len(i),), math.nan), 3, resamples=7)
    with pytest.raises(ValueError, match=r"without NaN; got shape \[7, 3\]"):
        bootstrap_interval(lambda i: i.double(), 3, resamples=7)


@pytest.mark.parametrize("measure", OOD)
@pytest.mark.parametrize(
    ("scores_in", "scores_out", "kind", "text"),
    [
        ([0.1], PROBS[0], TypeError, r"scores_in must be a torch.Tensor; got list. Wrap it"),
        (PROBS, PROBS[0], ValueError, r"scores_in must be .* \[n\].*got shape \[2, 2\]"),
        (PROBS[0], LABELS, ValueError, r"scores_out must be floating point .*dtype torch.int64"),
        (
            PROBS[0],
            torch.tensor([1.0, math.nan, math.nan]),
            ValueError,
            r"scores_out holds 2 NaN, the first at index 1; a NaN has no rank",
        ),
        (PROBS[0] * math.nan, PROBS[0], ValueError, r"scores_in holds 2 NaN"),
        (PROBS[0, :0], PROBS[0], ValueError, r"no samples: scores_in is empty, .* from scores_out"),
        (PROBS[0], PROBS[0, :0], ValueError, r"no samples: scores_out is empty.* both data sets"),
        (PROBS[0, :0], PROBS[0, :0], ValueError, r"no samples: scores_in is empty"),
    ],
)
def test_ood_metrics_refuse(measure, scores_in, scores_out, kind, text):
    with pytest.raises(kind, match=text):
        measure(scores_in, scores_out)


@pytest.mark.parametrize("measure", RANKED)
@pytest.mark.parametrize(
    ("uncertainty", "loss", "kind", "text"),
    [
        ([0.1], PROBS[0], TypeError, r"uncertainty must be a torch.Tensor; got list"),
        (PROBS[0, :0], PROBS[0, :0], ValueError, r"no samples: uncertainty has shape \[0\]"),
        (PROBS[0] * math.nan, PROBS[0], ValueError, r"uncertainty holds 2 NaN"),
        (PROBS[0], [0.0, 1.0], TypeError, r"loss must be a torch.Tensor; got list"),
        (PROBS[0], PROBS[0, :1], ValueError, r"loss must be .* \[2\] like uncertainty; got.*\[1\]"),
        (PROBS[0], LABELS, ValueError, r"loss must be a bool or floating .*dtype torch.int64"),
        (PROBS[0], PROBS[0] / 0, ValueError, r"loss holds 2 values that are NaN or infinite"),
    ],
)
def test_selective_metrics_refuse(measure, uncertainty, loss, kind, text):
    with pytest.raises(kind, match=text):
        measure(uncertainty, loss)


@pytest.mark.parametrize("value", [0, -0.5, 1.01, 95, math.nan, True, "1", None])
def test_shares_must_lie_above_0_and_at_most_1(value):
    with pytest.raises(ValueError, match=r"tpr must be a number above 0 and at most 1, such as"):
        m.fpr_at_tpr(PROBS[0], PROBS[1], value)
    with pytest.raises(ValueError, match=r"coverage must be a number above 0 and at most 1"):
        m.risk_at_coverage(PROBS[0], PROBS[1], value)


@pytest.mark.parametrize("value", [-0.1, math.nan, True, "1", None])
def test_the_risk_must_be_a_number_of_at_least_0(value):
    with pytest.raises(ValueError, match=r"risk must be a number of at least 0, the mean loss to"):
        m.coverage_at_risk(PROBS[0], PROBS[1], value)


def test_the_squared_error_needs_two_samples_per_bin():
    text = r"n_bins = 2 bins of equal mass need at least 4 samples, two per bin; got 3"
    with pytest.raises(ValueError, match=text + r"\. Pass n_bins=1 or fewer"):
        m.debiased_squared_error(torch.eye(2)[[0, 1, 0]], torch.tensor([0, 1, 1]), 2)
    with pytest.raises(
        ValueError, match=r"need at least 30 samples, two per bin; got 1\. Pass more"
    ):
        m.debiased_squared_error(PROBS[:1], LABELS[:1])


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1"])
def test_the_temperature_must_be_above_0(value):
    with pytest.raises(ValueError, match=r"temperature must be a number above 0, such as 1.0; got"):
        m.energy(PROBS, value)


def test_energy_refuses_logits():
    with pytest.raises(
        ValueError, match=r"\[..., C\] without NaN; got shape \[2\], dtype torch.int"
    ):
        m.energy(LABELS)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"got a row without a finite softmax"):
            m.energy(torch.tensor([bad, 0.0]))
    with pytest.raises(ValueError, match=r"got a row without a finite softmax"):
        m.energy(torch.tensor([-math.inf, -math.inf]))


@pytest.mark.parametrize("measure", [m.mutual_information_jackknife, m.variation_ratio])
def test_measures_of_passes_refuse_other_shapes(measure):
    with pytest.raises(ValueError, match=r"samples must have shape \[T, B, C\]; got \[2, 2\]"):
        measure(PROBS)


@pytest.mark.parametrize("metric", KINDS, ids=lambda f: f.__name__)
def test_every_metric_says_what_it_is(metric):
    """Formula, range, direction, source: in its own docstring, which ``help`` and api.md show."""
    text = inspect.getdoc(metric)
    head, _, rest = text.partition("Args:")
    assert re.search(r"^::\n\n    \S", head, flags=re.MULTILINE), "formula"
    assert re.search(r"^Source:\n    \S.* [12]\d\d\d", rest, flags=re.MULTILINE | re.DOTALL), (
        "source"
    )
    returns = rest.partition("Returns:")[2].partition("Source:")[0]
    if "Float64" in returns:
        assert re.search("…|at least|at most|above", returns), "range"
        assert re.search("better|less sure|disagree|symmetric|log C", returns), "direction"


@pytest.mark.parametrize("given", [[0.5, 0.5], None, PROBS.numpy()])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (m.energy, "logits"),
        (m.entropy_from_logits, "logits"),
        (lambda x: m.nll_from_logits(x, LABELS), "logits"),
        (lambda x: m.nll_from_logits_per_sample(x, LABELS), "logits"),
        (m.bootstrap_mean, "values"),
        (lambda x: m.bootstrap_mean_difference(x, PROBS[0]), "first"),
        (lambda x: m.bootstrap_mean_difference(PROBS[0], x), "second"),
        (lambda x: POLICY.accepts(x), "uncertainty"),
        (lambda x: POLICY.outcome(x, LABELS > 0), "uncertainty"),
    ],
)
def test_what_is_no_tensor_is_named(call, name, given):
    text = rf"{name} must be a torch.Tensor; got {type(given).__name__}. Wrap it: torch.as_tensor"
    with pytest.raises(TypeError, match=text):
        call(given)


POLICY = m.Policy("entropy", 0.5, "risk", 0.1, 0.95, 10, 0.1, 5, 0)


@pytest.mark.parametrize(
    ("uncertainty", "wrong", "kind", "text"),
    [
        (LABELS, LABELS > 0, TypeError, r"uncertainty must be floating point.*got dtype torch.int"),
        (PROBS, PROBS > 0, ValueError, r"must have shape \[n\], one number .*got shape \[2, 2\]"),
        (PROBS[0, :0], LABELS[:0] > 0, ValueError, r"n ≥ 1 inputs; got shape \[0\]"),
        # [2, 1] would be counted for every pair of inputs, numbers as bits
        (PROBS[0], LABELS[:, None] > 0, ValueError, r"wrong must be .* \[2\] .*got shape \[2, 1\]"),
        (PROBS[0], LABELS, ValueError, r"wrong must be a bool tensor .*dtype torch.int64"),
        (PROBS[0], [False, True], ValueError, r"wrong must be a bool tensor .*got list"),
    ],
)
def test_outcomes_of_a_policy_refuse(uncertainty, wrong, kind, text):
    with pytest.raises(kind, match=text):
        POLICY.outcome(uncertainty, wrong)


@pytest.mark.parametrize("score", [score for score in SCORES if score is not m.reliability_curve])
def test_scores_take_probabilities_that_want_a_gradient(score):
    n = 40
    probs = torch.linspace(0.1, 0.9, n)
    probs = torch.stack([probs, 1 - probs], dim=1)
    labels = torch.arange(n) % 2
    want, got = score(probs, labels), score(probs.requires_grad_(), labels)
    parts = ("reliability", "resolution", "uncertainty", "remainder")
    pairs = [(want, got)] if isinstance(want, torch.Tensor) else []
    pairs += [(getattr(want, one), getattr(got, one)) for one in parts if not pairs]
    assert all(torch.equal(a, b.detach()) for a, b in pairs)


def test_numbers_of_numpy_are_numbers():
    """What ``np.arange`` and ``np.linspace`` give is no other kind of number to a caller."""
    probs = torch.stack([torch.linspace(0.1, 0.9, 40), torch.linspace(0.9, 0.1, 40)], dim=1)
    labels, wrong = torch.arange(40) % 2, torch.arange(40) % 5 == 0
    one, many, half = np.int64(1), np.int32(50), np.float32(0.5)
    for measure in BINNED[:3]:
        assert measure(probs, labels, np.int64(7)) == measure(probs, labels, 7)
    got = bootstrap_mean(probs[:, 0], level=half, resamples=many, seed=one)
    assert got == bootstrap_mean(probs[:, 0], level=0.5, resamples=50, seed=1)
    assert type(got.level) is float
    pair = (probs[:, 0], probs[:, 1])
    apart = m.bootstrap_mean_difference(*pair, resamples=many, seed=one)
    assert apart == m.bootstrap_mean_difference(*pair, resamples=50, seed=1)
    assert m.risk_at_coverage(probs[:, 0], wrong, half) == m.risk_at_coverage(
        probs[:, 0], wrong, 0.5
    )
    assert m.coverage_at_risk(probs[:, 0], wrong, half) == 1
    assert m.binomial_interval(one, many) == m.binomial_interval(1, 50)
    assert m.energy(probs, half).equal(m.energy(probs, 0.5))
    policy = m.policy_for_coverage(probs[:, 0], wrong, half, score="entropy", confidence=half)
    assert policy == m.policy_for_coverage(probs[:, 0], wrong, 0.5, score="entropy", confidence=0.5)
    with pytest.raises(ValueError, match="n_bins must be a positive integer"):
        ece(probs, labels, np.float64(7))
    with pytest.raises(ValueError, match=r"resamples must be an integer .*got np.True_|got True"):
        bootstrap_mean(probs[:, 0], resamples=np.True_)
