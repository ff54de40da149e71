"""The metrics on a CUDA device give the CPU's numbers."""

import pytest
import torch

from bayes_dc import metrics as m

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_metrics_equal_the_cpu(batch, dtype):
    probs, labels = batch(rows=500, dtype=dtype)
    for score in (m.accuracy, m.nll, m.brier, m.ece):
        got = score(probs.cuda(), labels)
        assert got.is_cuda
        # float64 sums of 500 terms in another order; the device's log may differ by two ulps.
        assert got.item() == pytest.approx(score(probs, labels).item(), rel=1000 * 2.0**-53)
    curve, want = (
        m.reliability_curve(probs.cuda(), labels.cuda()),
        m.reliability_curve(probs, labels),
    )
    assert torch.equal(curve.count.cpu(), want.count)
    assert m.bootstrap_ece(probs.cuda(), labels) == m.bootstrap_ece(probs, labels)
    for score in (m.mce, m.debiased_ece, m.adaptive_ece, m.classwise_ece, m.brier_reliability):
        got = score(probs.cuda(), labels)
        assert got.is_cuda
        # sums of 500 · 10 terms of at most 1, divided by 500
        assert got.item() == pytest.approx(score(probs, labels).item(), abs=1000 * 2.0**-53)
    wrong = ~m.correct(probs, labels)
    scores = probs[:, 0].cuda()
    for score in (m.aurc, m.excess_aurc):
        got = score(scores, wrong).item()
        assert got == pytest.approx(score(probs[:, 0], wrong).item(), rel=1000 * 2.0**-53)
    assert m.coverage_at_risk(scores, wrong, 0.4) == m.coverage_at_risk(probs[:, 0], wrong, 0.4)
    for score in (m.auroc, m.aupr_in, m.aupr_out, m.fpr_at_tpr):
        got = score(scores[:200], scores[200:]).item()
        want = score(probs[:200, 0], probs[200:, 0]).item()
        assert got == pytest.approx(want, rel=1000 * 2.0**-53)
    stream = m.Streaming(m.ece)
    stream.update(probs.cuda(), labels)
    assert stream.compute().item() == m.ece(probs, labels).item()
    values = m.nll_per_sample(probs.cuda(), labels)
    assert m.bootstrap_mean(values) == m.bootstrap_mean(values.cpu())
