"""convert, its report, and restore: the same objects before, between and after."""

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear, convert, restore
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys, dropconnect_layers, number_layers


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
    assert tuple(report.converted) == ("first", "body.0", "last")
    assert report.left_alone == {
        "own": "a subclass of nn.Linear (Scaled), whose forward may be its own"
    }
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


def test_select_sees_names_and_layers():
    model, seen = network(), []

    def select(name, layer):
        seen.append((name, type(layer)))
        return layer.out_features == 5

    report = convert(model, select=select)
    assert seen == [("first", nn.Linear), ("body.0", nn.Linear), ("last", nn.Linear)]
    assert tuple(report.converted) == ("first", "body.0")
    assert report.left_alone["last"] == "not selected"


def test_exclude_last():
    model = network()
    report = convert(model, exclude_last=True)
    assert tuple(report.converted) == ("first", "body.0")
    assert report.left_alone["last"] == "the last layer (exclude_last)"
    model = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 2, 1))
    assert tuple(convert(model, exclude_last=True).converted) == ("0",)
    assert type(model[2]) is nn.Conv2d


@pytest.mark.parametrize(
    ("layer", "form"),
    [(nn.Linear(4, 3), DropConnectLinear), (nn.Conv2d(4, 3, 1), DropConnectConv2d)],
)
def test_a_layer_is_a_model(layer, form):
    assert tuple(convert(layer).converted) == ("",)
    assert type(layer) is form
    assert restore(layer) == ("",)
    assert type(layer) is form.__mro__[2]


def test_converted_layers_are_left_as_they_are():
    model = network()
    convert(model, p=0.1, select=lambda name, _: name == "first")
    report = convert(model, p=0.5)
    assert report.left_alone["first"] == (
        "already a DropConnect layer (p=0.1 (0.0996094), scope='row', scale='inverted')"
    )
    assert (model.first.p, model.last.p) == (0.1, 0.5)
    assert [model.first.mask_layer, model.body[0].mask_layer, model.last.mask_layer] == [0, 1, 2]


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


def test_the_report_shows_a_table():
    model = nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 8, 3, padding="same", bias=False), norm=nn.BatchNorm2d(8),
            head=nn.Linear(8, 4), cell=nn.LSTM(4, 1), own=Scaled(4, 4),
        )
    )  # fmt: skip
    report = convert(model, p={"head": 0.5, "*": 0.25}, scale="none", sampler={"head": "gaussian"})
    assert (
        str(report)
        == """\
converted 2 layers: masks on 248 weights, of 316 parameters of the model
  stem  Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=same, bias=False): p=0.25, \
scope='sample', scale='none'
  head  Linear(in_features=8, out_features=4, bias=True): p=0.5, scope='row', scale='none', \
sampler='gaussian'
left alone:
  cell  LSTM holds weight_ih_l0, weight_hh_l0 itself; only nn.Linear and nn.Conv2d have a \
DropConnect form
  own   a subclass of nn.Linear (Scaled), whose forward may be its own"""
    )
    layer = nn.Linear(2, 2)
    assert (
        str(convert(layer))
        == """\
converted 1 layer: masks on 4 weights, of 6 parameters of the model
  (the model itself)  Linear(in_features=2, out_features=2, bias=True): p=0.5, scope='row'
left alone:
  nothing"""
    )


def test_a_dry_run_says_the_same_and_changes_nothing():
    model = network()
    before = {name: (type(m), {*m.__dict__}) for name, m in model.named_modules()}
    planned = convert(model, p=0.25, exclude_last=True, dry_run=True)
    assert {name: (type(m), {*m.__dict__}) for name, m in model.named_modules()} == before
    assert str(planned).startswith("would convert 2 layers: ")
    done = convert(model, p=0.25, exclude_last=True)
    assert (planned.dry_run, done.dry_run) == (True, False)
    assert dataclasses.replace(planned, dry_run=False) == done


def test_layers_that_cannot_be_numbered_are_given_back():
    """All or nothing, also where the last step is refused."""
    model = nn.Sequential(DropConnectLinear(2, 2), DropConnectLinear(2, 2), nn.Linear(2, 2))
    model[0].mask_layer = model[1].mask_layer = 3
    with pytest.raises(ValueError, match="both carry mask layer number 3"):
        convert(model)
    assert type(model[2]) is nn.Linear
    assert set(model[2].__dict__) == set(nn.Linear(1, 1).__dict__)
    number_layers(model, renumber=True)
    convert(model)
    assert model[2].mask_layer == 2


def test_a_model_in_a_run_is_not_converted():
    model = network()
    convert(model, select="first")
    with MaskKeys(0).attached(model):
        with pytest.raises(RuntimeError, match="Layer 'first' draws its masks from attached Mask"):
            convert(model)
        assert type(model.last) is nn.Linear
    convert(model)


def test_modes_follow_train_and_eval():
    """Both return the model, and reach layers at any depth."""
    model = nn.Sequential(network())
    convert(model)
    assert model.eval() is model
    assert not any(m.training for m in model.modules())
    assert model.train() is model
    assert all(m.training for m in model.modules())
