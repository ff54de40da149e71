"""Faults that proper scores and entropies elsewhere were reported for."""

import math

import pytest
import torch

from bayes_dc import metrics as m

LOG_2 = pytest.approx(math.log(2), abs=2.0**-52)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_probabilities(dtype):
    """Neither refused, because rounded rows do not sum to 1, nor taken for votes or labels."""
    # source: Lightning-AI/pytorch-lightning#4840
    torch.manual_seed(0)
    logits = torch.randn(64, 10)
    labels = torch.randint(10, (64,))
    # bfloat16 has 8 binary digits: a probability moves by 2⁻⁹ of itself, float16 by 2⁻¹²
    wide, narrow = logits.softmax(1), logits.softmax(1).to(dtype)
    tied = (narrow == narrow.amax(1, keepdim=True)).sum(1) > 1
    assert torch.equal(m.correct(narrow, labels)[~tied], m.correct(wide, labels)[~tied])
    if dtype == torch.float16:
        assert m.accuracy(narrow, labels) == m.accuracy(wide, labels)
    slack = 2e-3 if dtype == torch.float16 else 8 * 2e-3
    for measure in (m.nll, m.brier, m.ece, m.adaptive_ece, m.classwise_ece):
        got, want = (measure(probs, labels).item() for probs in (narrow, wide))
        assert got == pytest.approx(want, abs=slack), measure.__name__
    entropies = m.entropy(narrow), m.entropy(wide)
    assert (entropies[0] - entropies[1]).abs().max() < slack * math.log(10)


def test_a_sure_row_costs_nothing_or_everything_and_never_nan():
    # source: scikit-learn/scikit-learn#24315
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert m.nll(sure, torch.tensor([0, 0])).item() == 0.0
    assert m.nll(sure, torch.tensor([1, 1])).item() == math.inf
    assert m.nll_per_sample(sure, torch.tensor([0, 1])).tolist() == [0.0, math.inf]
    votes = torch.tensor([[0, 1], [3, 0]])
    assert m.vote_nll_per_sample(sure, votes).tolist() == [math.inf, 0.0]
    assert m.nll_from_logits(torch.tensor([[40.0, 0.0]]), torch.tensor([1])).item() == 40.0


@pytest.mark.parametrize(
    ("probs", "label", "want"),
    [([0.7, 0.2, 0.1], 0, 0.14), ([0.1] * 10, 3, 0.90), ([0.0, 1.0], 0, 2.0)],
    ids=["sure and right", "uniform", "sure and wrong"],
)
def test_the_brier_score_is_the_sum_over_classes(probs, label, want):
    # source: imbs-hl/ranger#600
    probs, label = torch.tensor([probs], dtype=torch.float64), torch.tensor([label])
    assert m.brier(probs, label).item() == pytest.approx(want, abs=10 * 2.0**-53)
    parts = m.brier_decomposition(probs, label)
    assert parts.brier.item() == pytest.approx(want, abs=30 * 2.0**-53)
    text = m.brier.__doc__
    assert "sums over classes" in text
    assert "0 … 2" in text


@pytest.mark.parametrize(
    ("logits", "want"),
    [([[0.0, -math.inf]], 0.0), ([[0.0, 0.0, -math.inf]], LOG_2), ([[6e4, -6e4]], 0.0)],
    ids=["sure", "a class that cannot be", "far apart"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_class_of_probability_zero_leaves_a_finite_entropy(logits, want, dtype):
    # source: huggingface/trl#7221
    logits = torch.tensor(logits, dtype=dtype)
    assert m.entropy_from_logits(logits).item() == want
    probs = logits.softmax(1)
    assert m.entropy(probs).item() == want
    samples = probs.expand(3, 1, -1)
    split = m.uncertainty_split(samples)
    assert split.total.item() == want
    assert split.aleatoric.item() == want
    assert split.epistemic.item() == 0.0
    assert m.energy(logits).isfinite().all()


def test_a_class_of_probability_zero_leaves_a_finite_gradient():
    # source: huggingface/trl#7252
    z = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    value = m.entropy_from_logits(z)
    assert value.item() == LOG_2
    value.backward()
    assert z.grad.abs().max() < 2.0**-24  # softmax of [0, 0] is uniform: the slope is 0
    # the same through probabilities, and through the mean over passes
    for measure in (m.predictive_entropy, m.expected_entropy, m.mutual_information):
        z = torch.tensor([[[0.0, 0.0, -math.inf]], [[1.0, 0.0, -math.inf]]], requires_grad=True)
        measure(z.softmax(-1)).sum().backward()
        assert z.grad.isfinite().all(), measure.__name__
        assert not z.grad[..., 2].any(), measure.__name__


def test_underflow_of_a_sure_network_is_no_uncertainty():
    # source: kkirchheim/pytorch-ood#84
    samples = torch.tensor([200.0, 0.0, 0.0]).softmax(0).expand(4, 1, 3)
    scores = m.ood_scores(samples)
    assert {name: value.item() for name, value in scores.items()} == {
        "entropy": 0.0,
        "mutual_information": 0.0,
        "max_probability": 0.0,
    }
    assert m.mutual_information_jackknife(samples).item() == 0.0
    assert m.variation_ratio(samples).item() == 0.0


def test_scores_are_never_squashed_by_a_guess():
    """Above 1, they are ranked as they are, in one call and in three."""
    # source: Lightning-AI/torchmetrics#1989
    inside, outside = torch.tensor([0.4]), torch.tensor([2.3, 1.7])
    assert m.auroc(inside, outside).item() == 1.0
    stream = m.Streaming(m.auroc)
    nothing = torch.empty(0)
    for batch in ((nothing, outside[:1]), (inside, nothing), (nothing, outside[1:])):
        stream.update(*batch)
    assert stream.compute().item() == 1.0
    # nor where probabilities are asked for: they are refused
    with pytest.raises(ValueError, match=r"got 2\.3 at index 0.*pass scores\.sigmoid\(\)"):
        m.positive_class_ece(outside, torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"must hold probabilities.*If these are logits pass"):
        m.ece(torch.tensor([[2.3, 0.4]]), torch.tensor([0]))


@pytest.mark.parametrize("measure", [m.accuracy, m.nll, m.brier], ids=lambda f: f.__name__)
def test_a_smaller_last_batch_has_no_larger_weight(measure):
    # source: facebookarchive/fb.resnet.torch#75
    probs = torch.tensor([[0.75, 0.25]], dtype=torch.float64).expand(5, 2)
    labels = torch.tensor([0, 0, 0, 0, 1])
    stream = m.Streaming(measure)
    for batch in zip(probs.split(2), labels.split(2), strict=True):
        stream.update(*batch)
    right, wrong = (measure(probs[:1], torch.tensor([label])).item() for label in (0, 1))
    assert stream.compute().item() == pytest.approx((4 * right + wrong) / 5, abs=5 * 2.0**-52)
    assert m.accuracy(probs, labels).item() == 0.8
