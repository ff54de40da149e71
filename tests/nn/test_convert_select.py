"""select, and options for each layer: names, patterns, classes and functions."""

import re

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear, convert
from bayes_dc.nn import dropconnect_layers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 1)
        self.conv2 = nn.Conv2d(2, 2, 1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1)
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer10 = nn.Sequential(Block())
        self.fc = nn.Linear(2, 3)


LAYER1 = ("layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1", "layer1.1.conv2")
ALL = ("stem", *LAYER1, "layer10.0.conv1", "layer10.0.conv2", "fc")


@pytest.mark.parametrize(
    ("select", "want"),
    [
        (None, ALL),
        ("fc", ("fc",)),
        ("layer1", LAYER1),  # and not layer10
        (["layer1.1", "fc"], ("layer1.1.conv1", "layer1.1.conv2", "fc")),
        ("*.conv2", ("layer1.0.conv2", "layer1.1.conv2", "layer10.0.conv2")),
        ("layer[1]*", tuple(name for name in ALL if name.startswith("layer"))),
        (nn.Linear, ("fc",)),
        ((nn.Linear, "stem"), ("stem", "fc")),
        ([nn.Linear, nn.Conv2d], ALL),
        ("!stem", ALL[1:]),
        (["*", "!layer1", "layer1.1.conv2"], (ALL[0], LAYER1[3], *ALL[5:])),
        (["!*.conv1", "!fc"], ("stem", LAYER1[1], LAYER1[3], "layer10.0.conv2")),
        (lambda name, layer: "layer1." in name and layer.bias is not None, LAYER1),
        (lambda name, layer: 1 if name == "fc" else 0, ("fc",)),
    ],
)
def test_select(select, want):
    model = Network()
    report = convert(model, select=select)
    assert tuple(report.converted) == want == tuple(dropconnect_layers(model))
    assert report.left_alone == {name: "not selected" for name in ALL if name not in want}


def test_select_by_any_name_of_a_layer():
    model = Network()
    model.head = model.fc
    report = convert(model, select="head")
    assert tuple(report.converted) == ("fc",)
    assert report.converted["fc"].endswith("; also head")


@pytest.mark.parametrize("name", ["heads[0]", "a*b?", "[!x]", "!not"])
def test_a_name_may_hold_what_patterns_are_made_of(name):
    model = nn.Sequential()
    model.add_module(name, nn.Sequential(nn.Linear(2, 2)))
    if name.startswith("!"):
        with pytest.raises(ValueError, match="select names 'not', and no linear"):
            convert(model, select=name)
        return
    assert tuple(convert(model, p={name: 0.25}, select=name).converted) == (f"{name}.0",)


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("layer2", "select names 'layer2', and no linear or convolutional layer matches."),
        ("!layer2", "select names 'layer2', and no linear or convolutional layer matches."),
        (["fc", "head", nn.Bilinear], "select names 'head', Bilinear, and no linear or"),
    ],
)
def test_a_name_that_means_nothing_is_refused(select, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        convert(Network(), select=select)
    assert "A name stands for the layer or for all layers below it, * for any" in str(error.value)
    assert f"Layers: {', '.join(ALL)}." in str(error.value)


def test_a_long_list_of_layers_is_cut():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(15)))
    with pytest.raises(ValueError, match=r"10, 11, … \(15 in all\)\.$"):
        convert(model, select="x")
    with pytest.raises(ValueError, match=r"Layers: none\.$"):
        convert(nn.ReLU(), select="x")
    with pytest.raises(ValueError, match=r"Layers: the model itself\.$"):
        convert(nn.Linear(1, 1), select="x")


@pytest.mark.parametrize("select", [3, [3], {"fc": True}])
def test_select_of_another_kind_is_refused(select):
    got = select[0] if isinstance(select, list) else select
    text = f"a class, or a list of these; got {got!r}."
    with pytest.raises(TypeError, match=re.escape(text)):
        convert(Network(), select=select)


def test_scope_is_that_of_the_layer_where_none_is_given():
    model = Network()
    convert(model)
    assert {layer.scope for layer in dropconnect_layers(model).values()} == {"row", "sample"}
    assert (model.fc.scope, model.stem.scope) == (
        DropConnectLinear(1, 1).scope,
        DropConnectConv2d(1, 1, 1).scope,
    )


def test_one_scope_for_all_layers():
    model = Network()
    convert(model, scope="pass")
    assert {layer.scope for layer in dropconnect_layers(model).values()} == {"pass"}


def test_options_by_mapping_and_by_function():
    model = Network()
    convert(
        model,
        p={"layer1.1": 0.125, nn.Conv2d: 0.25, "*": 0.5},
        scope={nn.Linear: "sample"},
        sampler=lambda name, layer: "bernoulli",
    )
    want = dict.fromkeys(ALL, 0.25) | {"layer1.1.conv1": 0.125, "layer1.1.conv2": 0.125, "fc": 0.5}
    assert {name: layer.p for name, layer in dropconnect_layers(model).items()} == want
    assert {layer.scope for layer in dropconnect_layers(model).values()} == {"sample"}
    model = Network()
    convert(
        model,
        p=lambda name, layer: 0.5 if isinstance(layer, nn.Linear) else 0.25,
        sampler={"fc": "gaussian"},
    )
    assert (model.fc.p, model.stem.p) == (0.5, 0.25)
    assert (model.fc.sampler, model.stem.sampler) == ("gaussian", "bernoulli")


def test_a_mapping_must_have_a_p_for_every_layer():
    with pytest.raises(ValueError, match=r"p has no value for layer 'fc'\. Add one under its"):
        convert(Network(), p={nn.Conv2d: 0.5})
    with pytest.raises(ValueError, match=r"such as '\*', or leave the layer out with `select`\."):
        convert(Network(), p=lambda name, layer: None)
    convert(Network(), p={nn.Conv2d: 0.5}, select=nn.Conv2d)


@pytest.mark.parametrize("option", ["p", "scope", "sampler"])
def test_keys_of_a_mapping_are_checked(option):
    with pytest.raises(ValueError, match=f"{option} names 'fc2', and no linear"):
        convert(Network(), **{option: {"fc2": 0.5, "*": 0.5}})
    with pytest.raises(TypeError, match=f"The keys of {option} must be names, patterns such as "):
        convert(Network(), **{option: {3: 0.5, "*": 0.5}})


@pytest.mark.parametrize(
    ("options", "error", "layer"),
    [
        ({"p": {"fc": 1.0, "*": 0.5}}, ValueError, r"layer 'fc', Linear"),
        ({"p": {"fc": "0.5", "*": 0.5}}, TypeError, r"layer 'fc', Linear"),
        ({"scope": "row"}, ValueError, r"layer 'stem', Conv2d"),
        ({"scope": {"fc": "rows"}}, ValueError, r"layer 'fc', Linear"),
        ({"sampler": "gaussian"}, ValueError, r"layer 'stem', Conv2d"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_refused_option_names_the_layer_and_changes_nothing(options, error, layer, dry_run):
    model = Network()
    with pytest.raises(error, match=rf"\(for {layer}\)"):
        convert(model, dry_run=dry_run, **options)
    assert not dropconnect_layers(model)
    assert set(model.fc.__dict__) == set(nn.Linear(1, 1).__dict__)


def test_weights_are_masked_with_the_p_of_their_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 64, bias=False), nn.Linear(64, 4096, bias=False))
    convert(model, p={"0": 0.25, "1": 0.75}, scope="pass", scale="none")
    for layer, x, share in ((model[0], torch.eye(4096), 0.25), (model[1], torch.eye(64), 0.75)):
        nn.init.ones_(layer.weight)
        kept = layer(x).mean().item()
        assert abs(kept - (1 - share)) < 5 * (share * (1 - share) / layer.weight.numel()) ** 0.5
