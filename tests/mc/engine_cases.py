"""Models, inputs and comparisons for the tests of the engine."""

import torch
from torch import nn

from bayes_dc import convert
from bayes_dc.mc.statistics import Summary
from bayes_dc.models import mlp

K, C = 12, 5


def network(*, dropout=0.0, device="cpu", **options):
    """An MLP in which every layer draws masks."""
    torch.manual_seed(0)
    model = mlp(K, C, hidden=(16, 9), dropout=dropout)
    convert(model, p=0.5, **options)
    return model.to(device)


def convnet(device="cpu"):
    """Convolutions without masks, BatchNorm, then layers with masks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, C),
    )
    for norm in (model[1], model[5]):
        nn.init.uniform_(norm.running_mean, -1, 1)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    convert(model, p=0.5, select=lambda name, _: name in {"4", "8"})
    return model.to(device).eval()


def inputs(model, rows, seed=1):
    """Inputs of the right shape, dtype and device."""
    parameter = next(model.parameters())
    shape = (2, 6, 6) if parameter.ndim == 4 else (K,)
    x = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed))
    return x.to(parameter)


def assert_same(got, want, rows=slice(None)):
    """Equal to the bit in every field."""
    for name in Summary._fields:
        assert torch.equal(getattr(got, name), getattr(want, name)[rows]), name
    if got.samples is not None and want.samples is not None:
        assert torch.equal(got.samples, want.samples[:, rows])


def assert_near(got, want, eps=2.0**-23):
    """Probabilities to the rounding of sums of a few dozen terms, and figures made from them."""
    bound = 64 * eps
    assert (got.samples - want.samples).abs().max() <= bound
    for name in ("mean", "variance", "mean_se"):
        assert (getattr(got, name) - getattr(want, name)).abs().max() <= bound, name
    # |dH/dp| = |1 + log p| where p is a class probability: below 16 for p above 1e-6.
    for name in ("entropy", "expected_entropy"):
        assert (getattr(got, name) - getattr(want, name)).abs().max() <= 16 * C * bound, name
