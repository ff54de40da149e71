"""Faults of evaluations elsewhere: samples that are lost, and one draw that is called a result."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from bayes_dc import convert, predict_with_uncertainty
from bayes_dc import metrics as m
from bayes_dc.models import mlp
from bayes_dc.report import Cost, Evaluation, write_report, writer
from bayes_dc.train import evaluate

CPU = torch.device("cpu")


class Logits:
    """A split of five inputs, each the logits [1, 0]; four are right."""

    class_names = ("a", "b")
    labels = torch.tensor([0, 0, 0, 0, 1])

    def __len__(self):
        return 5

    def batch(self, indices, device):
        return torch.tensor([[1.0, 0.0]]).expand(len(indices), 2)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 64])
def test_a_partial_last_batch_is_evaluated_and_weighs_what_it_holds(batch_size):
    # source: facebookarchive/fb.resnet.torch#75
    # source: thuml/Autoformer#104
    split = Logits()
    score = evaluate(nn.Identity(), split, batch_size, CPU)
    probs = split.batch(range(5), CPU).double().softmax(1)
    assert (score.samples, score.wrong, score.accuracy) == (5, 1, 0.8)
    assert score.loss_nats == pytest.approx(m.nll(probs, split.labels).item(), rel=1e-15)


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp(4, 3, hidden=(16,))
    convert(model, 0.5)
    return model.eval(), torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("T", [1, 50])
def test_a_report_says_how_many_passes_it_is_the_mean_of(network, T, tmp_path, monkeypatch):
    # source: baal-org/baal#279
    monkeypatch.setattr(writer, "draw_charts", lambda *_: {})
    monkeypatch.setattr(writer, "draw_grids", lambda *_: {})
    model, x = network
    got = predict_with_uncertainty(model, x, T, return_samples=True)
    torch.testing.assert_close(got.mean, got.samples.mean(0), rtol=0, atol=T * 2.0**-53)
    with torch.no_grad():
        mean_network = model(x).double().softmax(1)
    assert (got.mean - mean_network).abs().max() > 1e-3
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    evaluation = Evaluation(
        prediction=got,
        ids="abcdef",
        class_names="abc",
        image=lambda index: np.zeros((2, 2, 1), np.uint8),
        cost=Cost(seconds=1.0, peak_memory_bytes=None, peak_memory_kind="not measured"),
        labels=labels,
        mean_network=mean_network,
    )
    path = write_report(evaluation, tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    assert report["run"]["T"] == T
    assert report["metrics"]["nll"]["monte_carlo"]["value"] == m.nll(got.mean, labels).item()
    said = "T = 1 is a single random draw of the network, not a mean over passes"
    assert (said in path.read_text("utf-8")) == (T == 1)
    assert any(said in text for text in report["warnings"]) == (T == 1)
