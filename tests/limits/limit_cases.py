"""Models, inputs and comparisons for the tests of numbers at their limits, and of load."""

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayes_dc import (
    DropConnectConv2d,
    DropConnectLinear,
    MonteCarloEngine,
    convert,
    predict_with_uncertainty,
)
from bayes_dc.mc.statistics import Summary
from bayes_dc.models import mlp

K, C, T = 12, 5, 7
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Attention(nn.Module):
    """Three tokens of four features that look at each other, each input for itself."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = x.view(-1, 3, 4)
        parts = [t[:, None] for t in (self.query(x), self.key(x), x)]
        return F.scaled_dot_product_attention(*parts)[:, 0].flatten(1)


def every_layer(dtype=torch.float32, *, p=0.5, norms=True):
    """All kinds of layers that draw masks, with what may stand between them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        Attention() if norms else nn.Identity(),
        nn.Unflatten(1, (3, 2, 2)),
        DropConnectConv2d(3, 4, 2, padding=1, p=p),
        nn.GroupNorm(2, 4) if norms else nn.Identity(),
        nn.ReLU(),
        DropConnectConv2d(4, 4, 2, groups=2, p=p, scope="pass"),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(4) if norms else nn.Identity(),
        DropConnectLinear(4, 8, p=p, scope="row"),
        nn.Dropout(p),
        nn.ReLU(),
        DropConnectLinear(8, 8, p=p, sampler="gaussian"),
        DropConnectLinear(8, C, p=p, scope="pass"),
    )
    return model.to(dtype)


def network(dtype=torch.float32, *, p=0.5, classes=C, hidden=(16, 9)):
    """An MLP in which every layer draws a mask for every row."""
    torch.manual_seed(0)
    model = mlp(K, classes, hidden=hidden)
    convert(model, p=p)
    return model.to(dtype)


def inputs(rows, dtype=torch.float32):
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(1)).to(dtype)


def planned(model, capacity, *, passes=T, **options):
    """An engine for so many inputs."""
    example = torch.zeros(1, K, dtype=next(model.parameters()).dtype)
    return MonteCarloEngine(model, example, passes, capacity=capacity, mode="workspace", **options)


def folded(model, x, *, passes=T, **options):
    return predict_with_uncertainty(
        model, x, passes, engine="folded", return_samples=True, **options
    )


def assert_same(got, want, rows=slice(None)):
    """Equal to the bit in every field."""
    for name in Summary._fields:
        assert torch.equal(getattr(got, name), getattr(want, name)[rows]), name
    if got.samples is not None and want.samples is not None:
        assert torch.equal(got.samples, want.samples[:, rows])


def assert_sound(got):
    """Finite, in range, and what the samples say by definition; sums of few terms below log C."""
    samples, (passes, _, classes) = got.samples, got.samples.shape
    for name in Summary._fields:
        assert getattr(got, name).isfinite().all(), name
    slack = 16 * max(passes, classes) * max(1.0, math.log(classes)) * 2.0**-53

    def near(field, want):
        assert ((field - want).abs() <= slack).all()

    near(samples.sum(2), torch.ones(()))
    near(got.mean, samples.mean(0))
    near(got.variance, samples.var(0) if passes > 1 else torch.zeros(()))
    near(got.mean_se, (got.variance / passes).sqrt())
    near(got.entropy, torch.special.entr(samples.mean(0)).sum(1))
    near(got.expected_entropy, torch.special.entr(samples).sum(2).mean(0))
    near(got.mutual_information, got.entropy - got.expected_entropy)
    votes = F.one_hot(samples.argmax(2), classes).sum(0)
    near(got.variation_ratio, 1 - votes.amax(1).double() / passes)
    assert (got.variance >= 0).all()
    assert (got.mutual_information >= 0).all()
    assert (got.entropy >= 0).all()
    assert (got.entropy <= math.log(classes) + slack).all()


def digest(*tensors: Tensor) -> str:
    """Of all bits."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
