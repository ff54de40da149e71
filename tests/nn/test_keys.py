"""Layer numbers, and what attached MaskKeys do to a model."""

import copy
import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear, convert, restore
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys, dropconnect_layers, number_layers

IDS = torch.arange(4)


def network():
    """Layers at three depths, one of them used twice, and a plain one between."""
    shared = DropConnectLinear(4, 4)
    return nn.Sequential(
        OrderedDict(
            stem=DropConnectLinear(4, 4),
            plain=nn.Linear(4, 4),
            block=nn.Sequential(shared, nn.ReLU(), shared),
            head=DropConnectLinear(4, 2),
        )
    )


def numbers(model):
    return {name: layer.mask_layer for name, layer in dropconnect_layers(model).items()}


def test_layers_are_numbered_in_modules_order_and_others_are_not_counted():
    model = network()
    assert numbers(model) == {"stem": None, "block.0": None, "head": None}
    want = {"stem": 0, "block.0": 1, "head": 2}
    assert number_layers(model) == want == numbers(model)
    assert number_layers(model) == want


def test_a_layer_is_a_model_too():
    layer = DropConnectLinear(2, 2)
    assert number_layers(layer) == {"": 0}
    assert number_layers(nn.Linear(2, 2)) == {}


def test_numbers_in_use_stay_and_new_layers_get_the_next_ones():
    model = network()
    number_layers(model)
    model = nn.Sequential(DropConnectLinear(4, 4), *model, DropConnectLinear(2, 2))
    assert number_layers(model) == {"0": 3, "1": 0, "3.0": 1, "4": 2, "5": 4}
    assert number_layers(model, renumber=True) == {"0": 0, "1": 1, "3.0": 2, "4": 3, "5": 4}


def test_new_numbers_lie_above_all_in_use():
    """A loaded model may have gaps; a number from a gap could have been drawn with before."""
    model = nn.Sequential(DropConnectLinear(4, 4), DropConnectLinear(4, 4))
    model[1].mask_layer = 5
    assert number_layers(model) == {"0": 6, "1": 5}


def test_equal_numbers_are_refused_with_the_remedy():
    layer = DropConnectLinear(4, 4)
    number_layers(layer)
    model = nn.Sequential(layer, copy.deepcopy(layer))
    with pytest.raises(ValueError, match="both carry mask layer number 0") as error:
        number_layers(model)
    assert str(error.value).startswith("Layers '0' and '1' both carry mask layer number 0, so they")
    assert "bayes_dc.nn.number_layers(model, renumber=True)" in str(error.value)
    with pytest.raises(ValueError, match="both carry mask layer number 0"):
        MaskKeys(0).attach(model)
    assert model[0].masks is None
    assert number_layers(model, renumber=True) == {"0": 0, "1": 1}


def test_numbers_travel_with_the_state_dict():
    """Also through a file read with weights_only, which may hold nothing but tensors and text."""
    model = network()
    number_layers(model)
    model = nn.Sequential(DropConnectLinear(4, 4), *model)
    number_layers(model)
    other = copy.deepcopy(model)
    number_layers(other, renumber=True)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert numbers(other) == numbers(model) == {"0": 3, "1": 0, "3.0": 1, "4": 2}


def test_a_state_dict_without_numbers_leaves_them():
    model = DropConnectLinear(4, 2)
    number_layers(model)
    model.mask_layer = 5
    model.load_state_dict(nn.Linear(4, 2).state_dict(), strict=True)
    assert model.mask_layer == 5
    fresh = DropConnectLinear(4, 2)
    model.load_state_dict(fresh.state_dict())
    assert model.mask_layer == 5


def test_masks_depend_on_seed_pass_sample_and_layer_only():
    """Each coordinate alone changes the output; all of them together fix it."""
    model, x = DropConnectLinear(32, 8), torch.ones(4, 32)

    def run(*, seed=1, step=2, ids=IDS, layer=0):
        model.mask_layer = layer
        keys = MaskKeys(seed)
        with keys.attached(model):
            keys.set(pass_ids=step, sample_ids=ids)
            return model(x)

    outputs = [run(), run(seed=2), run(seed=1 + 2**32), run(step=3), run(ids=IDS + 9), run(layer=1)]
    outputs.append(run(ids=torch.tensor([1, 0, 3, 2])))
    assert len(torch.stack(outputs).unique(dim=0)) == 7
    torch.rand(3)
    assert torch.equal(run(), outputs[0])
    assert torch.equal(outputs[-1], outputs[0][[1, 0, 3, 2]])


@pytest.mark.parametrize("make", [int, torch.tensor], ids=["int", "tensor"])
def test_equal_seeds_of_any_kind_give_equal_masks(make):
    """The value counts, not where a tensor lies."""
    model, x = DropConnectLinear(16, 8), torch.ones(4, 16)
    number_layers(model)
    outputs = []
    for seed in (5, make(5), make(5)):
        keys = MaskKeys(seed)
        with keys.attached(model):
            keys.set(pass_ids=0, sample_ids=IDS)
            outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed must be an integer in 0 … 2\*\*64 − 1; got"):
        MaskKeys(seed)


def test_ids_are_taken_modulo_two_to_the_32():
    model, x = DropConnectLinear(16, 8), torch.ones(4, 16)
    keys = MaskKeys(0)
    keys.attach(model)
    keys.set(pass_ids=3, sample_ids=IDS)
    want = model(x)
    keys.set(pass_ids=3 - 2**32, sample_ids=IDS + 2**32)
    assert torch.equal(model(x), want)


def test_attached_layers_draw_in_both_modes_and_detached_ones_as_before():
    model, x = DropConnectLinear(16, 8), torch.ones(4, 16)
    keys = MaskKeys(0)
    with keys.attached(model):
        keys.set(pass_ids=0, sample_ids=IDS)
        drawn = model.train()(x)
        assert torch.equal(model.eval()(x), drawn)
    assert torch.equal(model(x), torch.nn.functional.linear(x, model.weight, model.bias))
    assert not torch.equal(model.train()(x), model(x))


def test_attached_lets_go_after_an_exception():
    model = DropConnectLinear(4, 2)
    keys = MaskKeys(0)
    with pytest.raises(ZeroDivisionError), keys.attached(model):
        raise ZeroDivisionError
    assert model.masks is None


def test_layers_of_other_keys_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), DropConnectLinear(4, 2))
    first, second = MaskKeys(0), MaskKeys(0)
    first.attach(model)
    first.attach(model)
    with pytest.raises(RuntimeError, match="already draws its masks from other MaskKeys") as error:
        second.attach(model)
    assert str(error.value).startswith("Layer '1' already draws its masks from other MaskKeys; det")
    first.detach()
    second.attach(model)
    first.detach()
    assert model[1].masks.keys is second


def test_one_run_may_hold_several_models():
    models = [DropConnectLinear(4, 2), DropConnectLinear(4, 2)]
    keys = MaskKeys(0)
    for model in models:
        keys.attach(model)
    keys.detach()
    assert [model.masks for model in models] == [None, None]


def test_coordinates_must_be_set_first():
    model = DropConnectLinear(4, 2)
    message = r"MaskKeys\.set\(pass_ids=…, sample_ids=…\) must be called before the model runs"
    with MaskKeys(0).attached(model), pytest.raises(RuntimeError, match=message):
        model(torch.ones(1, 4))
    with pytest.raises(RuntimeError, match=message):
        _ = MaskKeys(0).pass_ids


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        ([0, 1], "list"),
        (torch.ones(2), "torch.float32 [2]"),
        (torch.zeros(2, 1, dtype=torch.int64), "torch.int64 [2, 1]"),
        (None, "NoneType"),
    ],
)
def test_bad_sample_ids_are_refused(ids, got):
    message = r"sample_ids must be an int64 tensor \[S\], one id for each row of a pass; got"
    with pytest.raises(ValueError, match=message) as error:
        MaskKeys(0).set(pass_ids=0, sample_ids=ids)
    assert str(error.value).endswith(f"{got}.")


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        (1.5, "1.5"),
        ("3", "'3'"),
        (None, "None"),
        ([0], "[0]"),
        (torch.tensor(2), "torch.int64 []"),
        (torch.ones(2), "torch.float32 [2]"),
    ],
)
def test_bad_pass_ids_are_refused(ids, got):
    """1.5 would be pass 1 in silence."""
    with pytest.raises(ValueError, match="pass_ids must be an integer or an int64 tensor") as error:
        MaskKeys(0).set(pass_ids=ids, sample_ids=torch.arange(2))
    assert str(error.value) == f"pass_ids must be an integer or an int64 tensor [P]; got {got}."


@pytest.mark.parametrize("number", [3, 3 + 2**32, 3 + 2**64, 3 - 2**32])
def test_pass_numbers_of_any_size(number):
    keys = MaskKeys(0)
    keys.set(pass_ids=number, sample_ids=torch.arange(2))
    assert keys.pass_ids.tolist() == [3]


@pytest.mark.parametrize("p", [None, 0.0])
def test_models_without_masks_run_as_they_are(p):
    model, x = mlp(6, 3, hidden=(5,)), torch.ones(4, 6)
    want = model(x)
    if p is not None:
        convert(model, p)
    keys = MaskKeys(0)
    with keys.attached(model):
        keys.set(pass_ids=0, sample_ids=IDS)
        assert torch.equal(model(x), want)


def test_restore_inside_a_run_leaves_nothing_behind():
    model = mlp(6, 3, hidden=(5,))
    attributes = [set(layer.__dict__) for layer in model]
    convert(model)
    keys = MaskKeys(0)
    keys.attach(model)
    restore(model)
    keys.detach()
    assert [set(layer.__dict__) for layer in model] == attributes


def test_the_backward_of_a_forward_keeps_its_own_coordinates():
    """Setting the next step before the backward of this one changes no gradient."""
    model, x = DropConnectLinear(16, 8), torch.ones(4, 16)
    keys = MaskKeys(0)
    keys.attach(model)
    gradients = []
    for following in (0, 1):
        keys.set(pass_ids=0, sample_ids=IDS)
        loss = model(x).square().sum()
        keys.set(pass_ids=following, sample_ids=IDS + following)
        gradients.append(torch.autograd.grad(loss, model.weight)[0])
    assert torch.equal(*gradients)
