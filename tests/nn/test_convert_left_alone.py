"""What a conversion leaves alone, and why: it must be listed, and must work as before."""

import re
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear, convert
from bayes_dc.nn import dropconnect_layers


class Scaled(nn.Linear):
    """A subclass whose forward is its own."""

    def forward(self, x):
        return 2 * super().forward(x)


class LowRank(nn.Linear):
    """As the adapters of fine-tuning libraries are made: a layer with layers of its own."""

    def __init__(self, n):
        super().__init__(n, n)
        self.down, self.up = nn.Linear(n, 1, bias=False), nn.Linear(1, n, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class Reads(nn.Module):
    """Modules that read weights of layers in several ways."""

    def __init__(self):
        super().__init__()
        self.functional, self.hidden, self.shape, self.both, self.initialised = (
            nn.Linear(4, 4) for _ in range(5)
        )
        for parameter in self.functional.parameters():
            nn.init.zeros_(parameter)
        self._init(self.initialised.weight)

    def _init(self, weight):
        nn.init.zeros_(weight)

    def _attend(self, x):
        return F.linear(x, self.hidden.weight, self.hidden.bias)

    def forward(self, x):
        x = F.linear(x, self.functional.weight, bias=self.functional.bias)
        x = self._attend(x) + self.both.weight.sum()
        return self.shape(x.to(self.shape.weight.dtype)) + self.both(x)


class Inherits(Reads):
    def forward(self, x):
        return super().forward(x)


def reason(module, name="0", **options):
    """Why convert leaves module alone, beside a layer that it converts."""
    model = nn.Sequential(module, nn.Linear(1, 1))
    before = {n: type(m) for n, m in module.named_modules()}
    report = convert(model, **options)
    assert isinstance(model[1], DropConnectLinear)
    for n, m in module.named_modules():
        full = f"0.{n}".removesuffix(".")
        if full not in report.converted:
            assert type(m) is before[n]
    return report.left_alone[name]


def test_subclasses():
    model = nn.Sequential(Scaled(4, 4), LowRank(4))
    report = convert(model)
    assert report.left_alone == {
        "0": "a subclass of nn.Linear (Scaled), whose forward may be its own",
        "1": "a subclass of nn.Linear (LowRank), whose forward may be its own",
    }
    assert tuple(report.converted) == ("1.down", "1.up")
    own = type("Own", (nn.Conv2d,), {})
    assert reason(own(1, 1, 1)) == ("a subclass of nn.Conv2d (Own), whose forward may be its own")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nn.LSTM(2, 3), "weight_ih_l0, weight_hh_l0"),
        (nn.GRU(2, 3, num_layers=2), "weight_ih_l0, weight_hh_l0, weight_ih_l1, …"),
        (nn.Bilinear(2, 3, 4), "weight"),
        (nn.Conv1d(2, 3, 1), "weight"),
        (nn.Conv3d(2, 3, 1), "weight"),
        (nn.ConvTranspose2d(2, 3, 1), "weight"),
        (nn.Embedding(2, 3), "weight"),
        (nn.MultiheadAttention(2, 1), "in_proj_weight"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_modules_with_weights_and_no_dropconnect_form(module, names):
    assert reason(module) == (
        f"{type(module).__name__} holds {names} itself; only nn.Linear and nn.Conv2d have a "
        "DropConnect form"
    )


def test_modules_without_weights_are_not_listed():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.LayerNorm(4), nn.PReLU(), nn.Linear(2, 2))
    assert convert(model).left_alone == {}


def test_attention_reads_past_its_projection():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    report = convert(model)
    assert tuple(report.converted) == ("linear1", "linear2")
    assert report.left_alone["self_attn.out_proj"] == (
        "MultiheadAttention reads its weight without calling it, so a mask would have no effect"
    )


@pytest.mark.parametrize("kind", [Reads, Inherits])
def test_layers_whose_weight_is_read_by_their_holder(kind):
    model = kind()
    report = convert(model)
    assert tuple(report.converted) == ("shape", "both", "initialised")
    assert report.left_alone == dict.fromkeys(
        ["functional", "hidden"],
        f"{kind.__name__} reads its weight without calling it, so a mask would have no effect",
    )
    x = torch.ones(2, 4)
    assert not torch.equal(model(x), model(x))  # masks of the others


def test_layers_read_by_torchvision():
    """Swin's attention multiplies with the weights of its layers itself."""
    model = torchvision.models.swin_transformer.SwinTransformer(
        [2, 2], 8, [1, 1], [2, 2], [2, 2], num_classes=3
    )
    report = convert(model)
    left = [name for name, why in report.left_alone.items() if "without calling" in why]
    assert left == [f"features.{i}.0.attn.{name}" for i in (1, 3) for name in ("qkv", "proj")]
    assert "features.1.0.mlp.0" in report.converted
    assert "features.0.0" in report.converted


def test_a_class_without_source_is_taken_to_call_its_layers():
    """Written by exec, there is nothing to read."""
    scope = {"nn": nn}
    exec("class M(nn.Module):\n  def forward(self, x): return x @ self.fc.weight.T", scope)
    model = scope["M"]()
    model.fc = nn.Linear(2, 2)
    assert tuple(convert(model).converted) == ("fc",)


def test_a_forward_replaced_on_the_object():
    """It would be called instead of ours, without masks."""
    layer = nn.Linear(2, 2)
    layer.forward = types.MethodType(lambda self, x: 3 * F.linear(x, self.weight), layer)
    assert reason(layer) == "its forward was replaced on the object; restore that first"


@pytest.mark.parametrize("name", ["p", "scale", "masks", "mask_layer", "mean_weight"])
@pytest.mark.parametrize("store", ["attribute", "buffer", "parameter", "module"])
def test_attributes_that_a_dropconnect_layer_would_hide(name, store):
    layer = nn.Linear(2, 2)
    if store == "attribute":
        setattr(layer, name, 3)
    elif store == "buffer":
        layer.register_buffer(name, torch.ones(1))
    elif store == "parameter":
        layer.register_parameter(name, nn.Parameter(torch.ones(1)))
    else:
        layer.add_module(name, nn.ReLU())
    assert reason(layer) == (
        f"it has an attribute {name!r} of its own, which DropConnect layers use"
    )


def test_weights_that_no_mask_applies_to():
    whole = "masks are applied to floating point weights of 16 bits or more"
    assert reason(nn.Linear(2, 2, dtype=torch.complex64)) == (
        f"its weight is torch.complex64; {whole}"
    )
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(layer.weight.to(torch.float8_e4m3fn), requires_grad=False)
    assert reason(layer) == f"its weight is torch.float8_e4m3fn; {whole}"
    layer = nn.Linear(2, 2)
    del layer.weight
    assert reason(layer) == "it has no weight"
    layer.weight = "w"
    assert reason(layer) == "it has no weight"


def test_weights_of_a_tensor_subclass():
    """Quantised and distributed weights keep nn.Linear and change the tensor."""

    class Packed(torch.Tensor):
        pass

    layer = nn.Conv2d(2, 2, 1)
    weight = torch.ones(2, 2, 1, 1).as_subclass(Packed)
    layer.weight = nn.Parameter(weight)
    assert reason(layer) == (
        "its weight is a Packed, not a plain tensor; convert before it is made one"
    )


def test_quantised_layers():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch moves quantisation to another package
        model[0] = torch.ao.quantization.quantize_dynamic(model[:1], {nn.Linear})[0]
    report = convert(model)
    assert tuple(report.converted) == ("2",)
    assert report.left_alone == {
        "0": "Linear: its weights are quantised; convert the network before it is quantised"
    }


def test_torchscript():
    plain = nn.Sequential(nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has given it up
        scripted = torch.jit.script(plain)
    why = "TorchScript, which cannot be changed; convert before torch.jit.script or trace"
    assert reason(scripted) == why
    with pytest.raises(ValueError, match=re.escape(f"no layer to replace: the model ({why}).")):
        convert(scripted)


def test_layers_inside_a_parametrization():
    """Their rows are those of a weight, not inputs."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(2, 2, bias=False)

        def forward(self, weight):
            return self.mix(weight)

    layer = nn.Linear(2, 2)
    nn.utils.parametrize.register_parametrization(layer, "weight", Mixed())
    report = convert(nn.Sequential(layer))
    assert tuple(report.converted) == ("0",)
    assert report.left_alone == {
        "0.parametrizations.weight.0.mix": "part of the parametrization of a weight"
    }


@pytest.mark.parametrize(
    ("lazy", "shape", "form"),
    [
        (lambda: nn.LazyLinear(3), (2, 5), DropConnectLinear),
        (lambda: nn.LazyConv2d(3, 1), (2, 5, 2, 2), DropConnectConv2d),
    ],
)
def test_lazy_layers_are_refused_until_they_have_weights(lazy, shape, form):
    model = nn.Sequential(nn.Linear(5, 5) if len(shape) == 2 else nn.Conv2d(5, 5, 1), lazy())
    for dry_run in (False, True):
        with pytest.raises(ValueError, match=r"Layer '1' is lazy and has no weights yet\. Run one"):
            convert(model, dry_run=dry_run)
    assert not dropconnect_layers(model)
    report = convert(model, select="0")
    assert report.left_alone == {"1": "not selected"}
    x = torch.ones(shape)
    want = model.eval()(x)
    assert tuple(convert(model).converted) == ("1",)
    assert type(model[1]) is form
    assert torch.equal(model(x), want)


@pytest.mark.parametrize(
    ("model", "options", "seen"),
    [
        (nn.ReLU(), {}, "the model has no torch.nn.Linear and no torch.nn.Conv2d."),
        (nn.Linear(2, 2), {"exclude_last": True}, "the model (the last layer (exclude_last))."),
        (
            nn.Sequential(Scaled(2, 2), nn.Linear(2, 2)),
            {"select": lambda *_: False},
            "0 (a subclass of nn.Linear (Scaled), whose forward may be its own), 1 (not selected).",
        ),
        (nn.Sequential(DropConnectLinear(1, 1, p=0.25)), {}, "0 (already a DropConnect layer (p="),
    ],
    ids=["none", "last", "all-left", "all-converted"],
)
def test_nothing_to_convert_is_an_error_that_says_why(model, options, seen):
    with pytest.raises(ValueError, match="convert found no layer to replace: ") as error:
        convert(model, **options)
    assert f"no layer to replace: {seen}" in str(error.value)
    assert "check `select` and `exclude_last`" in str(error.value)
    assert "bayes_dc.DropConnectLinear and bayes_dc.DropConnectConv2d" in str(error.value)
