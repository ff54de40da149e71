"""Joint samples: one function for all inputs in a pass, the same in every batch."""

import threading

import pytest
import torch
from torch import nn

import bayes_dc
from bayes_dc.acquire import choose, joint_samples
from bayes_dc.models import lenet5
from bayes_dc.nn import DropConnectLinear, dropconnect_layers


def linear():
    """Integer weights and inputs: equal sums whatever their order."""
    torch.manual_seed(0)
    layer = DropConnectLinear(12, 3, p=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-2, 3, (3, 12)))
        layer.bias.copy_(torch.randint(-2, 3, (3,)))
    return nn.Sequential(layer)


@pytest.fixture
def network():
    torch.manual_seed(0)
    model = lenet5((1, 28, 28), 10, dropout=0.3)
    bayes_dc.convert(model, p=0.5)
    return model


def test_inputs_share_their_masks():
    """Equal inputs at any place give equal passes; with masks of their own they do not."""
    x = torch.randint(-2, 3, (1, 12)).float().expand(5, 12)
    model = linear()
    samples = joint_samples(model, x, 30)
    assert samples.shape == (30, 5, 3)
    assert samples.dtype == torch.float64
    assert (samples == samples[:, :1]).all()
    assert len(samples.unique(dim=0)) > 20
    own = bayes_dc.predict_with_uncertainty(model, x, 30, return_samples=True).samples
    assert (own != own[:, :1]).any()


def test_they_are_what_scope_pass_draws():
    x = torch.randint(-2, 3, (6, 12)).float()
    model = linear()
    samples = joint_samples(model, x, 20, seed=4)
    model[0].scope = "pass"
    wanted = bayes_dc.predict_with_uncertainty(model, x, 20, seed=4, return_samples=True).samples
    assert torch.equal(samples, wanted)


def test_convolutions_and_dropout_share_theirs_too(network):
    x = torch.randn(1, 1, 28, 28).repeat(4, 1, 1, 1)
    samples = joint_samples(network, x, 10)
    # torch's own layers may round rows of a batch differently
    assert (samples - samples[:, :1]).abs().max() < 1e-5
    assert samples.std(dim=0).max() > 1e-3
    ids = torch.zeros(4, dtype=torch.int64)
    same = bayes_dc.predict_with_uncertainty(
        network, x, 10, sample_ids=ids, return_samples=True
    ).samples
    assert (samples - same).abs().max() < 1e-5


def test_batches_meet_the_same_functions():
    x = torch.randint(-2, 3, (7, 12)).float()
    model = linear()
    whole = joint_samples(model, x, 15, seed=2)
    parts = torch.cat([joint_samples(model, part, 15, seed=2) for part in x.split(3)], dim=1)
    assert torch.equal(whole, parts)
    assert not torch.equal(whole, joint_samples(model, x, 15, seed=3))


def test_scopes_are_as_before_also_after_an_exception(network):
    before = {name: layer.scope for name, layer in dropconnect_layers(network).items()}
    assert "sample" in before.values()
    joint_samples(network, torch.randn(2, 1, 28, 28), 3)
    assert {name: layer.scope for name, layer in dropconnect_layers(network).items()} == before
    with pytest.raises(ValueError, match="x must have 1 channels"):
        joint_samples(network, torch.randn(2, 5, 28, 28), 3)
    assert {name: layer.scope for name, layer in dropconnect_layers(network).items()} == before


def test_a_duplicate_is_chosen_once():
    """End to end: a pool with every input twice."""
    torch.manual_seed(1)
    model = nn.Sequential(DropConnectLinear(20, 64, p=0.5), nn.ReLU(), DropConnectLinear(64, 4))
    x = 3 * torch.randn(10, 20)
    pool = torch.cat([x, x])
    samples = joint_samples(model, pool, 200)
    batch = choose(samples, 4, "batchbald")
    assert len({i % 10 for i in batch.tolist()}) == 4
    assert len({i % 10 for i in choose(samples, 4, "bald").tolist()}) == 2


def test_the_gaussian_sampler_is_refused():
    model = nn.Sequential(nn.Linear(6, 3))
    bayes_dc.convert(model, p=0.5, sampler="gaussian")
    with pytest.raises(ValueError, match=r'Layers 0 have sampler="gaussian".*Use sampler='):
        joint_samples(model, torch.randn(2, 6), 3)


def test_predictions_before_and_after_are_not_disturbed(network):
    """Whatever is remembered of a model between calls knows which masks its inputs share."""
    x = torch.randn(3, 1, 28, 28)
    ids = torch.arange(3)

    def predict():
        return bayes_dc.predict_with_uncertainty(network, x, 6, sample_ids=ids).mean

    before = [predict(), predict(), predict()]
    joint = [joint_samples(network, x, 6) for _ in range(3)]
    after = [predict(), predict()]
    for other in (*before[1:], *after):
        assert (other - before[0]).abs().max() < 1e-5
    for other in joint[1:]:
        assert (other - joint[0]).abs().max() < 1e-5
    assert (joint[0].mean(0) - before[0]).abs().max() > 1e-4


def test_predictions_of_another_thread_keep_their_own_masks():
    """The scope of the layers is another while joint samples are drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(DropConnectLinear(6, 3, p=0.5, scope="sample"))
    x, drawn, wrong = torch.randn(4, 6), [], []
    want = bayes_dc.predict_with_uncertainty(model, x, 5).mean
    worker = threading.Thread(
        target=lambda: drawn.extend(joint_samples(model, x, 5) for _ in "123")
    )
    worker.start()
    while worker.is_alive():
        if not torch.equal(bayes_dc.predict_with_uncertainty(model, x, 5).mean, want):
            wrong.append(1)
    worker.join()
    assert len(drawn) == 3
    assert not wrong


@pytest.mark.parametrize("x", [[1.0, 2.0], torch.tensor(1.0)], ids=["list", "scalar"])
def test_inputs_that_are_no_rows_are_refused(x):
    with pytest.raises(TypeError, match="x must be a tensor with the inputs along its first dim"):
        joint_samples(linear(), x, 3)
