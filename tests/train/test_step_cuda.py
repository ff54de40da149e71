import pytest
import torch

from bayes_dc.train import TrainingError
from bayes_dc.train.step import TrainingStep

pytestmark = pytest.mark.gpu


def weights_of(run):
    run.fit()
    return {name: value.cpu() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("amp", ["none", "bf16", "fp16"])
@pytest.mark.parametrize("noise", [{"p": 0.5}, {"p": 0.0, "dropout": 0.5}, {"p": 0.0}])
def test_a_graph_trains_the_same_network(make_run, amp, noise):
    """23 samples in batches of 5: the last batch of every epoch is eager."""
    settings = {"device": "cuda", "amp": amp, "epochs": 4, "grad_clip": 1.0, **noise}
    eager = weights_of(make_run("eager", cuda_graph=False, **settings))
    graphed = weights_of(make_run("graph", cuda_graph=True, **settings))
    assert eager.keys() == graphed.keys()
    for name, value in eager.items():
        assert torch.equal(value, graphed[name]), name


def test_full_batches_after_the_first_are_replayed(make_run, monkeypatch):
    steps = []
    call = TrainingStep.__call__

    def noting(step, *arguments):
        steps.append(step)
        return call(step, *arguments)

    monkeypatch.setattr(TrainingStep, "__call__", noting)
    make_run(device="cuda", epochs=3).fit()  # 4 full batches and 1 of 3 samples each
    assert len(set(steps)) == 1
    assert steps[0].replays == 3 * 4 - 1


def test_what_cannot_be_captured_is_said(make_run, monkeypatch):
    inner = TrainingStep._gradients

    def waiting(step, x, y, samples):
        loss, correct = inner(step, x, y, samples)
        loss.item()
        return loss, correct

    monkeypatch.setattr(TrainingStep, "_gradients", waiting)
    with pytest.raises(TrainingError, match=r"cannot be captured .* Set train\.cuda_graph: false"):
        make_run(device="cuda").fit()
