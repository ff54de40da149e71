"""DropConnectLinear under checkpointing, compile, export, autocast, copy and pickle."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from bayes_dc import DropConnectLinear, convert
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys

B = 5


@pytest.fixture
def model():
    """Two layers with masks between plain ones."""
    torch.manual_seed(0)
    network = mlp(12, 3, hidden=(16, 8))
    convert(network, p=0.3, exclude_last=True)
    return network


@pytest.fixture
def x():
    return torch.randn(B, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def keys(model):
    """Keys attached to the model, with coordinates."""
    keys = MaskKeys(7)
    with keys.attached(model):
        keys.set(pass_ids=3, sample_ids=torch.arange(B))
        yield keys


def gradients(model, run, x):
    """Output and parameter gradients of one forward and backward."""
    model.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def assert_equal(got, want):
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("attached", [True, False])
def test_checkpointing_repeats_the_masks(model, x, use_reentrant, attached):
    """With keys from the same coordinates, without from torch's generator, which is put back."""
    x.requires_grad_()
    keys = MaskKeys(7)
    if attached:
        keys.attach(model)
        keys.set(pass_ids=3, sample_ids=torch.arange(B))
    torch.manual_seed(5)
    want = gradients(model, model, x)
    torch.manual_seed(5)
    got = gradients(model, lambda x: checkpoint(model, x, use_reentrant=use_reentrant), x)
    assert_equal(got, want)


def test_compiled_equals_eager_at_every_step(model, keys, x):
    """One graph for all steps: new coordinates are inputs, not constants."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    outputs = []
    for step in range(3):
        keys.set(pass_ids=step, sample_ids=torch.arange(B) + step)
        want = gradients(model, model, x)
        assert_equal(gradients(model, compiled, x), want)
        outputs.append(want[0])
    assert counter.frame_count == 1
    assert len(torch.stack(outputs).unique(dim=0)) == 3


def test_compiled_by_inductor_equals_eager(model, keys, x):
    """Masks are equal; the plain last layer and the sum may round differently."""
    torch._dynamo.reset()
    want = gradients(model, model, x)
    got = gradients(model, torch.compile(model, fullgraph=True), x)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_compiled_without_keys_draws_fresh_masks(model, x):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.manual_seed(2)
    first = compiled(x), compiled(x)
    assert not torch.equal(*first)
    torch.manual_seed(2)
    assert torch.equal(compiled(x), first[0])
    torch.manual_seed(2)
    assert torch.equal(model(x), first[0])


def test_exported_in_evaluation_and_with_keys(model, keys, x):
    """An exported program keeps the coordinates it was exported with."""
    program = torch.export.export(model, (x,))
    assert torch.equal(program.module()(x), model(x))
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("bayes_dc.linear.default") == 2
    keys.detach()
    model.eval()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert torch.equal(program.module()(x[:2]), model(x[:2]))
    assert not any("bayes_dc" in str(node.target) for node in program.graph.nodes)


def test_autocast_runs_in_bfloat16_with_float32_gradients(model, keys, x):
    """An upstream gradient of 10⁵ would be inf in float16."""
    upstream = torch.full((B, 3), 1e5)
    model(x).backward(upstream)
    want = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        hidden = model[1](x)
    assert y.dtype == hidden.dtype == torch.bfloat16
    y.backward(upstream.bfloat16())
    for parameter, reference in zip(model.parameters(), want, strict=True):
        assert parameter.grad.dtype == torch.float32
        # Three layers of bfloat16, 8 significant bits each.
        assert (parameter.grad - reference).norm() <= 3 * 2.0**-7 * reference.norm()


def test_bfloat16_inputs_under_autocast_and_without(x):
    """As nn.Linear: autocast casts; without, one dtype is asked for."""
    layer = DropConnectLinear(12, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="x, weight and bias must have one dtype"):
        layer(x.bfloat16())
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_equal_and_apart(model, keys, x, duplicate):
    """A copy made inside a run is in no run, and can be attached to one by itself."""
    other = duplicate(model)
    assert [layer.masks for layer in (other[1], other[3])] == [None, None]
    run = MaskKeys(keys.seed)
    with run.attached(other):
        run.set(pass_ids=keys.pass_ids, sample_ids=keys.sample_ids)
        assert torch.equal(other(x), model(x))
        keys.set(pass_ids=4, sample_ids=torch.arange(B))
        assert not torch.equal(other(x), model(x))
    keys.detach()
    assert model[1].masks is None
    third = duplicate(model)
    assert [layer.mask_layer for layer in (third[1], third[3])] == [0, 1]
    assert torch.equal(third.eval()(x), model.eval()(x))


def test_modules_take_part_in_functional_calls(model, keys, x):
    """func.grad and vmap over weights: ensembles, per-sample gradients."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    got = torch.func.grad(loss)(parameters)
    want = gradients(model, model, x)[1:]
    assert_equal(got.values(), want)


def test_half_of_the_network_in_inference_mode(model, keys, x):
    with torch.inference_mode():
        inferred = model(x)
    assert torch.equal(inferred, model(x))


def test_training_moves_the_loss():
    """Forty steps of SGD with masks learn what a plain network learns."""
    torch.manual_seed(0)
    x = torch.randn(64, 10)
    labels = (x[:, 0] > 0).long()
    network = nn.Sequential(DropConnectLinear(10, 32), nn.ReLU(), DropConnectLinear(32, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
    assert (network.eval()(x).argmax(dim=1) == labels).float().mean() > 0.9
