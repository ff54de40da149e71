"""Draws against the closed form, and against the masks they stand for."""

import re
from pathlib import Path

import pytest
import torch
from gaussian_case import make_case
from harness import BACKENDS, Shape
from scipy import stats

import bayes_dc.ops.gaussian
from bayes_dc.ops import dropconnect_linear
from bayes_dc.rng import keep_digits
from bayes_dc.types import MaskKey

README = Path(bayes_dc.ops.gaussian.__file__).parent / "README.md"
COMPILED = [b for b in BACKENDS if b.values != ("interpreter",)]


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("p", [0.5, 0.25, 0.1])
def test_mean_and_variance_are_those_of_the_closed_form(p, backend):
    """E[y] = W x + b, Var[y_n] = p/(1−p) Σ_k (W_nk x_k)²; bounds are 5 standard errors."""
    passes, N, K = 4096, 48, 40
    case = make_case(Shape(passes, 1, 1, N, K), p, shared=True)
    q = case.digits.p_effective
    y = case.run(backend).double().view(passes, N)
    x, w = case.x[0, 0, 0].double(), case.w.double()
    mean, variance = w @ x + case.b.double(), q / (1 - q) * (w * x).square().sum(dim=1)
    assert ((y.mean(dim=0) - mean).abs() <= 5 * (variance / passes).sqrt()).all()
    # Var(s²) = 2 σ⁴ / (T − 1) of a normal
    spread = variance * (2 / (passes - 1)) ** 0.5
    assert ((y.var(dim=0) - variance).abs() <= 5 * spread).all()


@pytest.mark.parametrize("backend", COMPILED)
def test_draws_are_normal_and_independent_between_outputs(backend):
    passes, N = 4096, 8
    case = make_case(Shape(passes, 2, 1, N, 20), shared=True)
    mean, var = case.expected_moments()
    z = (case.run(backend).double() - mean) / var.sqrt()
    flat = z.view(passes, 2 * N)
    for column in flat.T:
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-4
    correlation = torch.corrcoef(flat.T) - torch.eye(2 * N)
    assert correlation.abs().max() < 5 / passes**0.5


def distance(p: float, K: int, *, passes: int = 40_000, outputs: int = 32) -> float:
    """Median over outputs of sup |F_masks − F_normal|, for standard normal weights and inputs."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(outputs, K, generator=generator)
    x = torch.randn(1, K, generator=generator)
    ids = {"pass_ids": torch.arange(passes), "sample_ids": torch.zeros(1, dtype=torch.int64)}
    y = dropconnect_linear(x, w, p=p, key=MaskKey(3), **ids).view(passes, outputs).double()
    q = keep_digits(p).p_effective
    mean = w.double() @ x[0].double()
    root = (q / (1 - q) * (w.double() * x[0].double()).square().sum(dim=1)).sqrt()
    z = ((y - mean) / root).numpy()
    found = sorted(stats.kstest(z[:, n], "norm").statistic for n in range(outputs))
    return (found[outputs // 2 - 1] + found[outputs // 2]) / 2


def table() -> dict[tuple[float, int], float]:
    """Distances as the README lists them, by p and K."""
    rows = re.findall(r"^\| (0\.\d+) \|(.*)\|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    sizes = (8, 32, 256, 1024)
    return {
        (float(p), K): float(value)
        for p, values in rows
        for K, value in zip(sizes, values.split("|"), strict=True)
    }


def test_the_sampler_deviates_from_the_masks_as_the_readme_says():
    """Far from normal for few inputs or few drops, near for many."""
    listed = table()
    assert len(listed) == 16
    for at in ((0.5, 32), (0.1, 32), (0.5, 256)):
        assert distance(*at) == pytest.approx(listed[at], abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("at", sorted(table()) if README.exists() else [])
def test_every_distance_of_the_readme(at):
    assert distance(*at) == pytest.approx(table()[at], abs=5e-4)
