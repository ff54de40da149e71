"""What a prediction leaves as it found it: modes, buffers, inputs, generators, other threads."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from bayes_dc import DropConnectLinear, convert, predict_with_uncertainty
from bayes_dc.models import mlp
from bayes_dc.nn import MaskKeys

K, C, B = 12, 3, 5


@pytest.fixture
def x():
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    """DropConnect, BatchNorm with statistics of its own, Dropout."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(K, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, C)
    )
    convert(network)
    for _ in range(3):
        network(torch.randn(20, K))
    return network


class Failing(nn.Module):
    """Raises at the second call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError
        return x


def state(model):
    """Every buffer and parameter: the object, its value."""
    tensors = [*model.named_buffers(), *model.named_parameters()]
    return {name: (tensor, tensor.detach().clone()) for name, tensor in tensors}


def assert_state(model, before):
    after = state(model)
    assert after.keys() == before.keys()
    for name, (tensor, value) in after.items():
        assert tensor is before[name][0], name
        assert torch.equal(value, before[name][1]), name


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_statistics_are_as_before(fails, model, x):
    """Evaluation with one layer in training, which is neither undone nor used."""
    model.append(Failing() if fails else nn.Identity())
    model.eval()
    model[1].train()
    model[3].train()
    flags, before = {n: m.training for n, m in model.named_modules()}, state(model)
    if fails:
        with pytest.raises(ZeroDivisionError):
            predict_with_uncertainty(model, x, T=10, chunk=4)
    else:
        assert predict_with_uncertainty(model, x, T=10).variance.all()
    assert {n: m.training for n, m in model.named_modules()} == flags
    assert [layer.masks for layer in (model[0], model[4])] == [None, None]
    assert "forward" not in model[3].__dict__
    assert_state(model, before)


def test_batchnorm_uses_its_running_statistics(model, x):
    """One input has one result, whatever the others are; one input alone is enough."""
    model.train()
    want = predict_with_uncertainty(model, x, T=10)
    x[1:] *= 100
    got = predict_with_uncertainty(model, x, T=10)
    assert torch.equal(got.mean[0], want.mean[0])
    assert torch.equal(predict_with_uncertainty(model, x[:1], T=10).mean[0], want.mean[0])


def test_dropout_can_be_off(model, x):
    """Then only DropConnect draws."""
    want = predict_with_uncertainty(model, x, T=10, dropout=False)
    model[3].p = 0.99
    got = predict_with_uncertainty(model.train(), x, T=10, dropout=False)
    assert torch.equal(got.mean, want.mean)
    assert not torch.equal(predict_with_uncertainty(model, x, T=10).mean, want.mean)


class Counting(nn.Module):
    """Writes into one buffer, replaces another and fills a third in every forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("absent", None)

    def forward(self, x):
        self.written += 1
        self.replaced = self.replaced + 1
        self.absent = torch.ones(len(x))
        return x + self.written.sum() * 0


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("chunk", [None, 3])
def test_buffers_are_as_before(fails, chunk, model, x):
    model = nn.Sequential(Counting(), *model, Failing() if fails and chunk else nn.Identity())
    before = state(model)
    if fails and chunk:
        with pytest.raises(ZeroDivisionError):
            predict_with_uncertainty(model, x, T=10, chunk=chunk)
    else:
        predict_with_uncertainty(model, x, T=10, chunk=chunk)
    assert_state(model, before)
    assert model[0].absent is None


@pytest.mark.parametrize("name", ["0", "head"])
def test_batch_statistics_in_evaluation_are_refused(name, x):
    """Without running statistics BatchNorm mixes the rows of every batch, also in eval()."""
    model = nn.Sequential()
    model.add_module(name, nn.BatchNorm1d(K, track_running_stats=False))
    model.append(DropConnectLinear(K, C))
    with pytest.raises(ValueError, match="keeps no running statistics") as error:
        predict_with_uncertainty(model, x, T=3)
    text = str(error.value)
    assert text.startswith(f"BatchNorm {name!r} keeps no running statistics (track_running_stats")
    assert "Train it with track_running_stats=True, or use a\nnormalisation that keeps" in text
    # InstanceNorm's statistics are those of one input.
    model = nn.Sequential(nn.Unflatten(1, (3, 4)), nn.InstanceNorm1d(3), nn.Flatten(), model[1])
    predict_with_uncertainty(model, x, T=3)


def test_no_graph_and_no_gradient(model, x):
    x.requires_grad_()
    got = predict_with_uncertainty(model, x, T=3, return_samples=True)
    assert not got.mean.requires_grad
    assert not got.samples.requires_grad
    assert x.requires_grad
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("chunk", [None, 1])
def test_inside_inference_mode(chunk, model, x):
    """Inputs, weights and buffers that are inference tensors, in one chunk and in many."""
    want = predict_with_uncertainty(model, x, T=4)
    with torch.inference_mode():
        inferred = x * 1
        got = predict_with_uncertainty(model, inferred, T=4, chunk=chunk)
        assert torch.equal(got.mean, want.mean)
        assert not got.mean.is_inference()
        assert torch.is_inference_mode_enabled()
        other = nn.Sequential(Counting(), *model)
    got = predict_with_uncertainty(model, inferred, T=4, chunk=chunk)
    assert torch.equal(got.mean, want.mean)
    assert not got.mean.is_inference()
    assert other[0].written.is_inference()


def test_no_global_generator_is_touched(model, x):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    predict_with_uncertainty(model, x, T=4, seed=9)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_eight_threads_on_one_model(model, x):
    """Different inputs, seeds and chunks at once: each as if alone, the model as before."""
    model.train()
    before = state(model)
    jobs = [(x + i, {"T": 6, "seed": i % 3, "chunk": 1 + i % 4}) for i in range(32)]
    want = [predict_with_uncertainty(model, rows, **options) for rows, options in jobs]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda job: predict_with_uncertainty(model, job[0], **job[1]), jobs))
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.mutual_information, other.mutual_information)
    assert all(module.training for module in model.modules())
    assert_state(model, before)


def test_threads_on_two_models(x):
    """Models of their own do not wait for each other, nor mix."""
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(mlp(K, C, hidden=(8,)))
        convert(models[-1])
    want = [predict_with_uncertainty(model, x, T=5) for model in models]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: predict_with_uncertainty(models[i % 2], x, T=5), range(16)))
    for i, one in enumerate(got):
        assert torch.equal(one.mean, want[i % 2].mean)


def test_layers_of_a_training_run_are_refused_and_stay_attached(model, x):
    keys = MaskKeys(0)
    with keys.attached(model):
        with pytest.raises(RuntimeError, match="already draws its masks from other MaskKeys"):
            predict_with_uncertainty(model, x, T=3)
        assert model[0].masks.keys is keys
        assert model.training
    predict_with_uncertainty(model, x, T=3)


def compiled_whole(model):
    return torch.compile(model, backend="eager")


def compiled_part(model):
    part = torch.compile(nn.Sequential(*model[:3]), backend="eager")
    return nn.Sequential(part, *model[3:])


def compiled_in_place(model):
    model[0].compile(backend="eager")
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("compile_it", [compiled_whole, compiled_part, compiled_in_place])
def test_compiled_models_run_uncompiled(compile_it, model, x):
    want = predict_with_uncertainty(model, x, T=4, return_samples=True)
    compiled = compile_it(model).eval()
    flags = [module._compiled_call_impl for module in compiled.modules()]
    reference = compiled(x)
    got = predict_with_uncertainty(compiled, x, T=4, chunk=3, return_samples=True)
    assert torch.equal(got.samples, want.samples)
    assert [module._compiled_call_impl for module in compiled.modules()] == flags
    assert torch.equal(compiled(x), reference)
    names = {name.replace("_orig_mod.", "") for name in got.p_effective}
    assert names == ({"0.0", "2"} if compile_it is compiled_part else {"0", "4"})


def test_an_exception_leaves_the_model_compiled(model, x):
    calls = []

    def backend(graph, example_inputs):
        calls.append(graph)
        return graph

    model.append(Failing())
    part = nn.Sequential(torch.compile(nn.Tanh(), backend=backend), *model)
    with pytest.raises(ZeroDivisionError):
        predict_with_uncertainty(part, x, T=10, chunk=4)
    assert not calls
    part.eval()(x)
    assert len(calls) == 1
