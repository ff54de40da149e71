"""Copies and pickles made while MaskKeys are attached: of the model as it is without them."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from bayes_dc import DropConnectLinear, convert, predict_with_uncertainty
from bayes_dc.nn import MaskKeys

IDS = torch.arange(3)


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": saved,
    "average": lambda model: AveragedModel(model).module,
}


def network():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Linear(16, 4),
        nn.AlphaDropout(0.5),
        nn.Linear(4, 3),
    )
    convert(model)
    return model


def images():
    return torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [False, True])
def test_a_copy_is_not_attached_and_the_original_stays(training, way):
    model, x = network().train(training), images()
    expected = copy.deepcopy(model).eval()(x)
    keys = MaskKeys(5)
    with keys.attached(model):
        keys.set(pass_ids=2, sample_ids=IDS)
        masked = model(x)
        twin = WAYS[way](model)
        keys.set(pass_ids=2, sample_ids=IDS)
        assert torch.equal(model(x), masked)
        assert not torch.equal(masked, expected)
        assert torch.equal(twin.eval()(x), expected)
        for module in twin.modules():
            assert not {"forward", "__getstate__"} & module.__dict__.keys()
            assert not module._forward_pre_hooks  # in evaluation mode
        with MaskKeys(5).attached(twin):
            pass
        got = predict_with_uncertainty(twin, x, T=4)
    want = predict_with_uncertainty(model, x, T=4)
    assert torch.equal(got.mean, want.mean)
    assert torch.equal(model.eval()(x), expected)
    for module in model.modules():
        assert not {"forward", "__getstate__"} & module.__dict__.keys()


def test_a_copy_in_training_draws_masks_of_its_own():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    convert(model)
    with MaskKeys(5).attached(model):
        twin = copy.deepcopy(model)
    x = torch.randn(2, 3, 8)
    assert twin.training
    assert twin.linear1._forward_pre_hooks  # asks for forward, as in the original
    assert not torch.equal(twin(x), twin(x))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy], ids=["shallow", "deep"])
def test_single_modules(way):
    """A shallow copy has hooks of its own, and leaves those of the attached layer."""
    for layer in (DropConnectLinear(4, 4).eval(), nn.Dropout(0.5).eval()):
        x, keys = torch.ones(3, 4), MaskKeys(5)
        with keys.attached(layer):
            keys.set(pass_ids=2, sample_ids=IDS)
            want = layer(x)
            other = way(layer)
            assert not other._forward_pre_hooks
            assert len(layer._forward_pre_hooks) == 1
            plain = layer.__class__.forward(other, x)
            assert torch.equal(other(x), plain)
            keys.set(pass_ids=2, sample_ids=IDS)
            assert torch.equal(layer(x), want)


def test_parametrised_layers():
    """Torch copies their attributes one by one."""
    layer = parametrizations.weight_norm(DropConnectLinear(4, 4)).eval()
    x, keys = torch.ones(3, 4), MaskKeys(5)
    expected = layer(x)
    with keys.attached(layer):
        keys.set(pass_ids=2, sample_ids=IDS)
        other = copy.deepcopy(layer)
        assert not torch.equal(layer(x), expected)
    assert other.masks is None
    assert torch.equal(other(x), expected)


def test_a_subclass_of_dropout_keeps_what_it_says_of_its_state():
    class Counting(nn.Dropout):
        def __getstate__(self):
            return dict(self.__dict__, copied=True)

    module = Counting(0.5)
    with MaskKeys(5).attached(module):
        other = copy.deepcopy(module)
    assert other.copied
    assert "forward" not in other.__dict__


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_of_keys_hold_coordinates_and_no_model(way):
    model, x, keys = network().eval(), images(), MaskKeys(5)
    with keys.attached(model):
        keys.set(pass_ids=2, sample_ids=IDS)
        want = model(x)
        other = WAYS[way](keys)
        assert other.dropout == ()
        other.detach()
        keys.set(pass_ids=2, sample_ids=IDS)
        assert torch.equal(model(x), want)
    with other.attached(model):
        assert torch.equal(model(x), want)
