"""Layers with masks in a plan: our launchers get the operands and ids that the layers give them."""

from itertools import pairwise

import pytest
import torch
from plan_harness import planned, run_plan
from rule_cases import Runner, T, allocations
from torch import nn

from bayes_dc import convert
from bayes_dc.mc.plan import build_plan


class Tokens(nn.Module):
    """Layers over the positions of every input, [B, L, K]."""

    def __init__(self, first=True):
        super().__init__()
        self.first = nn.Linear(5, 9) if first else nn.Identity()
        self.second = nn.Linear(9 if first else 5, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))).flatten(1)


class Turned(nn.Module):
    """A layer over positions that are not neighbours in memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 7)

    def forward(self, x):
        return self.layer(x.transpose(1, 2)).flatten(1)


def vectors(*sizes):
    layers = []
    for K, N in pairwise(sizes):
        layers += [nn.Linear(K, N), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def images(groups=1, stride=1):
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=stride, padding=1, groups=min(groups, 2)),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, padding=1, groups=groups, bias=False),
        nn.Flatten(),
    )


CASES = {
    "linear": (lambda: vectors(7, 9, 4), (7,), {}),
    "linear, one mask for a pass": (lambda: vectors(7, 9, 4), (7,), {"scope": "pass"}),
    "linear, unscaled": (lambda: vectors(7, 9, 4), (7,), {"scale": "none"}),
    "linear, gaussian": (lambda: vectors(7, 9, 4), (7,), {"sampler": "gaussian"}),
    "positions": (Tokens, (6, 5), {}),
    "positions, one mask for an input": (Tokens, (6, 5), {"scope": "sample"}),
    "positions, one mask for a pass": (Tokens, (6, 5), {"scope": "pass"}),
    "positions, gaussian": (Tokens, (6, 5), {"sampler": "gaussian"}),
    "positions apart in memory": (Turned, (4, 6), {}),
    "images": (images, (4, 6, 6), {}),
    "images, one mask for a pass": (images, (4, 6, 6), {"scope": "pass"}),
    "images, depthwise": (lambda: images(groups=6), (4, 6, 6), {}),
    "images, groups and stride": (lambda: images(groups=3, stride=2), (4, 6, 6), {}),
}


def converted(make, options, dtype=torch.float32):
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    convert(model, p=0.5, **options)
    return model.eval().to(dtype)


RARE = {"linear, unscaled", "positions, one mask for an input", "images, groups and stride"}


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.slow] * (n in RARE)) for n in CASES]
)
def test_masks_are_those_of_the_layers(case):
    """Against a plan whose rules call the public functions, in full and partial batches."""
    make, shape, options = CASES[case]
    model = converted(make, options)
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    plan, reference = build_plan(model, x, T), planned(model, x, T)
    for rows in (5, 1):
        part = x[:rows]
        want = run_plan(reference, part, seed=7)
        got = run_plan(plan, part, seed=7)
        scale = want.abs().max()
        assert (got - want).abs().max() <= 16 * torch.finfo(x.dtype).eps * scale
        assert torch.equal(run_plan(plan, part, seed=7, chunk=2), got)
        assert not torch.equal(run_plan(plan, part, seed=8), got)
        runner = Runner(plan, part, T)
        runner()
        assert not allocations(runner), runner.allocating()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["linear", "linear, gaussian", "images"])
def test_other_dtypes(case, dtype):
    make, shape, options = CASES[case]
    if case == "images":

        def make():
            return images()[:6]

    model = converted(make, options, dtype)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    plan, reference = build_plan(model, x, T), planned(model, x, T)
    got, want = run_plan(plan, x).double(), run_plan(reference, x).double()
    # BatchNorm is rounded once here and in torch, from factors made in other ways.
    assert (got - want).abs().max() <= 4 * torch.finfo(dtype).eps * want.abs().max()
    runner = Runner(plan, x, T)
    runner()
    assert not allocations(runner), runner.allocating()


class Dropped(nn.Module):
    def __init__(self, dropout, change=None):
        super().__init__()
        self.dropout, self.change = dropout, change

    def forward(self, x):
        x = x * 2 if self.change is None else self.change(x * 2)
        y = self.dropout(x)
        return (self.dropout(y + 1) * 0.5).flatten(1)


DROPOUT = {
    "elements": (lambda: nn.Dropout(0.25), None),
    "channels": (lambda: nn.Dropout2d(0.5), None),
    "alpha": (lambda: nn.AlphaDropout(0.5), None),
    "channels last": (
        lambda: nn.Dropout(0.25),
        lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    ),
    "turned": (lambda: nn.Dropout(0.25), lambda x: x.transpose(1, 3)),
}


@pytest.mark.parametrize("case", DROPOUT)
def test_dropout(case):
    make, change = DROPOUT[case]
    model = Dropped(make(), change).eval()
    x = torch.randn(5, 4, 6, 3)
    plan, reference = build_plan(model, x, T), planned(model, x, T)
    for rows in (5, 1):
        want = run_plan(reference, x[:rows])
        got = run_plan(plan, x[:rows])
        assert (got - want).abs().max() <= 4 * torch.finfo(x.dtype).eps * want.abs().max()
        runner = Runner(plan, x[:rows], T)
        runner()
        assert not allocations(runner), runner.allocating()


def test_one_launch_for_all_passes():
    """Of every layer with masks."""
    model = converted(*CASES["linear"][::2])
    plan = build_plan(model, torch.randn(5, 7), T)
    drawing = [step for step in plan.steps if step.sites]
    assert [step.sites for step in drawing] == [(0,), (1,)]
    calls = [c for s, c in Runner(plan, torch.randn(5, 7), T).calls if s.sites]
    assert len(calls) == 2
