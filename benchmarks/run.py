"""Benchmarks of the DropConnect linear and of a whole prediction: ``python -m benchmarks.run``."""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key, masks
from benchmarks import harness
from benchmarks.harness import Row

Calls = dict[tuple[str, str], Callable[[], object]]


def main() -> None:
    """Run what fits the device, print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    parser.add_argument("--keep", action="store_true", help="add the rows to benchmarks/results")
    arguments = parser.parse_args()
    device = arguments.device
    shapes = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
    where = harness.environment(device)
    check_masks(device)
    rows: list[Row] = []
    for shape in shapes[device]:
        print(f"measuring {shape['M']}×{shape['N']}×{shape['K']} …", file=sys.stderr)
        rows += linear_rows(shape, device, where)
    rows += prediction_rows(device, where)
    print(" · ".join(where.values()))
    print(harness.table(rows))
    print_ratios(rows)
    print("limit: see benchmarks/harness.py; MiB: highest allocation beyond the inputs")
    if arguments.keep:
        print("added to", harness.append(rows, device).name)


def check_masks(device: str) -> None:
    """Gate: forward and gradients of integers against explicit masks, exactly."""
    generator = torch.Generator().manual_seed(0)
    x, w, gy = (
        torch.randint(-2, 3, shape, generator=generator).float()
        for shape in ((70, 133), (97, 133), (70, 97))
    )
    for p in (0.5, 0.25, 0.1):
        digits = keep_digits(p)
        samples = torch.arange(70).numpy()
        found = masks(layer_key(3, 0), samples, 0 * samples, 97, 133, digits)
        mask = torch.from_numpy(found).float()
        moved = [t.to(device, copy=True).requires_grad_() for t in (x, w)]
        key = bayes_dc.types.MaskKey(3)
        y = bayes_dc.dropconnect_linear(*moved, p=p, key=key, scale="none")
        dx, dw = torch.autograd.grad(y, moved, gy.to(device))
        want = (
            torch.einsum("mk,mnk,nk->mn", x, mask, w),
            torch.einsum("mn,mnk,nk->mk", gy, mask, w),
            torch.einsum("mn,mnk,mk->nk", gy, mask, x),
        )
        for name, got, exact in zip(("forward", "dx", "dw"), (y, dx, dw), want, strict=True):
            harness.gate(float((got.detach().cpu() - exact).abs().max()), 0.0, f"{name} at p = {p}")


def linear_rows(shape: dict[str, Any], device: str, where: dict[str, str]) -> Iterator[Row]:
    """Forward, dx and dw; the dense product; the broadcast formulation where it fits."""
    M, N, K = shape["M"], shape["N"], shape["K"]
    torch.manual_seed(0)
    x, w, gy = (torch.randn(s, device=device) for s in ((M, K), (N, K), (M, N)))
    dense: dict[str, Callable[[], object]] = {
        "fwd": lambda: x @ w.t(),
        "dx": lambda: gy @ w,
        "dw": lambda: gy.t() @ x,
    }
    work = M * N * K
    limits = {}
    for op, call in dense.items():
        times = harness.measure(call, device)
        limit = work / (1e-3 * harness.quantile(times, 0.5))
        limits[op] = harness.limit_madds() if device == "cuda" else limit
        yield _row(op, "dense, no mask", shape, 0.0, times, limits[op], call, device, where)
    for p in shape["p"]:
        for (op, name), call in bayes_dc_calls(x, w, gy, p).items():
            times = harness.measure(call, device)
            yield _row(op, name, shape, p, times, limits[op], call, device, where)
    if shape.get("naive"):
        for (op, name), call in naive_calls(x, w, gy).items():
            times = harness.measure(call, device)
            yield _row(op, name, shape, 0.5, times, limits["fwd"], call, device, where)


def bayes_dc_calls(x: Tensor, w: Tensor, gy: Tensor, p: float) -> Calls:
    """The three operators on [1, M, 1, …] tensors."""
    digits = keep_digits(p)
    at = (
        torch.tensor(layer_key(0, 0), device=x.device),
        torch.arange(len(x), device=x.device),
        torch.zeros(1, dtype=torch.int64, device=x.device),
        digits.keep,
        digits.bits,
        1.0 / digits.keep_probability,
    )
    x4, gy4, ops = x[None, :, None], gy[None, :, None], torch.ops.bayes_dc
    return {
        ("fwd", "bayes_dc"): lambda: ops.linear(x4, w, None, *at),
        ("dx", "bayes_dc"): lambda: ops.linear_dx(gy4, w, *at),
        ("dw", "bayes_dc"): lambda: ops.linear_dw(gy4, x4, *at),
    }


def naive_calls(x: Tensor, w: Tensor, gy: Tensor) -> Calls:
    """One copy of W for each row, dropped out, matrix product; forward, and with backward."""

    def forward() -> Tensor:
        copies = F.dropout(w.expand(len(x), *w.shape), 0.5, training=True)
        return torch.bmm(copies, x.unsqueeze(2)).squeeze(2)

    def both() -> object:
        xg, wg = x.detach().requires_grad_(), w.detach().requires_grad_()
        copies = F.dropout(wg.expand(len(x), *w.shape), 0.5, training=True)
        y = torch.bmm(copies, xg.unsqueeze(2)).squeeze(2)
        return torch.autograd.grad(y, (xg, wg), gy)

    return {("fwd", "broadcast, eager"): forward, ("all", "broadcast, eager"): both}


def prediction_rows(device: str, where: dict[str, str]) -> Iterator[Row]:
    """``predict_with_uncertainty`` of an MLP, T = 100; work is that of all its layers."""
    sizes = (784, 1024, 1024, 10)
    model = bayes_dc.models.mlp(784, 10, (1024, 1024)).to(device)
    bayes_dc.convert(model, p=0.5)
    work = sum(a * b for a, b in pairwise(sizes))
    for B in (1, 100, 1000) if device == "cuda" else (1, 10):
        x = torch.randn(B, 784, device=device)

        def call(x: Tensor = x) -> object:
            return bayes_dc.predict_with_uncertainty(model, x, 100)

        times = harness.measure(call, device)
        shape = {"M": 100 * B, "N": 1, "K": work}
        limit = harness.limit_madds() if device == "cuda" else float("nan")
        yield _row("predict", "bayes_dc MLP", shape, 0.5, times, limit, call, device, where)


def _row(
    op: str,
    name: str,
    shape: dict[str, Any],
    p: float,
    times: list[float],
    limit: float,
    call: Callable[[], object],
    device: str,
    where: dict[str, str],
) -> Row:
    median = harness.quantile(times, 0.5)
    work = shape["M"] * shape["N"] * shape["K"] * (3 if op == "all" else 1)
    rate = work / (1e-3 * median)
    return Row(
        op=op,
        implementation=name,
        M=shape["M"],
        N=shape["N"],
        K=shape["K"],
        p=p,
        dtype="float32",
        ms_p20=round(harness.quantile(times, 0.2), 4),
        ms_p50=round(median, 4),
        ms_p80=round(harness.quantile(times, 0.8), 4),
        giga_madds_per_s=round(rate / 1e9, 3),
        percent_of_limit=round(100 * rate / limit, 1),
        peak_mib=round(harness.peak_mib(call, device), 1),
        **where,
    )


def print_ratios(rows: list[Row]) -> None:
    """How many times faster than the broadcast formulation, in this run."""
    forward = {
        (r.M, r.N, r.K, r.implementation): r.ms_p50 for r in rows if r.op == "fwd" and r.p == 0.5
    }
    for (M, N, K, name), slow in forward.items():
        if name == "broadcast, eager":
            ratio = slow / forward[M, N, K, "bayes_dc"]
            print(f"forward {M}×{N}×{K}: {ratio:.0f} times the speed of the broadcast formulation")


if __name__ == "__main__":
    main()
