"""What a layer returns may be modified in place, as what torch's layers return."""

import copy
import itertools

import pytest
import torch
from torch import nn

from bayes_dc import DropConnectConv2d, DropConnectLinear, convert
from bayes_dc.nn import MaskKeys
from bayes_dc.ops import dropconnect_conv2d, dropconnect_linear
from bayes_dc.ops.conv2d import op
from bayes_dc.ops.dropout import keyed_dropout
from bayes_dc.types import MaskKey

FORMATS = {
    "nchw": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "unbatched": lambda x: x[0],
    "transposed": lambda x: x.transpose(2, 3),
}
STEPS = {
    "relu": (torch.relu, torch.relu_),
    "add": (lambda y: y + 2 * y.detach().cos(), lambda y: y.add_(2 * y.detach().cos())),
    "exp": (torch.exp, torch.exp_),  # its gradient is its result
}
CONVOLUTIONS = {
    "3 × 3": {"kernel_size": 3, "padding": 1},
    "1 × 1": {"kernel_size": 1},
    "pass": {"kernel_size": 3, "scope": "pass", "stride": 2},
    "groups": {"kernel_size": 3, "groups": 3},
}


def images(rows=2):
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def results(function, step, *leaves):
    """Output and gradients of ``step`` after a call."""
    leaves = [t.detach().requires_grad_() for t in leaves]
    y = step(function(*leaves))
    weights = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)
    return [y, *torch.autograd.grad((y * weights).sum(), leaves)]


def assert_equal_results(function, steps, *leaves):
    """In place and not: the same bits."""
    apart, in_place = (results(function, step, *leaves) for step in steps)
    assert all(torch.equal(a, b) for a, b in zip(apart, in_place, strict=True))
    assert not function(*(t.detach().requires_grad_() for t in leaves))._is_view()


@pytest.fixture(params=[False, True], ids=["cpu", "as on a gpu"])
def formats_of_a_gpu(request, monkeypatch):
    """The operator of a GPU returns neighbouring channels for any input."""
    if request.param:
        monkeypatch.setattr(op, "_room", lambda t, *shape: t.new_empty(shape))


@pytest.mark.usefixtures("formats_of_a_gpu")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("form", ["nchw", "channels_last", "transposed"])
def test_convolutions(form, convolution, step):
    layer = DropConnectConv2d(3, 6, **CONVOLUTIONS[convolution])

    def call(x, weight):
        torch.manual_seed(5)
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    assert_equal_results(call, STEPS[step], FORMATS[form](images()), layer.weight)


@pytest.mark.usefixtures("formats_of_a_gpu")
def test_an_unbatched_image():
    layer = DropConnectConv2d(3, 6, 3)

    def call(x):
        torch.manual_seed(5)
        return layer(x)

    apart, in_place = (results(call, step, images()[0]) for step in STEPS["relu"])
    assert all(torch.equal(a, b) for a, b in zip(apart, in_place, strict=True))


@pytest.mark.usefixtures("formats_of_a_gpu")
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("form", ["nchw", "channels_last", "unbatched"])
@pytest.mark.parametrize("rows", [1, 2])
def test_passes_that_share_images(rows, form, p):
    """Also one image and p = 0: every pass has memory of its own."""
    x, weight = FORMATS[form](images(rows)), torch.randn(4, 3, 3, 3)
    ids = torch.arange(1 if form == "unbatched" else rows)
    passes = torch.arange(2)

    def call(x, weight):
        return dropconnect_conv2d(
            x, weight, p=p, key=MaskKey(3), sample_ids=ids, pass_ids=passes, padding=1
        )

    assert call(x, weight).shape == (2 * len(ids), 4, 8, 8)
    last = call(x, weight).is_contiguous(memory_format=torch.channels_last)
    assert last == (form == "channels_last")
    for step in STEPS.values():
        assert_equal_results(call, step, x, weight)


@pytest.mark.parametrize("sampler", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (2, 4, 5), (5,)], ids=str)
@pytest.mark.parametrize("P", [1, 2])
def test_linear(P, shape, p, sampler):
    x, weight = torch.randn(shape), torch.randn(4, 5)
    ids = torch.arange(shape[0] if len(shape) > 1 else 1)

    def call(x, weight):
        at = {"key": MaskKey(3), "sample_ids": ids, "pass_ids": torch.arange(P)}
        return dropconnect_linear(x, weight, p=p, sampler=sampler, **at)

    for step in STEPS.values():
        apart, in_place = (results(call, s, x, weight) for s in step)
        assert all(torch.equal(a, b) for a, b in zip(apart, in_place, strict=True))


@pytest.mark.parametrize("options", [{}, {"channels": True}, {"alpha": True}], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("form", ["nchw", "channels_last", "transposed"])
@pytest.mark.parametrize("rows", [1, 2])
def test_dropout_of_several_passes(rows, form, p, options):
    x = FORMATS[form](images(rows))

    def call(x):
        at = {"key": MaskKey(3), "sample_ids": torch.arange(rows), "pass_ids": torch.arange(2)}
        return keyed_dropout(x, p=p, **at, **options)

    for step in STEPS.values():
        apart, in_place = (results(call, s, x) for s in step)
        assert all(torch.equal(a, b) for a, b in zip(apart, in_place, strict=True))


@pytest.mark.parametrize("form", ["nchw", "channels_last"])
def test_dropout_of_one_pass(form):
    x = FORMATS[form](images())
    assert_equal_results(lambda x: keyed_dropout(x, key=MaskKey(3)), STEPS["relu"], x)


def test_second_gradients_and_compilers():
    x, weight = (
        t.double().requires_grad_() for t in (images()[:, :, :3, :3], torch.randn(2, 3, 2, 2))
    )

    def call(x, weight):
        return dropconnect_conv2d(x, weight, key=MaskKey(3)).mul_(2).sin_().sum()

    assert torch.autograd.gradgradcheck(call, (x, weight))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(call(x, weight), (x, weight))
    got = torch.autograd.grad(compiled(x, weight), (x, weight))
    transformed = torch.func.grad(call, argnums=(0, 1))(x, weight)
    for a, b, c in zip(want, got, transformed, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


class Fire(nn.Module):
    """As in SqueezeNet: three activations in place, two results put together."""

    def __init__(self, inputs, squeezed, expanded, in_place):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.near = nn.Conv2d(squeezed, expanded, 1)
        self.wide = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.activation = nn.ReLU(inplace=in_place)

    def forward(self, x):
        x = self.activation(self.squeeze(x))
        return torch.cat([self.activation(self.near(x)), self.activation(self.wide(x))], dim=1)


def vgg(in_place):
    sizes = [3, 4, "M", 6, 6, "M"]
    layers = []
    for size, following in itertools.pairwise(sizes):
        if following == "M":
            layers.append(nn.MaxPool2d(2))
        elif size == "M":
            layers += [nn.Conv2d(4, following, 3, padding=1), nn.ReLU(in_place)]
        else:
            layers += [nn.Conv2d(size, following, 3, padding=1), nn.ReLU(in_place)]
    head = [nn.Linear(24, 8), nn.Dropout(0.5, in_place), nn.ReLU(in_place), nn.Linear(8, 3)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def squeezenet(in_place):
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.ReLU(in_place),
        Fire(6, 2, 4, in_place),
        nn.Dropout(0.5, in_place),
        nn.Conv2d(8, 3, 1),
        nn.ReLU(in_place),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


@pytest.mark.parametrize("form", ["nchw", "channels_last"])
@pytest.mark.parametrize("passes", [0, 1, 2], ids="{} passes".format)
@pytest.mark.parametrize("network", [vgg, squeezenet])
def test_networks_train(network, passes, form):
    """With fresh masks, and in passes of attached keys, in training and in evaluation mode."""
    x = FORMATS[form](images())
    in_place, apart = network(True), network(False)
    apart.load_state_dict(in_place.state_dict())
    got = {}
    for training, model in itertools.product((True, False), (in_place, apart)):
        model = convert_copy(model).train(training)
        torch.manual_seed(3)
        keys = MaskKeys(1)
        if passes:
            keys.attach(model)
            keys.set(pass_ids=torch.arange(passes), sample_ids=torch.arange(2))
        y = model(x)
        y.square().sum().backward()
        assert y.shape[0] == 2 * max(1, passes)
        got[training, "apart" if len(got) % 2 else "in place"] = [
            y,
            *(p.grad for p in model.parameters()),
        ]
    for training in (True, False):
        both = got[training, "in place"], got[training, "apart"]
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


def convert_copy(model):
    model = copy.deepcopy(model)
    convert(model, p=0.25)
    return model


def test_dropout_in_place_of_the_first_masks_returns_all_passes():
    """The memory of one pass has no room for two."""
    model, x = nn.Dropout(0.5, inplace=True), torch.ones(3, 4)
    keys = MaskKeys(1)
    with keys.attached(model):
        keys.set(pass_ids=torch.arange(2), sample_ids=torch.arange(3))
        got = model(x)
        model.inplace = False
        keys.set(pass_ids=torch.arange(2), sample_ids=torch.arange(3))
        assert torch.equal(got, model(x))
    assert got.shape == (6, 4)
    assert torch.equal(x, torch.ones(3, 4))


def test_linear_layers_before_activations_in_place():
    layer = DropConnectLinear(5, 4)

    def call(x):
        torch.manual_seed(5)
        return layer(x)

    assert_equal_results(call, STEPS["relu"], torch.randn(3, 5))
