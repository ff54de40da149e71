"""DropConnectConv2d: nn.Conv2d in everything but the masks."""

import copy
import inspect
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayes_dc import DropConnectConv2d
from bayes_dc.nn import MaskKeys, number_layers
from bayes_dc.ops.conv2d.reference import explicit_masks
from bayes_dc.rng import keep_digits, layer_key

SEED = 9
MODES = ["zeros", "reflect", "replicate", "circular"]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"dtype": torch.float64}], ids=str)
def test_parameters_are_those_of_nn_conv2d(options):
    """Names, bits, and the state torch's generator is left in."""
    torch.manual_seed(3)
    plain = nn.Conv2d(6, 4, 3, groups=2, **options)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    layer = DropConnectConv2d(6, 4, 3, groups=2, **options)
    assert torch.equal(torch.get_rng_state(), state)
    ours, theirs = dict(layer.named_parameters()), dict(plain.named_parameters())
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert parameter.dtype == theirs[name].dtype
        assert torch.equal(parameter, theirs[name])


def test_the_signature_starts_as_that_of_nn_conv2d():
    ours = list(inspect.signature(DropConnectConv2d).parameters.values())
    theirs = list(inspect.signature(nn.Conv2d).parameters.values())
    assert [(a.name, a.default, a.kind) for a in ours[:11]] == [
        (a.name, a.default, a.kind) for a in theirs
    ]
    assert {a.kind for a in ours[11:]} == {inspect.Parameter.KEYWORD_ONLY}


def test_state_dicts_load_both_ways():
    plain, layer = nn.Conv2d(4, 3, 2), DropConnectConv2d(4, 3, 2)
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight)
    nn.Conv2d(4, 3, 2).load_state_dict(layer.state_dict(), strict=True)
    assert list(layer.state_dict()) == list(plain.state_dict()) == ["weight", "bias"]


def test_copies_and_saved_state_keep_options_and_layer_number():
    model = nn.Sequential(DropConnectConv2d(2, 3, 1, p=0.25), DropConnectConv2d(3, 3, 1))
    number_layers(model)
    for other in (copy.deepcopy(model[1]), pickle.loads(pickle.dumps(model[1]))):
        assert (other.p, other.scope, other.mask_layer) == (0.5, "sample", 1)
        assert torch.equal(other.weight, model[1].weight)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh = nn.Sequential(DropConnectConv2d(2, 3, 1), DropConnectConv2d(3, 3, 1))
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert [layer.mask_layer for layer in fresh] == [0, 1]


def test_meta_device():
    """Shapes can be had without memory, forward and backward, as from nn.Conv2d."""
    layer = DropConnectConv2d(4, 6, 3, stride=2, padding=1, groups=2, device="meta")
    y = layer(torch.empty(2, 4, 9, 7, device="meta"))
    y.sum().backward()
    assert y.shape == (2, 6, 5, 4)
    assert layer.weight.grad.shape == (6, 2, 3, 3)


def test_repr_shows_both_kinds_of_arguments():
    layer = DropConnectConv2d(4, 3, 3, 2, "valid", bias=False, p=0.1, scope="pass", scale="none")
    assert repr(layer) == (
        "DropConnectConv2d(4, 3, kernel_size=(3, 3), stride=(2, 2), padding=valid, bias=False, "
        "p=0.1 (0.0996094), scope='pass', scale='none')"
    )


def test_evaluation_without_scaling_uses_the_mean_of_the_masked_weight():
    layer = DropConnectConv2d(4, 3, 3, p=0.1, scale="none").eval()
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight * (461 / 512), layer.bias))


def test_p_zero_is_nn_conv2d_in_training():
    layer = DropConnectConv2d(4, 3, 3, padding=1, p=0.0)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias, padding=1))


def test_each_training_forward_has_fresh_masks_that_the_seed_repeats():
    layer, x = DropConnectConv2d(8, 8, 3), torch.ones(2, 8, 4, 4)
    torch.manual_seed(1)
    first = layer(x), layer(x)
    assert not torch.equal(*first)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first[0])


@pytest.mark.parametrize(("scope", "different"), [("sample", 5), ("pass", 1)])
def test_every_image_has_its_own_mask_unless_the_pass_shares_it(scope, different):
    layer = DropConnectConv2d(8, 8, 3, scope=scope)
    y = layer(torch.randn(8, 6, 6).expand(5, 8, 6, 6))
    assert len(y.unique(dim=0)) == different


def test_the_share_of_weights_dropped_is_p():
    """p = 0.1 drops a tenth, not nine."""
    layer = DropConnectConv2d(100, 100, 3, bias=False, p=0.1, scale="none")
    nn.init.ones_(layer.weight)
    torch.manual_seed(0)
    kept = layer(torch.ones(4, 100, 3, 3)).sum() / (4 * 9e4)
    assert abs(kept - 0.9) < 4 * (0.09 / (4 * 9e4)) ** 0.5


@pytest.mark.parametrize("options", [{"scope": "row"}, {"sampler": "gaussian"}], ids=str)
def test_what_convolutions_do_not_have_is_refused(options):
    with pytest.raises(ValueError, match="A convolution has") as error:
        DropConnectConv2d(2, 2, 1, **options)
    assert "sample" in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"p": 1.0}, "p must be a drop probability in"),
        ({"scope": "batch"}, "scope must be one of"),
        ({"scale": "mean"}, "scale must be one of"),
        ({"sampler": "laplace"}, "sampler must be one of"),
    ],
    ids=str,
)
def test_bad_options_are_refused_at_construction(options, text):
    with pytest.raises(ValueError, match=text):
        DropConnectConv2d(2, 2, 1, **options)


def test_wrong_inputs_are_refused():
    layer = DropConnectConv2d(4, 3, 3)
    with pytest.raises(ValueError, match="x must have 4 channels"):
        layer(torch.ones(2, 5, 4, 4))
    keys = MaskKeys(0)
    keys.attach(layer)
    keys.set(pass_ids=0, sample_ids=torch.arange(3))
    with pytest.raises(ValueError, match="1 × 3 = 3"):
        layer(torch.ones(2, 4, 4, 4))


@st.composite
def layers(draw):
    """A layer of small integers in some configuration, and an input for it."""
    groups = draw(st.integers(1, 3))
    C, N = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 6))
    padding = draw(st.sampled_from(["same", "valid", 0, 1, (1, 2)]))
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = DropConnectConv2d(
        C,
        N,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        1 if padding == "same" else draw(st.sampled_from([1, 2, (2, 1)])),
        padding,
        draw(st.sampled_from([1, 2, (1, 2)])),
        groups,
        draw(st.booleans()),
        draw(st.sampled_from(MODES)),
        dtype=torch.float64,
        p=draw(st.sampled_from([0.5, 0.25])),
        scope=draw(st.sampled_from(["sample", "pass"])),
        scale="none",
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape))
    size = (draw(st.integers(5, 8)), draw(st.integers(5, 8)))
    return layer, torch.randint(-4, 5, (draw(st.integers(1, 3)), C, *size)).double()


def masked(layer, samples):
    """Copies of the layer as nn.Conv2d, with the masked weights of each sample."""
    ids = torch.tensor(samples if layer.scope == "sample" else [0] * len(samples))
    N, C, KH, KW = layer.weight.shape
    digits, key = keep_digits(layer.p), layer_key(SEED, 0)
    masks = explicit_masks(key, ids, torch.tensor([3]), N, KH * KW * C, digits)
    for mask in masks.view(-1, N, KH, KW, C).permute(0, 1, 4, 2, 3):
        plain = nn.Conv2d(
            *(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride),
            *(layer.padding, layer.dilation, layer.groups, layer.bias is not None),
            layer.padding_mode,
            dtype=torch.float64,
        )
        plain.load_state_dict(layer.state_dict())
        plain.weight.data = torch.where(mask, plain.weight, 0.0)
        yield plain


@given(drawn=layers())
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")
def test_keyed_masks_are_those_of_the_specification(drawn):
    """Any configuration against nn.Conv2d with masked weights; sums of integers cannot round."""
    layer, x = drawn
    samples = [7, 2**32 - 1, 40_000][: len(x)]
    plain = list(masked(layer, samples))
    mean = (1 - layer.p) * next(masked(layer, samples)).weight.new_ones(())
    want = torch.cat([one(image[None]) for one, image in zip(plain, x, strict=True)])
    keys = MaskKeys(SEED)
    with keys.attached(layer):
        keys.set(pass_ids=3, sample_ids=torch.tensor(samples))
        assert torch.equal(layer(x), want)
        assert torch.equal(layer.eval()(x), want)
    whole = copy.deepcopy(plain[0])
    whole.weight.data = layer.weight.detach() * mean
    assert torch.equal(layer(x), whole(x))


def test_activation_checkpointing_sees_the_same_masks():
    layer = DropConnectConv2d(3, 4, 3, dtype=torch.float64)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    plain = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
    torch.manual_seed(0)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    for a, e in zip(
        torch.autograd.grad(y.square().sum(), (x, *layer.parameters())), plain, strict=True
    ):
        assert torch.equal(a, e)


@pytest.mark.parametrize("last", [False, True])
def test_a_compiled_model_trains(last):
    """The compiler may choose memory formats in between; the bits stay."""
    model = nn.Sequential(
        DropConnectConv2d(3, 4, 3, padding=1), nn.ReLU(), DropConnectConv2d(4, 4, 3, stride=2)
    )
    keys = MaskKeys(SEED)
    x = torch.randn(2, 3, 5, 5)
    if last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    with keys.attached(model):
        keys.set(pass_ids=0, sample_ids=torch.arange(2))
        compiled = torch.compile(model, fullgraph=True)
        got, want = compiled(x), model(x)
        torch.testing.assert_close(got, want)
        for a, e in zip(
            torch.autograd.grad(got.square().sum(), tuple(model.parameters())),
            torch.autograd.grad(want.square().sum(), tuple(model.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(a, e)


@pytest.mark.gpu
def test_a_layer_on_the_gpu_draws_the_same_masks():
    layer = DropConnectConv2d(8, 40, 3, padding=1, dtype=torch.float64)
    x = torch.randn(4, 8, 6, 6, dtype=torch.float64)
    keys = MaskKeys(SEED)
    keys.set(pass_ids=1, sample_ids=torch.arange(4))
    with keys.attached(layer):
        want = layer(x)
    layer = layer.cuda()
    with keys.attached(layer):
        torch.testing.assert_close(layer(x.cuda()).cpu(), want)
