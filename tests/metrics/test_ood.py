"""AUROC, AUPR and FPR at TPR against scikit-learn, torchmetrics, counting and published faults."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from bayes_dc.metrics import (
    aupr_in,
    aupr_out,
    auroc,
    energy,
    fpr_at_tpr,
    max_probability_score,
    mutual_information,
    ood_scores,
    predictive_entropy,
)

ID = [0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.90]
OOD = [0.28, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.95]


def tensors(*scores):
    return [torch.tensor(one, dtype=torch.float64) for one in scores]


def split(scores, is_ood):
    """One array and 0/1 labels, 1 = OOD, as two tensors."""
    scores, is_ood = np.array(scores, dtype=float), np.array(is_ood)
    return torch.from_numpy(scores[is_ood == 0]), torch.from_numpy(scores[is_ood == 1])


def naive_fpr(scores_in, scores_out, tpr):
    """Least FPR over every threshold that occurs and reaches the TPR."""
    reached = [
        (scores_in >= t).mean()
        for t in np.concatenate([scores_in, scores_out])
        if (scores_out >= t).mean() >= tpr
    ]
    return min(reached)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=40),
    st.lists(st.integers(-5, 5), min_size=1, max_size=40),
    st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]),
)
def test_equal_scikit_learn_with_many_ties(scores_in, scores_out, tpr):
    a, b = np.array(scores_in) / 8, np.array(scores_out) / 8
    scores, label = np.concatenate([a, b]), np.repeat([0, 1], [len(a), len(b)])
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    # both sides: sums of up to 80 terms
    room = 200 * 2.0**-53
    assert auroc(x, y).item() == pytest.approx(sk.roc_auc_score(label, scores), abs=room)
    want = sk.average_precision_score(label, scores)
    assert aupr_out(x, y).item() == pytest.approx(want, abs=room)
    want = sk.average_precision_score(1 - label, -scores)
    assert aupr_in(x, y).item() == pytest.approx(want, abs=room)
    assert fpr_at_tpr(x, y, tpr).item() == naive_fpr(a, b, tpr)


def test_fpr_is_a_point_of_scikit_learns_curve():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=300), rng.normal(1.5, size=200)
    fpr, tpr, _ = sk.roc_curve(
        np.repeat([0, 1], [300, 200]), np.concatenate([a, b]), drop_intermediate=False
    )
    got = fpr_at_tpr(torch.from_numpy(a), torch.from_numpy(b)).item()
    assert got == fpr[tpr >= 0.95].min()


def test_equal_torchmetrics_on_scores_in_the_unit_interval():
    """Outside 0 … 1 it applies a sigmoid batch by batch."""
    rng = np.random.default_rng(1)
    a, b = torch.from_numpy(rng.random(300)), torch.from_numpy(rng.random(200) ** 0.5)
    scores, label = torch.cat([a, b]), torch.arange(500) >= 300
    # float32 sums of 500 terms
    room = 500 * 2.0**-23
    want = binary_auroc(scores, label.long()).item()
    assert auroc(a, b).item() == pytest.approx(want, abs=room)
    want = binary_average_precision(scores, label.long()).item()
    assert aupr_out(a, b).item() == pytest.approx(want, abs=room)


def test_which_side_is_positive():
    a, b = tensors(ID, OOD)
    assert fpr_at_tpr(a, b).item() == 0.5
    assert fpr_at_tpr(-b, -a).item() == 0.9
    assert auroc(a, b).item() == 0.87


def test_aupr_in_and_out_are_not_exchanged():
    a, b = tensors([0.1, 0.2, 0.3, 0.8], [0.7])
    assert aupr_out(a, b).item() == 0.5
    assert aupr_in(a, b).item() == 0.95
    assert auroc(a, b).item() == 0.75


def test_naming_the_other_side_and_negating_is_the_same():
    a, b = tensors([0.1, 0.2, 0.3, 0.8], [0.7])
    assert auroc(-b, -a).item() == auroc(a, b).item() == 0.75
    assert aupr_out(-b, -a).item() == aupr_in(a, b).item()
    assert aupr_in(-b, -a).item() == aupr_out(a, b).item()


def test_average_precision_is_not_a_trapezoid():
    assert aupr_out(torch.ones(19), torch.ones(1)).item() == 0.05
    assert aupr_in(torch.ones(1), torch.ones(19)).item() == 0.05


def test_perfect_and_worst_ranking():
    scores = [0.15, 0.25, 0.75, 0.95]
    assert aupr_out(*split(scores, [0, 0, 1, 1])).item() == 1.0
    want = (1 / 3 + 2 / 4) / 2
    assert aupr_out(*split(scores[::-1], [0, 0, 1, 1])).item() == pytest.approx(want, rel=2.0**-52)
    assert want == pytest.approx(0.416667, abs=5e-7)
    assert fpr_at_tpr(*split(scores, [0, 0, 1, 1])).item() == 0.0
    assert fpr_at_tpr(*split(scores[::-1], [0, 0, 1, 1])).item() == 1.0


def test_fpr_of_a_short_list():
    """Taking the TPR nearest to 0.95 instead of the first that reaches it would say 0.25."""
    scores = [0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1]
    assert fpr_at_tpr(*split(scores, [1, 0, 1, 0, 0, 1, 0])).item() == 0.75


def test_nineteen_of_twenty_reach_95_percent():
    a, b = torch.full((4,), 0.5), torch.arange(20.0)
    assert fpr_at_tpr(a, b).item() == 0.0
    assert fpr_at_tpr(a, b[:19] * 1.0).item() == 1.0  # 18 of 19 do not


def test_tied_scores_are_called_together():
    """One threshold at 1 finds every OOD input and takes half of the ID inputs along."""
    assert fpr_at_tpr(torch.tensor([0.0, 1.0]), torch.ones(9)).item() == 0.5


def test_constant_scores_and_equal_sets():
    x = torch.ones(4)
    assert auroc(x[:2], x[2:]).item() == 0.5
    assert fpr_at_tpr(x[:2], x[2:]).item() == 1.0
    same = torch.rand(50, generator=torch.Generator().manual_seed(0))
    assert auroc(same, same).item() == 0.5


def test_tiny_differences_are_no_ties():
    assert auroc(torch.tensor([0.0, 0.0]), torch.tensor([4e-12])).item() == 1.0


def test_scores_are_never_squashed():
    """A sigmoid on the batch whose scores exceed 1 would change their rank against the others."""
    assert auroc(torch.tensor([0.4]), torch.tensor([2.3, 1.7])).item() == 1.0
    big = torch.tensor([1000.0, 1001.0])
    assert auroc(big[:1], big[1:]).item() == 1.0


def test_infinite_scores_are_ranked():
    inf = math.inf
    assert auroc(torch.tensor([-inf, 0.0]), torch.tensor([inf, 1.0])).item() == 1.0
    assert auroc(torch.tensor([inf, 0.0]), torch.tensor([inf])).item() == 0.75


@pytest.mark.parametrize("measure", [auroc, aupr_in, aupr_out, fpr_at_tpr])
def test_the_order_of_the_inputs_does_not_matter(measure):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(9, (60,), generator=generator).double()
    b = torch.randint(3, 12, (40,), generator=generator).double()
    moved = measure(a.flip(0), b[torch.randperm(40, generator=generator)]).item()
    # 40 or 60 terms added in another order
    assert moved == pytest.approx(measure(a, b).item(), rel=60 * 2.0**-52)


def test_scores_of_a_monte_carlo_prediction():
    logits = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = logits.softmax(-1)
    scores = ood_scores(samples, logits)
    assert list(scores) == ["entropy", "mutual_information", "max_probability", "energy"]
    assert torch.equal(scores["entropy"], predictive_entropy(samples))
    assert torch.equal(scores["mutual_information"], mutual_information(samples))
    mean = samples.numpy().mean(0)
    room = 7 * 2.0**-52
    np.testing.assert_allclose(scores["max_probability"], 1 - mean.max(-1), rtol=0, atol=room)
    want = -np.log(np.exp(logits.numpy()).sum(-1)).mean(0)
    np.testing.assert_allclose(scores["energy"], want, rtol=0, atol=4 * room)
    assert list(ood_scores(samples)) == ["entropy", "mutual_information", "max_probability"]


def test_energy_and_max_probability_by_hand():
    logits = torch.tensor([[3.0, 3.0], [0.0, -math.inf], [400.0, 0.0]], dtype=torch.float64)
    got = energy(logits)
    assert got.tolist() == [pytest.approx(-3 - math.log(2), rel=2.0**-51), 0.0, -400.0]
    # −2 log(2 e^{3/2}) = −3 − 2 log 2
    assert energy(logits, 2.0)[0].item() == pytest.approx(-3 - 2 * math.log(2), rel=2.0**-50)
    assert energy(logits.half()).dtype == torch.float64
    probs = torch.tensor([[0.25, 0.75], [1.0 + 2.0**-23, 0.0]])
    assert max_probability_score(probs).tolist() == [0.25, 0.0]
    assert max_probability_score(probs.expand(3, 2, 2)).shape == (3, 2)
