"""Moment-matched draws: two products and a draw for each output, beside one product."""

from collections.abc import Iterator

import torch
from torch import Tensor

import bayes_dc
from bayes_dc.rng import layer_key
from benchmarks import baselines
from benchmarks.cases import ALL, DENSE, OURS, Case, Sizes
from benchmarks.row_masks import Calls, Shape, dense_calls, tensors

EAGER, COMPILED = "two products, draw, eager", "two products, draw, compiled"
SEED = 0


def gaussian(shape: Shape, device: str) -> Iterator[Case]:
    """Forward, and with backward; on a GPU the forward also in a graph, without the host."""
    for dtype in shape.dtypes:
        x, w, gy = tensors(shape, device, dtype)
        dense, ours = whole(dense_calls(x, w, gy)), function_calls(our_layer(x), x, w, gy)
        yield from cases(DENSE, dense, shape, dtype, p=0.0)
        yield from cases(OURS, ours, shape, dtype)
        if device == "cuda":
            for name, calls, p in ((DENSE, dense, 0.0), (OURS, ours, 0.5)):
                forward = {"fwd": calls["fwd"]}
                yield from cases(name, forward, shape, dtype, p, timing="graph")
        eager = function_calls(baselines.two_products, x, w, gy)
        yield from cases(EAGER, eager, shape, dtype)
        if shape.compiled:
            compiled = function_calls(baselines.compiled(baselines.two_products), x, w, gy)
            yield from cases(COMPILED, compiled, shape, dtype)


def our_layer(x: Tensor) -> baselines.Function:
    """``dropconnect_linear`` with ids made beforehand."""
    key = torch.tensor(layer_key(SEED, 0), device=x.device)
    ids = torch.arange(len(x), device=x.device)
    first = torch.zeros(1, dtype=torch.int64, device=x.device)

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return bayes_dc.dropconnect_linear(
            x, w, p=0.5, key=key, sample_ids=ids, pass_ids=first, sampler="gaussian"
        )

    return layer


def function_calls(function: baselines.Function, x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """Forward, and with backward."""
    both = baselines.with_backward(function)
    return {"fwd": lambda: function(x, w), ALL: lambda: both(x, w, gy)}


def whole(calls: Calls) -> Calls:
    """Without the single gradients."""
    return {op: calls[op] for op in ("fwd", ALL)}


def cases(
    name: str, calls: Calls, shape: Shape, dtype: str, p: float = 0.5, timing: str = "events"
) -> Iterator[Case]:
    """One case for each operation; work is that of one product."""
    sizes = Sizes(shape.M, shape.N, shape.K, 1)
    for op, call in calls.items():
        work = shape.M * shape.N * shape.K * (3 if op == ALL else 1)
        yield Case("gaussian", op, name, sizes, dtype, call, work, DENSE, p, timing)
