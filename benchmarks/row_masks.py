"""A mask for every row: ours, the dense product, the published style, copies of W for every row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key
from benchmarks import baselines, harness
from benchmarks.cases import ALL, DENSE, OURS, Case, Sizes, torch_dtype

PUBLISHED = "published style"
BROADCAST, BROADCAST_COMPILED = "broadcast, eager", "broadcast, compiled"
SEED = 0


@dataclass(frozen=True)
class Shape:
    """An entry of ``rows``, ``small`` or ``memory`` in shapes.yaml."""

    M: int
    N: int
    K: int
    p: tuple[float, ...] = (0.5,)
    dtypes: tuple[str, ...] = ("float32",)
    published: bool = False
    copies: bool = False
    compiled: bool = False
    quick: bool = False


Calls = dict[str, Callable[[], object]]


def limit_of(device: str) -> float | str:
    """Issue slots of the GPU, the dense product of the same run on the CPU."""
    return harness.limit_madds() if device == "cuda" else DENSE


def rows(shape: Shape, device: str) -> Iterator[Case]:
    """Forward, dx, dw and all of them, of every implementation that the entry asks for."""
    for dtype in shape.dtypes:
        x, w, gy = tensors(shape, device, dtype)
        yield from cases("rows", DENSE, dense_calls(x, w, gy), shape, dtype, device, p=0.0)
        for p in shape.p:
            yield from cases("rows", OURS, our_calls(x, w, gy, p), shape, dtype, device, p=p)
        if shape.published:
            calls = published_calls(x, w, gy)
            yield from cases("rows", PUBLISHED, calls, shape, dtype, device)
        if shape.copies:
            calls = drawn_calls(baselines.broadcast, x, w, gy)
            yield from cases("rows", BROADCAST, calls, shape, dtype, device)
        if shape.compiled:
            calls = drawn_calls(baselines.compiled(baselines.broadcast), x, w, gy)
            calls = {op: calls[op] for op in ("fwd", ALL)}  # a compiled backward makes both
            yield from cases("rows", BROADCAST_COMPILED, calls, shape, dtype, device)


def small(shape: Shape, device: str) -> Iterator[Case]:
    """The forward of few rows in a CUDA graph, where the host's time does not count."""
    for dtype in shape.dtypes:
        x, w, gy = tensors(shape, device, dtype)
        forward: Calls = {"fwd": partial(F.linear, x, w)}
        yield from cases("small", DENSE, forward, shape, dtype, device, p=0.0, timing="graph")
        for p in shape.p:
            forward = {"fwd": our_calls(x, w, gy, p)["fwd"]}
            yield from cases("small", OURS, forward, shape, dtype, device, p=p, timing="graph")


def memory(shape: Shape, device: str) -> Iterator[Case]:
    """Forward and backward of a layer whose copies of W would not fit any GPU."""
    for dtype in shape.dtypes:
        x, w, gy = tensors(shape, device, dtype)
        calls = {ALL: our_calls(x, w, gy, 0.5)[ALL]}
        yield from cases("memory", OURS, calls, shape, dtype, device)


def cases(
    group: str,
    name: str,
    calls: Calls,
    shape: Shape,
    dtype: str,
    device: str,
    *,
    p: float = 0.5,
    timing: str = "events",
) -> Iterator[Case]:
    """One case for each operation."""
    sizes = Sizes(shape.M, shape.N, shape.K, 1)
    for op, call in calls.items():
        work = shape.M * shape.N * shape.K * (3 if op == ALL else 1)
        yield Case(group, op, name, sizes, dtype, call, work, limit_of(device), p, timing)


def tensors(shape: Shape, device: str, dtype: str) -> list[Tensor]:
    """Return x [M, K], w [N, K] and dy [M, N]."""
    M, N, K = shape.M, shape.N, shape.K
    torch.manual_seed(0)
    sizes = ((M, K), (N, K), (M, N))
    return [torch.randn(s, device=device, dtype=torch_dtype(dtype)) for s in sizes]


def dense_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """Products of torch without masks."""
    both = baselines.with_backward(F.linear)
    return {
        "fwd": lambda: x @ w.t(),
        "dx": lambda: gy @ w,
        "dw": lambda: gy.t() @ x,
        ALL: lambda: both(x, w, gy),
    }


def our_calls(x: Tensor, w: Tensor, gy: Tensor, p: float) -> Calls:
    """The three operators on [1, M, 1, …] tensors; the public function with autograd."""
    digits = keep_digits(p)
    key = torch.tensor(layer_key(SEED, 0), device=x.device)
    ids = torch.arange(len(x), device=x.device)
    first = torch.zeros(1, dtype=torch.int64, device=x.device)
    at = (key, ids, first, digits.keep, digits.bits, 1.0 / digits.keep_probability)
    x4, gy4, ops = x[None, :, None], gy[None, :, None], torch.ops.bayes_dc

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return bayes_dc.dropconnect_linear(x, w, p=p, key=key, sample_ids=ids, pass_ids=first)

    both = baselines.with_backward(layer)
    return {
        "fwd": lambda: ops.linear(x4, w, None, *at),
        "dx": lambda: ops.linear_dx(gy4, w, *at),
        "dw": lambda: ops.linear_dw(gy4, x4, *at),
        ALL: lambda: both(x, w, gy),
    }


def published_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """The kernels of ``published.py``."""
    from benchmarks import published

    both = baselines.with_backward(lambda x, w: published.linear(x, w, SEED))
    return {
        "fwd": lambda: published.forward(x, w, SEED),
        "dx": lambda: published.grad_input(gy, w, SEED),
        "dw": lambda: published.grad_weight(gy, x, SEED),
        ALL: lambda: both(x, w, gy),
    }


def drawn_calls(function: baselines.Function, x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """A function whose backward uses the masks that its forward stored.

    Its forward for "dx" and "dw" runs once, untimed, and what it stored is not in their memory.
    """
    both = baselines.with_backward(function)
    return {
        "fwd": lambda: function(x, w),
        "dx": stored_gradient(function, x, w, gy, of_input=True),
        "dw": stored_gradient(function, x, w, gy, of_input=False),
        ALL: lambda: both(x, w, gy),
    }


def stored_gradient(
    function: baselines.Function, x: Tensor, w: Tensor, gy: Tensor, *, of_input: bool
) -> Callable[[], object]:
    """A call that goes backward only; the forward runs with the first."""
    x, w = x.detach().requires_grad_(of_input), w.detach().requires_grad_(not of_input)
    wanted = x if of_input else w
    outputs: list[Tensor] = []

    def call() -> object:
        if not outputs:
            outputs.append(function(x, w))
        return torch.autograd.grad(outputs[0], wanted, gy, retain_graph=True)

    return call
