"""A whole prediction in planned memory, statistics included, beside what one would use instead.

Memory of an engine is all that it holds (arena, statistics, ids) and what a call allocates on top;
of everything else it is what a call allocates. Weights are in neither.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayes_dc
from benchmarks import baselines, gates, harness
from benchmarks.cases import OURS, Case, Sizes, precision

KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "mlp": {
        "scope row": {"scope": "row"},
        "scope pass": {"scope": "pass"},
        "sampler gaussian": {"sampler": "gaussian"},
    },
    "lenet5": {"scope sample": {"scope": "sample"}, "scope pass": {"scope": "pass"}},
}
"""Networks, and how their layers draw."""
ENGINE, LAUNCHES, FOLDED = "engine", "engine, no graph", "folded"
LOOP = "loop over passes, eager"
FREE, FREE_COMPILED = "folded, no masks, eager", "folded, no masks, compiled"


@dataclass(frozen=True)
class Shape:
    """An entry of ``engine`` in shapes.yaml."""

    B: int
    model: str = "mlp"
    T: int = 100
    dtypes: tuple[str, ...] = ("tf32",)
    compiled: bool = False
    quick: bool = False


def ours(path: str, kind: str) -> str:
    """The name of an implementation."""
    return f"{OURS} {path}, {kind}"


def plain_network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A network, and the shape of an input."""
    torch.manual_seed(0)
    if name == "mlp":
        return bayes_dc.models.mlp(784, 10, (1024, 1024)), (784,)
    return bayes_dc.models.lenet5((1, 28, 28), 10), (1, 28, 28)


def masked_network(plain: nn.Module, options: dict[str, Any]) -> nn.Module:
    """A converted copy whose layers all draw in the same way."""
    model = deepcopy(plain)
    convolution = any(isinstance(m, nn.Conv2d) for m in model.modules())
    bayes_dc.convert(model, p=0.5, **({} if convolution else options))
    if convolution:
        for layer in model.modules():
            if isinstance(layer, bayes_dc.DropConnectConv2d | bayes_dc.DropConnectLinear):
                layer.scope = options["scope"]
    return model


def engine(shape: Shape, device: str) -> Iterator[Case]:
    """Every kind in an engine, with and without a graph, and folded; the loop; no masks at all."""
    plain, size = plain_network(shape.model)
    plain.to(device).eval().requires_grad_(False)
    x = torch.randn(shape.B, *size, device=device)
    work = shape.B * shape.T * work_of(plain, x[:1])
    limit = FREE_COMPILED if shape.compiled else FREE
    for dtype in shape.dtypes:
        with precision(dtype):  # an engine is planned for the precision it meets
            cases = list(_calls(shape, plain, x, device))
        for name, call, held in cases:
            shared = shape.B if "row" not in name and "sample" not in name else 1
            sizes = Sizes(shape.B * shape.T, 1, work // (shape.B * shape.T), shared)
            p = 0.0 if name in (FREE, FREE_COMPILED) else 0.5
            op = shape.model
            yield Case("engine", op, name, sizes, dtype, call, work, limit, p, held_mib=held)


def _calls(
    shape: Shape, plain: nn.Module, x: Tensor, device: str
) -> Iterator[tuple[str, Callable[[], object], float]]:
    """Names, calls, and the MiB that are held between calls."""
    free = baselines.folded_without_masks(plain, shape.T)
    yield FREE, lambda: free(x), 0.0
    if shape.compiled:
        fast = baselines.compiled(free, mode="reduce-overhead")
        yield FREE_COMPILED, lambda: fast(x), 0.0
    for kind, options in KINDS[shape.model].items():
        model = masked_network(plain, options)
        for path, graph in ((ENGINE, True), (LAUNCHES, False)):
            if graph or device == "cuda":
                made = make(model, x, shape.T, cuda_graph=graph)
                yield ours(path, kind), _call(made, x), sum(made.memory_bytes().values()) / 2**20
        yield ours(FOLDED, kind), _folded(model, x, shape.T), 0.0
    masked = one_mask_network(plain)
    yield LOOP, lambda: loop_prediction(masked, x, shape.T), 0.0


def make(model: nn.Module, x: Tensor, passes: int, **options: Any) -> bayes_dc.MonteCarloEngine:
    """An engine: without any allocation on a GPU, with oneDNN's on a CPU."""
    mode = "strict" if x.is_cuda else "workspace"
    return bayes_dc.MonteCarloEngine(model, x, passes, mode=mode, **options)  # type: ignore[arg-type]


def _call(engine: bayes_dc.MonteCarloEngine, x: Tensor) -> Callable[[], object]:
    return lambda: engine(x)


def _folded(model: nn.Module, x: Tensor, passes: int) -> Callable[[], object]:
    return lambda: bayes_dc.predict_with_uncertainty(model, x, passes, engine="folded")


class _DroppedLinear(nn.Linear):
    """One mask of ``F.dropout`` for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.weight, 0.5, training=True), self.bias)


class _DroppedConv2d(nn.Conv2d):
    """One mask of ``F.dropout`` for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, F.dropout(self.weight, 0.5, training=True), self.bias)


def one_mask_network(plain: nn.Module) -> nn.Module:
    """A copy that draws a mask for each weight in every forward, by plain PyTorch."""
    model = deepcopy(plain)
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = _DroppedLinear
        elif type(layer) is nn.Conv2d:
            layer.__class__ = _DroppedConv2d
    return model


def loop_prediction(model: nn.Module, x: Tensor, passes: int) -> baselines.Statistics:
    """``passes`` forwards one after another."""
    sums: baselines.Sums | None = None
    for _ in range(passes):
        logits = model(x)
        if sums is None:
            sums = baselines.no_passes(len(x), logits.shape[1], str(x.device))
        sums = baselines.add_pass(sums, logits)
    assert sums is not None
    return baselines.statistics(sums, passes)


def work_of(model: nn.Module, x: Tensor) -> int:
    """Multiply-adds of one forward of one input."""
    total = 0

    def count(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear | nn.Conv2d):
            places = output.numel() // module.weight.shape[0]
            total += places * module.weight.numel()

    hooks = [m.register_forward_hook(count) for m in model.modules()]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def check(device: str) -> None:
    """Gate: engines against the folded path, whose masks are checked by ``predict``, and the loop.

    In float32 without TensorFloat-32: a zeroed weight moves a mean ten times as far as the bound.
    """
    for name, kinds in KINDS.items():
        plain, size = plain_network(name)
        plain.to(device).eval().requires_grad_(False)
        x, T = torch.randn(16, *size, device=device), 100
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for kind, options in kinds.items():
                model = masked_network(plain, options)
                found = make(model, x, T)(x)
                want = bayes_dc.predict_with_uncertainty(model, x, T, engine="folded")
                bound = 1024 * torch.finfo(torch.float32).eps
                error = float((found.mean - want.mean).abs().max())
                harness.gate(error, bound, f"{name}, {kind}: mean probability")
            masked = one_mask_network(plain)
            gates.same_prediction(loop_prediction(masked, x, T), found, T, f"{name}, {LOOP}")
