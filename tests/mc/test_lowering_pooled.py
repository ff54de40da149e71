"""Convolutions with masks that pool: which do, in what memory, and the results of two steps."""

import pytest
import torch
from engine_cases import assert_near
from torch import nn

from bayes_dc import MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.engine_guard import ModelChanged
from bayes_dc.mc.plan import build_plan
from bayes_dc.ops import _device
from bayes_dc.ops.conv2d import op


class Branch(nn.Module):
    """What is pooled is read by others too."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return torch.cat([torch.max_pool2d(y, 2).flatten(1), y.flatten(1)], 1)


def network(*after, outputs=6, **options):
    layers = [nn.Conv2d(3, outputs, 3, **options), *after, nn.Flatten()]
    return nn.Sequential(*layers)


def plan(model, dtype=torch.float32, device="cuda"):
    """A plan of a model with masks, made without a GPU."""
    if device == "cuda":
        pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")
    convert(model, p=0.5)
    model = model.to(dtype, memory_format=torch.channels_last).eval()
    return build_plan(model, torch.zeros(3, 3, 9, 8, dtype=dtype), 4, device=device)


def whole_sixteenths(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape) / 16)


def steps(found):
    return [step.op.removeprefix("aten.").removesuffix(".default") for step in found.steps]


POOLS = {
    "pool": lambda: network(nn.MaxPool2d(2)),
    "relu": lambda: network(nn.ReLU(), nn.MaxPool2d((2, 2), 2)),
    "batch norm": lambda: network(nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2, (2, 2))),
    "strides": lambda: network(nn.MaxPool2d(2), stride=2, padding=1, dilation=(2, 1)),
    "dilated columns": lambda: network(nn.MaxPool2d(2), dilation=(1, 2)),
}
LEFT = {
    "overlapping": lambda: network(nn.MaxPool2d(2, 1)),
    "another step": lambda: network(nn.MaxPool2d(2, (2, 1))),
    "larger": lambda: network(nn.MaxPool2d(3)),
    "oblong": lambda: network(nn.MaxPool2d((2, 1))),
    "padded": lambda: network(nn.MaxPool2d(2, padding=1)),
    "dilated": lambda: network(nn.MaxPool2d(2, dilation=2)),
    "overhanging": lambda: network(nn.MaxPool2d(2, ceil_mode=True)),
    "mean": lambda: network(nn.AvgPool2d(2)),
    "read twice": Branch,
}
FEW_ONLY = {
    "many outputs": lambda: network(nn.MaxPool2d(2), outputs=40),
    "groups": lambda: network(nn.MaxPool2d(2), groups=3),
}
"""Pooled by the convolution on a CPU only."""


@pytest.mark.parametrize("name", POOLS)
def test_one_step(name):
    found = steps(plan(POOLS[name]()))
    assert "bayes_dc.planned_conv2d" in found
    assert not any("pool" in op for op in found)


@pytest.mark.parametrize("name", LEFT | FEW_ONLY)
def test_a_step_of_its_own(name):
    assert any("pool" in op for op in steps(plan((LEFT | FEW_ONLY)[name]())))


@pytest.mark.parametrize("name", ["overlapping", "overhanging"])
def test_a_step_of_its_own_on_a_cpu(name):
    assert any("pool" in op for op in steps(plan(LEFT[name](), device="cpu")))


@pytest.mark.parametrize(
    ("name", "last", "scope", "mode"),
    [
        ("pool", False, "sample", "workspace"),
        ("batch norm", False, "pass", "strict"),
        ("strides", True, "sample", "workspace"),
        ("many outputs", False, "pass", "workspace"),
        ("groups", True, "sample", "strict"),
    ],
)
def test_on_a_cpu_the_bits_of_two_steps(name, last, scope, mode, monkeypatch):
    """Real numbers, whole and partial batches; no other step pools."""
    torch.manual_seed(0)
    model = (POOLS | FEW_ONLY)[name]()
    convert(model, p=0.5, scope=scope)
    model = model.to(memory_format=torch.channels_last) if last else model
    model.eval()
    x = torch.randn(5, 3, 9, 8)
    x = x.to(memory_format=torch.channels_last) if last else x
    together = MonteCarloEngine(model, x, 3, mode=mode)
    monkeypatch.setattr(op, "pools", lambda *args: False)
    apart = MonteCarloEngine(model, x, 3, mode=mode)
    for engine, count in ((together, 0), (apart, 1)):
        assert sum("pool" in step.op for step in engine.plan.steps) == count
    for rows in (5, 2):
        got, want = (e(x[:rows], return_samples=True).samples for e in (together, apart))
        assert torch.equal(got, want)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_nothing_has_the_size_of_results_before_pooling(device):
    found = plan(POOLS["relu"](), device=device)
    least = found.passes * 3 * 6 * 7 * 6 * 4
    arena = [s for s in found.storages if s.kind == "arena"]
    assert arena
    assert [s.name for s in arena if s.nbytes >= least] == []


def test_on_a_gpu_the_step_rounds_float32():
    found = plan(POOLS["relu"]())
    assert any(step.rounds for step in found.steps)
    assert not any(step.rounds for step in plan(POOLS["relu"](), torch.bfloat16).steps)
    assert not any(step.rounds for step in plan(POOLS["relu"](), device="cpu").steps)


def test_a_step_of_its_own_where_float32_is_not_to_be_rounded(monkeypatch):
    monkeypatch.setattr(_device, "convolution_tensor_float32", lambda: False)
    assert any("pool" in op for op in steps(plan(POOLS["relu"]())))
    assert not any("pool" in op for op in steps(plan(POOLS["relu"](), torch.bfloat16)))


def test_other_precision_than_planned_for_is_refused(monkeypatch):
    """On a CPU nothing rounds: the step is one of a plan for a GPU."""
    model = nn.Sequential(nn.Linear(4, 3))
    convert(model, p=0.5)
    x = torch.ones(2, 4)
    engine = MonteCarloEngine(model, x, 3)
    engine._runner._rounding = plan(POOLS["relu"]()).steps[0]
    assert engine.difference() is None
    engine(x)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        with pytest.raises(ModelChanged, match=r"fp32_precision is .*'planned_conv2d'.*no memory"):
            engine(x)
        assert "allow TensorFloat-32 again" in engine.difference()
    engine(x)


@pytest.mark.gpu
def test_a_prediction_follows_the_precision():
    """With weights and inputs whose sums do not round: what differs is which plan there is."""
    model = POOLS["relu"]()
    whole_sixteenths(model)
    convert(model, p=0.5)
    model.to("cuda").eval()
    x = torch.randint(-2, 3, (5, 3, 9, 8)).to("cuda", torch.float32)
    engine = MonteCarloEngine(model, x, 3)
    want = predict_with_uncertainty(model, x, 3, engine="folded", return_samples=True)
    assert_near(predict_with_uncertainty(model, x, 3, return_samples=True), want)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert_near(predict_with_uncertainty(model, x, 3, return_samples=True), want)
        with pytest.raises(ModelChanged, match="TensorFloat-32"):
            engine(x)
        full = MonteCarloEngine(model, x, 3)
        assert_near(full(x, return_samples=True), want)
    for again in (engine, full):
        assert_near(again(x, return_samples=True), want)


@pytest.mark.gpu
@pytest.mark.parametrize("scope", ["sample", "pass"])
@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)],
)
@pytest.mark.parametrize("name", ["pool", "relu", "strides", "dilated columns"])
def test_results_are_those_of_separate_steps(name, dtype, rounded, scope, monkeypatch):
    """With weights and inputs whose sums do not round: only the softmax may."""
    monkeypatch.setattr(_device, "convolution_tensor_float32", lambda: rounded)
    torch.manual_seed(0)
    model = POOLS[name]()
    whole_sixteenths(model)
    convert(model, p=0.5, scope=scope)
    model = model.to("cuda", dtype).eval()
    x = torch.randint(-2, 3, (5, 3, 9, 8)).to("cuda", dtype)
    engine = MonteCarloEngine(model, x, 3)
    pools = any("pool" in step.op for step in engine.plan.steps)
    assert pools == (not rounded)
    want = predict_with_uncertainty(model, x, 3, engine="folded", return_samples=True)
    assert_near(engine(x, return_samples=True), want)
