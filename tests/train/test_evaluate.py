"""Evaluation: means over samples, whatever the batch size, and the network left as it was."""

import pytest
import torch
from torch import nn

from bayes_dc.train import Score, evaluate

CPU = torch.device("cpu")


class Told:
    """Split whose batch is the logits themselves."""

    class_names = ("a", "b")

    def __init__(self, logits, labels):
        self.logits = logits
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, device):
        return self.logits[indices]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 100])
def test_last_batch_counts_by_its_size(batch_size):
    """Right are 4 of 5; the mean of batch means would be 0.667 for batches of 2."""
    logits = torch.tensor([[2.0, 0.0]] * 5)
    score = evaluate(nn.Identity(), Told(logits, [0, 0, 0, 0, 1]), batch_size, CPU)
    loss = (4 * torch.log1p(torch.tensor(-2.0).double().exp())).item()
    loss += torch.log1p(torch.tensor(2.0).double().exp()).item()
    assert score == Score(pytest.approx(loss / 5, rel=1e-15), 0.8, 1, 5)


def test_modes_are_put_back(make_run):
    run = make_run()
    run.model.train()
    run.model[1].eval()
    modes = [module.training for module in run.model.modules()]
    evaluate(run.model, run.data.test, 2, CPU)
    assert [module.training for module in run.model.modules()] == modes


def test_modes_are_put_back_after_an_exception(make_run):
    run = make_run()
    run.model.train()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(run.model, Told(torch.zeros(2, 1, 5, 5), [0, 1]), 2, CPU)
    assert all(module.training for module in run.model.modules())


def test_network_is_the_mean_weight_network(make_run):
    run = make_run(p=0.5)
    x = run.data.test.batch(torch.arange(7), CPU)
    weights = [m for m in run.model if isinstance(m, nn.Linear)]
    hidden = (x.flatten(1) @ weights[0].weight.T + weights[0].bias).relu()
    logits = hidden @ weights[1].weight.T + weights[1].bias
    wrong = int((logits.argmax(1) != run.data.test.labels).sum())
    first, second = (evaluate(run.model, run.data.test, 7, CPU) for _ in range(2))
    assert first == second
    assert first.wrong == wrong
    exact = nn.functional.cross_entropy(logits.double(), run.data.test.labels).item()
    assert first.loss_nats == pytest.approx(exact, rel=1e-6)
