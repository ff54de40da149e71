"""A whole prediction of an MLP, statistics included, beside a loop and beside no masks at all."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key, masks
from benchmarks import baselines, gates, harness
from benchmarks.cases import OURS, Case, Sizes, precision

KINDS: dict[str, dict[str, Any]] = {
    f"{OURS}, scope row": {"scope": "row"},
    f"{OURS}, scope pass": {"scope": "pass"},
    f"{OURS}, sampler gaussian": {"sampler": "gaussian"},
}
LOOP, LOOP_COMPILED = "loop over passes, eager", "loop over passes, compiled"
FREE, FREE_COMPILED = "folded, no masks, eager", "folded, no masks, compiled"


@dataclass(frozen=True)
class Shape:
    """An entry of ``predict`` in shapes.yaml."""

    B: int
    T: int = 100
    sizes: tuple[int, ...] = (784, 1024, 1024, 10)
    dtypes: tuple[str, ...] = ("tf32",)
    compiled: bool = False
    quick: bool = False


def predict(shape: Shape, device: str) -> Iterator[Case]:
    """Every kind of ours, the loop with one mask for each pass, and the price without masks."""
    torch.manual_seed(0)
    plain = bayes_dc.models.mlp(shape.sizes[0], shape.sizes[-1], shape.sizes[1:-1]).to(device)
    plain.eval().requires_grad_(False)
    weights = weights_of(plain)
    x = torch.randn(shape.B, shape.sizes[0], device=device)
    free = baselines.folded_without_masks(plain, shape.T)
    calls: dict[str, Callable[[], object]] = {FREE: lambda: free(x)}
    if shape.compiled:
        fast = baselines.compiled(free, mode="reduce-overhead")
        calls[FREE_COMPILED] = lambda: fast(x)
    for name, options in KINDS.items():
        calls[name] = our_call(plain, x, shape.T, options)
    calls[LOOP] = lambda: baselines.loop_prediction(baselines.next_pass, weights, x, shape.T)
    if shape.compiled:
        step = baselines.compiled(baselines.next_pass)
        calls[LOOP_COMPILED] = lambda: baselines.loop_prediction(step, weights, x, shape.T)
    work = shape.B * shape.T * sum(a * b for a, b in pairwise(shape.sizes))
    limit = FREE_COMPILED if shape.compiled else FREE
    for name, call in calls.items():
        rows_per_mask = 1 if name.startswith(OURS) and "pass" not in name else shape.B
        sizes = Sizes(shape.B * shape.T, 1, work // (shape.B * shape.T), rows_per_mask)
        for dtype in shape.dtypes:
            p = 0.0 if name in (FREE, FREE_COMPILED) else 0.5
            yield Case("predict", "predict", name, sizes, dtype, call, work, limit, p)


def weights_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer."""
    return [(m.weight, m.bias) for m in model.modules() if isinstance(m, nn.Linear)]


def our_call(
    plain: nn.Module, x: Tensor, passes: int, options: dict[str, Any]
) -> Callable[[], bayes_dc.Prediction]:
    """``predict_with_uncertainty`` of a converted copy."""
    model = deepcopy(plain)
    bayes_dc.convert(model, p=0.5, **options)
    return lambda: bayes_dc.predict_with_uncertainty(model, x, passes)


def check(device: str, sizes: tuple[int, ...] = Shape.sizes) -> None:
    """Gate: a small network against explicit masks, a large one against its exact rows."""
    torch.manual_seed(0)
    small = bayes_dc.models.mlp(40, 5, (33,)).to(device).eval()
    x = torch.randn(20, 40, device=device)
    for scope in ("row", "pass"):
        found = our_call(small, x, 20, {"scope": scope})().mean
        want = by_explicit_masks(small, x, 20, scope)
        # Each of a layer's K terms rounds by half a unit; a zeroed weight moves a mean ten times
        # as far.
        bound = (40 + 33) * torch.finfo(torch.float32).eps
        error = float((found.double().cpu() - want).abs().max())
        harness.gate(error, bound, f"prediction, scope {scope}: mean probability")
    large = bayes_dc.models.mlp(sizes[0], sizes[-1], sizes[1:-1])
    large.to(device).eval().requires_grad_(False)
    weights, T, x = weights_of(large), 100, torch.randn(16, sizes[0], device=device)
    exact = our_call(large, x, T, {"scope": "row"})()
    drawn: dict[str, Callable[[], Any]] = {
        name: our_call(large, x, T, options)
        for name, options in KINDS.items()
        if options != {"scope": "row"}
    }
    drawn[LOOP] = lambda: baselines.loop_prediction(baselines.next_pass, weights, x, T)
    with precision("tf32"):
        for name, call in drawn.items():
            gates.same_prediction(call(), exact, T, f"prediction, {name}")


def by_explicit_masks(model: nn.Module, x: Tensor, passes: int, scope: str) -> Tensor:
    """Mean probabilities [B, C] by the NumPy masks of seed 0, in float64 on the CPU."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    total = torch.zeros(())
    for step in range(passes):
        rows = x.cpu().double()
        samples = torch.arange(len(rows)) if scope == "row" else torch.zeros(len(rows)).long()
        for i, layer in enumerate(layers):
            w, b = (t.detach().cpu().double() for t in (layer.weight, layer.bias))
            N, K = w.shape
            at = (samples.numpy(), (0 * samples + step).numpy())
            found = masks(layer_key(0, i), at[0], at[1], N, K, keep_digits(0.5))
            rows = 2 * torch.einsum("mk,mnk,nk->mn", rows, torch.from_numpy(found).double(), w) + b
            rows = rows.relu() if i + 1 < len(layers) else rows
        total = total + rows.softmax(dim=1)
    return total / passes
