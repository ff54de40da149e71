"""The metrics on a CUDA device give the CPU's numbers."""

import pytest
import torch

from bayes_dc import metrics as m

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


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
    values = m.nll_per_sample(probs.cuda(), labels)
    assert m.bootstrap_mean(values) == m.bootstrap_mean(values.cpu())
