"""Convolutions with masks that pool: which do, in what memory, and the same results on a GPU."""

import pytest
import torch
from engine_cases import assert_near
from torch import nn

from bayes_dc import MonteCarloEngine, convert, predict_with_uncertainty
from bayes_dc.mc.plan import build_plan
from bayes_dc.ops import _device

pytest.importorskip("triton.experimental.gluon", reason="needs Gluon")


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
    convert(model, p=0.5)
    model = model.to(dtype, memory_format=torch.channels_last).eval()
    return build_plan(model, torch.zeros(3, 3, 9, 8, dtype=dtype), 4, device=device)


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
    "many outputs": lambda: network(nn.MaxPool2d(2), outputs=40),
    "groups": lambda: network(nn.MaxPool2d(2), groups=3),
    "read twice": Branch,
}


@pytest.mark.parametrize("name", POOLS)
def test_one_step(name):
    found = steps(plan(POOLS[name]()))
    assert "bayes_dc.planned_conv2d" in found
    assert not any("pool" in op for op in found)


@pytest.mark.parametrize("name", LEFT)
def test_a_step_of_its_own(name):
    assert any("pool" in op for op in steps(plan(LEFT[name]())))


def test_not_on_a_cpu():
    assert any("pool" in op for op in steps(plan(POOLS["relu"](), device="cpu")))


def test_results_before_pooling_have_memory_where_they_may_be_wanted():
    """In float32: whether TensorFloat-32 is allowed is known when the plan runs."""
    for dtype, wanted in ((torch.float32, 1), (torch.bfloat16, 0)):
        found = plan(POOLS["relu"](), dtype)
        rooms = [s.nbytes for s in found.storages if s.name.endswith(".unpooled")]
        assert rooms == [found.passes * 3 * 6 * 7 * 6 * 4] * wanted


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
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape) / 16)
    convert(model, p=0.5, scope=scope)
    model = model.to("cuda", dtype).eval()
    x = torch.randint(-2, 3, (5, 3, 9, 8)).to("cuda", dtype)
    engine = MonteCarloEngine(model, x, 3)
    assert not any("pool" in step.op for step in engine.plan.steps)
    want = predict_with_uncertainty(model, x, 3, engine="folded", return_samples=True)
    assert_near(engine(x, return_samples=True), want)
