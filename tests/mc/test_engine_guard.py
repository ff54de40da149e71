"""An engine knows when the model is no longer what it was planned for, and says what changed."""

import copy
import pickle
import threading

import pytest
import torch
from engine_cases import assert_near, convnet, inputs, network
from torch import nn

from bayes_dc import DropConnectLinear, MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.engine_guard import Guard, ModelChanged
from bayes_dc.nn import number_layers


def assign(model):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def new_data(model):
    model[4].weight.data = model[4].weight.data.clone()


def new_parameter(model):
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())


def new_buffer(model):
    model[1].running_mean = model[1].running_mean.clone()


def new_module(model):
    model[2] = nn.Tanh()


def another_p(model):
    model[8].p = 0.25


def another_eps(model):
    model[5].eps = 1e-3


def more(model):
    model.append(nn.Identity())


def numbers(model):
    model[4].mask_layer, model[8].mask_layer = 5, 4


def no_bias(model):
    model[8].bias = None


def attribute_gone(model):
    del model[3].ceil_mode


def hook(model):
    model[4].register_forward_hook(lambda module, given, result: 2 * result)


def forward(model):
    model[2].forward = torch.tanh


def converted(model):
    convert(model, p=0.5, select=lambda name, _: name == "0")


CHANGES = {
    hook: "A call of module '4' does something else than when the engine was planned: its class, "
    "its forward or its hooks are others. Make a new MonteCarloEngine.",
    forward: "A call of module '2' does something else",
    converted: "A call of module '0' does something else",
    assign: "Parameter '0.weight' is another tensor, or has other memory, than when the engine was "
    "planned: it was replaced (assigned to, or loaded with load_state_dict(assign=True)).",
    new_data: "Parameter '4.weight' is another tensor, or has other memory, than when the engine "
    "was planned: it was moved or converted (model.to(…), parameter.data = …). Write into it",
    nn.Module.double: "Parameter '0.weight' is another tensor, or has other memory",
    new_parameter: "Parameter '4.weight' is another tensor, or has other memory, than when",
    new_buffer: "Buffer '1.running_mean' is another tensor",
    new_module: "The parts of the model are others than when the engine was planned: 0 (Conv2d), ",
    another_p: "Attribute 'p' of module '8' was 0.5 when the engine was planned and is 0.25 now. "
    "Make a new MonteCarloEngine, or set it back.",
    another_eps: "Attribute 'eps' of module '5' was 1e-05 when the engine was planned and is 0.001",
    more: "9 (Identity) now. Make a new MonteCarloEngine.",
    numbers: "Attribute 'mask_layer' of module '4' was 0",
    no_bias: "Parameter '8.bias' is another tensor",
    attribute_gone: "Attribute 'ceil_mode' of module '3' was 'set' when the engine was planned and",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_what_an_engine_cannot_follow_is_named(change):
    model = convnet()
    guard = Guard(model)
    guard.check()
    change(model)
    with pytest.raises(ModelChanged) as caught:
        guard.check()
    assert CHANGES[change] in str(caught.value)


def test_an_engine_refuses_and_can_be_made_again():
    model = network(scope="row")
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, 5)
    engine(x)
    model[1].p = 0.25
    with pytest.raises(ModelChanged, match="Attribute 'p' of module '1' was"):
        engine(x)
    got = MonteCarloEngine(model, x, 5)(x, return_samples=True)
    assert_near(got, predict_with_uncertainty(model, x, 5, return_samples=True))
    model[1].p = 0.5
    engine(x)


def test_what_it_follows_is_no_change():
    model = convnet()
    number_layers(model)
    guard = Guard(model)
    model.train()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    predict_with_uncertainty(model, inputs(model, 2), 3, engine="folded")
    model.requires_grad_(False)
    guard.check()


def test_it_keeps_no_module_alive():
    import gc
    import weakref

    model = convnet()
    guard, dead = Guard(model), weakref.ref(model[2])
    model[2] = nn.ReLU()
    gc.collect()
    assert dead() is None
    assert guard.difference() is not None


class Own(nn.Module):
    """A forward that reads all kinds of attributes."""

    power = 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.head = DropConnectLinear(6, 6), DropConnectLinear(6, 3)
        self._divisor, self.shift = 2.0, torch.arange(6.0)
        self.factors, self.named = [1.0, [2.0]], {"by": 3.0}
        self.activation = torch.relu

    def forward(self, x):
        y = self.one(x) / self._divisor * self.factors[1][0] * self.named["by"]
        return self.head(self.activation(y + self.shift) ** self.power)


OWN = {
    "hidden": (lambda m: setattr(m, "_divisor", 4.0), "'_divisor' of the model was 2.0 when"),
    "array": (lambda m: setattr(m, "_divisor", torch.ones(6)), "and is a tensor [6] now"),
    "tensor": (lambda m: setattr(m, "shift", m.shift + 1), "'shift' of the model was a tensor [6]"),
    "memory": (
        lambda m: setattr(m.shift, "data", m.shift + 1),
        "Attribute 'shift' is another tensor, or has other memory",
    ),
    "list": (lambda m: m.factors[1].insert(0, 3.0), "was [1.0, [2.0]] when the engine was planned"),
    "dictionary": (lambda m: m.named.update(by=2.0), "was {'by': 3.0} when the engine"),
    "function": (lambda m: setattr(m, "activation", torch.tanh), "and is <built-in method tanh"),
    "class": (lambda m: setattr(m, "power", 2), "'power' of the model was 1 when"),
}


@pytest.mark.parametrize("kind", OWN)
def test_attributes_of_the_users_own_are_followed(kind):
    """An engine would go on with the old ones, and say nothing."""
    model, x = Own(), torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    before = predict_with_uncertainty(model, x, 5).mean
    guard = Guard(model, [model.shift])
    guard.check()
    change, said = OWN[kind]
    change(model)
    assert not torch.equal(predict_with_uncertainty(model, x, 5).mean, before)
    with pytest.raises(ModelChanged) as caught:
        guard.check()
    assert said in str(caught.value)


def test_a_kept_engine_follows_attributes():
    model, x = Own(), torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    for scale in (2.0, 0.5):
        model._divisor, model.shift = scale, model.shift * scale
        got, want = (
            predict_with_uncertainty(model, x, 5, engine=kind, return_samples=True)
            for kind in ("engine", "folded")
        )
        assert_near(got, want)


def test_an_engine_runs_while_its_model_is_traced_or_predicts():
    """Both put other things in the place of weights and forwards, for a while."""
    model = network(scope="row", dropout=0.25)
    x = inputs(model, 3)
    engine = MonteCarloEngine(model, x, 5)
    want, errors = engine(x), []

    def use():
        try:
            while worker.is_alive():
                assert torch.equal(engine(x).mean, want.mean)
        except Exception as error:  # of another thread
            errors.append(error)

    worker = threading.Thread(
        target=lambda: [
            predict_with_uncertainty(model, x, 5, engine="folded"),
            MonteCarloEngine(model, x, 5),
        ]
    )
    user = threading.Thread(target=use)
    worker.start()
    user.start()
    worker.join()
    user.join()
    assert not errors


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_cannot_be_copied(way):
    model = network(scope="row")
    engine = MonteCarloEngine(model, inputs(model, 3), 5)
    with pytest.raises(
        TypeError, match=r"An engine cannot be copied or pickled: its calls are bou"
    ):
        way(engine)
