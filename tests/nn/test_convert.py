"""convert and restore: the same objects before, between and after."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from bayes_dc import DropConnectLinear, convert, restore
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys, dropconnect_layers


class Scaled(nn.Linear):
    """A subclass whose forward is its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def network():
    return nn.Sequential(
        OrderedDict(
            first=nn.Linear(6, 5),
            act=nn.ReLU(),
            body=nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5)),
            own=Scaled(5, 5),
            last=nn.Linear(5, 3, bias=False),
        )
    )


def test_layers_keep_their_objects_names_and_values():
    model = network()
    layers, state = (
        dict(model.named_modules()),
        {k: v.clone() for k, v in model.state_dict().items()},
    )
    parameters = dict(model.named_parameters())
    report = convert(model, p=0.25, scope="sample", scale="none")
    assert report.converted == ("first", "body.0", "last")
    assert report.skipped == {"own": "a subclass of nn.Linear (Scaled) with a forward of its own"}
    for name, module in model.named_modules():
        assert module is layers[name]
        assert isinstance(module, DropConnectLinear) == (name in report.converted)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
    assert list(model.state_dict()) == list(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    for number, layer in enumerate(dropconnect_layers(model).values()):
        assert (layer.p, layer.scope, layer.scale, layer.mask_layer) == (
            0.25,
            "sample",
            "none",
            number,
        )


def test_evaluation_is_as_before_and_training_is_not():
    model, x = network().eval(), torch.randn(4, 6)
    want = model(x)
    convert(model)
    assert torch.equal(model(x), want)
    assert not torch.equal(model.train()(x), want)


def test_every_layer_drops_the_share_that_was_asked_for():
    """p reaches all layers: none ramped, none at the default."""
    model = mlp(8, 3, hidden=(7, 6))
    convert(model, p=0.37)
    assert [layer.p for layer in dropconnect_layers(model).values()] == [0.37] * 3
    assert repr(model).count("p=0.37 (0.367188)") == 3


def test_restore_gives_back_the_model_to_the_bit():
    model, x = network().eval(), torch.randn(4, 6)
    want, shown = model(x), repr(model)
    attributes = {n: set(m.__dict__) for n, m in model.named_modules()}
    convert(model)
    assert restore(model) == ("first", "body.0", "last")
    assert repr(model) == shown
    assert {n: set(m.__dict__) for n, m in model.named_modules()} == attributes
    assert type(model.first) is nn.Linear
    assert torch.equal(model(x), want)
    assert torch.equal(model.train()(x), want)
    assert restore(model) == ()
    convert(model, p=0.1)  # and again
    assert model.first.p == 0.1


class Tenfold(DropConnectLinear):
    def forward(self, x):
        return 10 * super().forward(x)


def test_restore_leaves_subclasses_alone():
    model, x = nn.Sequential(Tenfold(6, 3), DropConnectLinear(3, 2)).eval(), torch.randn(4, 6)
    want = model(x)
    assert restore(model) == ("1",)
    assert torch.equal(model(x), want)


@pytest.mark.parametrize("function", [convert, restore])
def test_what_is_no_model_is_refused(function):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module; got \[1\]\."):
        function([1])


@pytest.mark.parametrize("scale", ["inverted", "none"])
def test_the_fused_transformer_layer_does_not_read_past_a_layer(scale):
    """Without gradients torch's encoder layer takes the weights, unless a layer has a hook."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    attributes = {name: len(m._forward_pre_hooks) for name, m in model.named_modules()}
    convert(model, scale=scale)
    keys = MaskKeys(0)
    keys.set(pass_ids=0, sample_ids=torch.arange(3))

    def assert_equal_without_gradients():
        want = model(x)
        with torch.no_grad():
            # Fused sums round in another order.
            torch.testing.assert_close(model(x), want, rtol=0, atol=64 * 2.0**-24)

    assert_equal_without_gradients()
    with keys.attached(model):
        assert_equal_without_gradients()
    assert_equal_without_gradients()
    restore(model)
    assert {name: len(m._forward_pre_hooks) for name, m in model.named_modules()} == attributes


def test_hooks_and_optimizers_stay_valid():
    model = network()
    calls = []
    model.first.register_forward_hook(lambda *_: calls.append("forward"))
    model.first.register_full_backward_hook(lambda *_: calls.append("backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    convert(model)
    before = model.first.weight.detach().clone()
    model(torch.randn(4, 6, requires_grad=True)).sum().backward()
    optimizer.step()
    assert calls == ["forward", "backward"]
    assert not torch.equal(model.first.weight, before)
    restore(model)
    model(torch.randn(4, 6, requires_grad=True)).sum().backward()
    assert calls == ["forward", "backward"] * 2


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    convert(model)
    assert model[2].weight is model[0].weight
    assert len(list(model.parameters())) == 3
    # One weight, two layers, two masks.
    assert [model[0].mask_layer, model[2].mask_layer] == [0, 1]


def test_a_layer_used_twice_is_converted_once():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert convert(model).converted == ("0",)
    assert model[0] is model[2]


def test_select_sees_names_and_layers():
    model, seen = network(), []

    def select(name, layer):
        seen.append((name, type(layer)))
        return layer.out_features == 5

    report = convert(model, select=select)
    assert seen == [("first", nn.Linear), ("body.0", nn.Linear), ("last", nn.Linear)]
    assert report.converted == ("first", "body.0")
    assert report.skipped["last"] == "not selected"


def test_exclude_last():
    model = network()
    report = convert(model, exclude_last=True)
    assert report.converted == ("first", "body.0")
    assert report.skipped["last"] == "the last linear layer (exclude_last)"


def test_a_linear_layer_is_a_model():
    layer = nn.Linear(4, 3)
    assert convert(layer).converted == ("",)
    assert isinstance(layer, DropConnectLinear)


def test_parametrized_layers_are_refused_with_the_reason():
    model = network()
    parametrizations.weight_norm(model.first)
    report = convert(model)
    assert report.skipped["first"] == "parametrized: remove the parametrization first"
    assert report.converted == ("body.0", "last")


def test_layers_whose_forward_is_not_called_are_left_alone():
    """nn.MultiheadAttention reads the weights of its out_proj itself."""
    model = nn.TransformerEncoderLayer(8, 2, 16)
    report = convert(model)
    assert report.converted == ("linear1", "linear2")
    assert report.skipped == {
        "self_attn.out_proj": "a subclass of nn.Linear (NonDynamicallyQuantizableLinear) with a "
        "forward of its own"
    }


def test_converted_layers_are_left_as_they_are():
    model = network()
    convert(model, p=0.1, select=lambda name, _: name == "first")
    report = convert(model, p=0.5)
    assert report.skipped["first"] == "already a DropConnect layer"
    assert (model.first.p, model.last.p) == (0.1, 0.5)
    assert [model.first.mask_layer, model.body[0].mask_layer, model.last.mask_layer] == [0, 1, 2]


@pytest.mark.parametrize(
    ("model", "options", "seen"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), {}, "the model has no torch.nn.Linear."),
        (
            nn.Linear(2, 2),
            {"exclude_last": True},
            "the model (the last linear layer (exclude_last)).",
        ),
        (
            nn.Sequential(Scaled(2, 2), nn.Linear(2, 2)),
            {"select": lambda *_: False},
            "0 (a subclass of nn.Linear (Scaled) with a forward of its own), 1 (not selected).",
        ),
    ],
    ids=["none", "last", "all-skipped"],
)
def test_nothing_to_convert_is_an_error_that_says_why(model, options, seen):
    with pytest.raises(ValueError, match="convert found no layer to replace: ") as error:
        convert(model, **options)
    assert f"no layer to replace: {seen}\n" in str(error.value)
    assert "check `select` and `exclude_last`" in str(error.value)


@pytest.mark.parametrize(
    "options", [{"p": 1.0}, {"p": "0.5"}, {"scope": "rows"}, {"scale": "half"}], ids=str
)
def test_bad_options_change_nothing(options):
    model = network()
    with pytest.raises((ValueError, TypeError), match="must be"):
        convert(model, **options)
    assert not dropconnect_layers(model)
    assert set(model.first.__dict__) == set(nn.Linear(1, 1).__dict__)


def test_no_random_number_is_drawn():
    model = network()
    state = torch.get_rng_state()
    convert(model)
    restore(model)
    assert torch.equal(torch.get_rng_state(), state)
