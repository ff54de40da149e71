"""What a plan says of eager mode, against the memory of a forward in eager mode."""

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from plan_harness import planned
from torch import nn

import bayes_dc
from bayes_dc.mc.plan_eager import eager_bytes
from bayes_dc.mc.trace import trace

B = 6


class Residual(nn.Module):
    """Reads its input again after two layers."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.two(F.relu(self.one(x))) + x


class Halves(nn.Module):
    """Results of several, of which one is read later than the other."""

    def forward(self, x):
        a, b = x.sin().split(2, 1)
        return torch.cat([b, a.exp() * b], 1)


class Turned(nn.Module):
    """A view that is copied."""

    def forward(self, x):
        return x.transpose(1, 2).flatten(1)


MODELS = {
    "layers": (nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3), nn.Softmax(1)), (8,)),
    "residual": (
        nn.Sequential(nn.Conv2d(1, 4, 1), Residual(), nn.Flatten(), nn.Linear(64, 3)),
        (1, 4, 4),
    ),
    "pools": (nn.Sequential(nn.AvgPool2d(2), nn.GELU(), nn.Flatten(), nn.Linear(4, 3)), (1, 4, 4)),
    "parts": (nn.Sequential(Halves(), Turned(), nn.LayerNorm(12), nn.Linear(12, 3)), (4, 3)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_peak_is_that_of_eager_mode(kind):
    """One pass over plain layers, whose tensors eager mode makes one by one."""
    model, shape = MODELS[kind]
    model.eval()
    with torch.no_grad(), LiveBytes(*model.parameters()) as memory:
        model(torch.ones(B, *shape))
    traced = trace(model, torch.ones(1, *shape), dropout=True, channels_last=False)
    assert eager_bytes(traced, B, 1) == memory.peak


def test_what_is_computed_once_stays_for_all_passes():
    """Input and first layer have B rows; later layers have them for every pass."""
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3)
    )
    bayes_dc.convert(model, p=0.5, select=["2", "4"])
    plan = planned(model, torch.ones(B, 8), 5)
    assert plan.passes == 5
    assert plan.eager_bytes == 4 * B * (8 + 16 + 5 * (32 + 32))
    assert plan.arena_bytes <= plan.eager_bytes <= plan.sum_bytes + 4 * B * 5 * 32
