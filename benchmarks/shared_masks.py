"""R rows share a mask: G masked products at once, beside one product of the same size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key
from benchmarks import baselines
from benchmarks.cases import ALL, DENSE, OURS, Case, Sizes, torch_dtype
from benchmarks.row_masks import Calls, drawn_calls

MADE_BEFORE = "bmm, masked weights made before"
BY_KERNEL = "masks by a kernel, bmm"
EXPANDED, EXPANDED_COMPILED = "dropout, bmm, eager", "dropout, bmm, compiled"
LOOP, LOOP_COMPILED = "loop over masks, eager", "loop over masks, compiled"
P, SEED = 0.5, 0


@dataclass(frozen=True)
class Shape:
    """An entry of ``shared`` in shapes.yaml: G passes over the same R rows."""

    G: int
    R: int
    N: int
    K: int
    dtypes: tuple[str, ...] = ("float32",)
    compiled: bool = False
    quick: bool = False


def shared(shape: Shape, device: str) -> Iterator[Case]:
    """Forward, dx, dw and all of them; the G groups read one x, as the first layer does."""
    for dtype in shape.dtypes:
        G, R, N, K = shape.G, shape.R, shape.N, shape.K
        torch.manual_seed(0)
        sizes = ((R, K), (N, K), (G, R, N))
        x, w, gy = (torch.randn(s, device=device, dtype=torch_dtype(dtype)) for s in sizes)
        x = x.expand(G, R, K)
        yield from cases(DENSE, dense_calls(x, w, gy), shape, dtype, p=0.0)
        yield from cases(OURS, our_calls(x, w, gy), shape, dtype)
        yield from cases(MADE_BEFORE, bmm_calls(x, w, gy), shape, dtype)
        yield from cases(EXPANDED, drawn_calls(baselines.expanded, x, w, gy), shape, dtype)
        if device == "cuda":
            yield from cases(BY_KERNEL, kernel_calls(x, w, gy), shape, dtype)
        eager = baselines.loop(baselines.one_mask)
        yield from cases(LOOP, drawn_calls(eager, x, w, gy), shape, dtype)
        if shape.compiled:
            once = baselines.compiled(baselines.expanded)
            yield from cases(EXPANDED_COMPILED, whole(drawn_calls(once, x, w, gy)), shape, dtype)
            step = baselines.loop(baselines.compiled(baselines.one_mask))
            yield from cases(LOOP_COMPILED, whole(drawn_calls(step, x, w, gy)), shape, dtype)


def whole(calls: Calls) -> Calls:
    """Without the single gradients: a compiled backward makes both."""
    return {op: calls[op] for op in ("fwd", ALL)}


def cases(name: str, calls: Calls, shape: Shape, dtype: str, p: float = P) -> Iterator[Case]:
    """One case for each operation."""
    sizes = Sizes(shape.G * shape.R, shape.N, shape.K, shape.R)
    for op, call in calls.items():
        work = sizes.M * sizes.N * sizes.K * (3 if op == ALL else 1)
        yield Case("shared", op, name, sizes, dtype, call, work, DENSE, p)


def dense_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """One product over all G·R rows, each there in memory."""
    rows, grad = x.reshape(-1, x.shape[-1]), gy.flatten(0, 1)
    both = baselines.with_backward(F.linear)
    return {
        "fwd": lambda: rows @ w.t(),
        "dx": lambda: grad @ w,
        "dw": lambda: grad.t() @ rows,
        ALL: lambda: both(rows, w, grad),
    }


def our_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """The three operators on [G, 1, R, …] tensors, and with autograd."""
    digits = keep_digits(P)
    key = torch.tensor(layer_key(SEED, 0), device=x.device)
    passes = torch.arange(len(x), device=x.device)
    first = torch.zeros(1, dtype=torch.int64, device=x.device)
    at = (key, first, passes, digits.keep, digits.bits, 1.0 / digits.keep_probability)
    x4, gy4, ops = x[:, None], gy[:, None], torch.ops.bayes_dc
    (G, R, K), ids = x.shape, torch.arange(x.shape[1], device=x.device)

    def layer(x: Tensor, w: Tensor) -> Tensor:
        rows = x.reshape(G * R, K)
        y = bayes_dc.dropconnect_linear(
            rows, w, p=P, key=key, sample_ids=ids, pass_ids=passes, scope="pass"
        )
        return y.unflatten(0, (G, R))

    both, full = baselines.with_backward(layer), x.contiguous()
    return {
        "fwd": lambda: ops.linear(x4, w, None, *at),
        "dx": lambda: ops.linear_dx(gy4, w, *at),
        "dw": lambda: ops.linear_dw(gy4, x4, *at),
        ALL: lambda: both(full, w, gy),
    }


def kernel_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """Masked copies by one kernel, then the product; no weight gradient."""
    from benchmarks import expand

    return {
        "fwd": lambda: expand.forward(x, w, SEED),
        "dx": lambda: expand.grad_input(gy, w, SEED),
    }


def bmm_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """Products with masked weights that are there already: no mask is paid for but in dw."""

    @cache
    def made() -> tuple[Tensor, Tensor]:
        masks = torch.rand(len(x), *w.shape, device=w.device, dtype=w.dtype) < P
        return (w * masks).div_(1 - P), masks

    def dw() -> Tensor:
        return (torch.bmm(gy.transpose(1, 2), x) * made()[1]).sum(dim=0).div_(1 - P)

    calls: dict[str, Callable[[], object]] = {
        "fwd": lambda: torch.bmm(x, made()[0].transpose(1, 2)),
        "dx": lambda: torch.bmm(gy, made()[0]),
        "dw": dw,
    }
    steps = tuple(calls.values())
    return {**calls, ALL: lambda: [step() for step in steps]}
