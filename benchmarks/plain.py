"""Our kernels of plain layers beside torch's: ``python -m benchmarks.plain``, on a CUDA GPU.

Time      median of calls in a captured graph (harness.py: graph); torch's allocate their results
          from the graph's pool, which costs them nothing here.
Gate      the largest difference from torch's result, of its largest number, is below four roundings
          of the type (products of matrices, whose order differs: 64).
Rate      bytes that have to be read and written, or operations of products, by the time of ours.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import gate, measure, quantile

BUDGET_S = 0.03
BF16, FP32 = torch.bfloat16, torch.float32
_HEAD = f"{'kernel':26} {'shape':26} {'type':9} {'ours µs':>9} {'torch µs':>9} {'ratio':>6}  rate"


class Case(NamedTuple):
    """One line: ours and torch's on the same tensors.

    Attributes:
        name: The kernel.
        shape: What it works on.
        dtype: Type of the tensors.
        ours: Writes into the tensor it returns.
        theirs: Returns a new tensor, or writes into one.
        work: Bytes, or operations of products, of a call.
        unit: "B" or "FLOP".
    """

    name: str
    shape: str
    dtype: torch.dtype
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    work: float
    unit: str = "B"


Factory = Callable[[torch.dtype], Case]


def random(*size: int, dtype: torch.dtype, last: bool = False) -> Tensor:
    """Normal numbers on the GPU, images channels last if asked for."""
    t = torch.randn(size, device="cuda").to(dtype)
    return t.to(memory_format=torch.channels_last) if last else t


def affine(size: tuple[int, ...], *, last: bool, residual: bool = False) -> Factory:
    """Folded batch norm, a residual and ReLU in one pass, beside eager steps."""

    def case(dtype: torch.dtype) -> Case:
        from bayes_dc.ops.plain.triton_affine import launch_affine_act

        x, out = (random(*size, dtype=dtype, last=last) for _ in range(2))
        scale, shift = (random(size[1], dtype=dtype) for _ in range(2))
        mean, variance = torch.zeros_like(scale), torch.ones_like(scale)
        other = random(*size, dtype=dtype, last=last) if residual else None

        def ours() -> Tensor:
            launch_affine_act(x, scale, shift, other, out, relu=True)
            return out

        def theirs() -> Tensor:
            y = F.batch_norm(x, mean, variance, scale, shift, eps=1e-9)
            return (y if other is None else y.add_(other)).relu_()

        layout = " last" if last else ""
        what = "affine+residual+relu" if residual else "affine+relu"
        work = (3 if residual else 2) * x.nbytes
        return Case(what, "×".join(map(str, size)) + layout, dtype, ours, theirs, work)

    return case


def pool(kind: str, size: tuple[int, ...], window: int, *, last: bool) -> Factory:
    """A pool of window × window, or a mean over everything (window 0)."""

    def case(dtype: torch.dtype) -> Case:
        from bayes_dc.ops.plain import triton_pool

        x = random(*size, dtype=dtype, last=last)
        size_2d = (window, window)

        def theirs() -> Tensor:
            if window == 0:
                return F.adaptive_avg_pool2d(x, 1)
            return (F.max_pool2d if kind == "max" else F.avg_pool2d)(x, window)

        out = torch.empty_like(theirs())

        def ours() -> Tensor:
            if window == 0:
                triton_pool.launch_adaptive_avg_pool2d(x, out)
            elif kind == "max":
                triton_pool.launch_max_pool2d(x, out, kernel_size=size_2d, stride=size_2d)
            else:
                triton_pool.launch_avg_pool2d(x, out, kernel_size=size_2d, stride=size_2d)
            return out

        shape = "×".join(map(str, size)) + (" last" if last else "")
        name = f"{kind} pool {window or 'all'}"
        return Case(name, shape, dtype, ours, theirs, x.nbytes + out.nbytes)

    return case


def rows(kind: str, size: tuple[int, ...]) -> Factory:
    """LayerNorm or softmax of the last dimension."""

    def case(dtype: torch.dtype) -> Case:
        from bayes_dc.ops.plain.triton_normalize import launch_layer_norm
        from bayes_dc.ops.plain.triton_reduce import launch_softmax_rows

        x, out = (random(*size, dtype=dtype) for _ in range(2))
        weight, bias = (random(size[-1], dtype=dtype) for _ in range(2))

        def ours() -> Tensor:
            if kind == "layer norm":
                launch_layer_norm(x, weight, bias, out, eps=1e-5)
            else:
                launch_softmax_rows(x, out)
            return out

        def theirs() -> Tensor:
            if kind == "layer norm":
                return F.layer_norm(x, size[-1:], weight, bias)
            return torch.softmax(x, -1)

        return Case(kind, "×".join(map(str, size)), dtype, ours, theirs, 2 * x.nbytes)

    return case


def attention(B: int, H: int, L: int, D: int, *, causal: bool = False) -> Factory:
    """One fused kernel beside torch's choice."""

    def case(dtype: torch.dtype) -> Case:
        from bayes_dc.ops.plain.triton_attention import launch_attention

        q, k, v, out = (random(B, H, L, D, dtype=dtype) for _ in range(4))

        def ours() -> Tensor:
            launch_attention(q, k, v, out, scale=D**-0.5, causal=causal)
            return out

        def theirs() -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        work = 4.0 * B * H * L * L * D / (2 if causal else 1)
        name = "attention causal" if causal else "attention"
        return Case(name, f"{B}×{H}×{L}×{D}", dtype, ours, theirs, work, "FLOP")

    return case


def convolution(B: int, C: int, N: int, S: int, K: int = 3, *, ending: bool = False) -> Factory:
    """Same padding, channels last, beside cuDNN; ``ending``: with batch norm and ReLU behind it."""

    def case(dtype: torch.dtype) -> Case:
        from bayes_dc.ops.plain.triton_conv2d import launch_conv2d

        x = random(B, C, S, S, dtype=dtype, last=True)
        w = random(N, C, K, K, dtype=dtype, last=True)
        scale, shift = (random(N, dtype=dtype) for _ in range(2))
        mean, variance = torch.zeros_like(scale), torch.ones_like(scale)
        out = random(B, N, S, S, dtype=dtype, last=True)
        epilogue = (scale, shift, True) if ending else None
        pad = K // 2

        def ours() -> Tensor:
            launch_conv2d(x, w, None, out, padding=(pad, pad), epilogue=epilogue)
            return out

        def theirs() -> Tensor:
            y = F.conv2d(x, w, padding=pad)
            if ending:
                return F.batch_norm(y, mean, variance, scale, shift, eps=1e-9).relu_()
            return y

        shape = f"{B}×{C}→{N}×{S}² k{K}"
        work = 2.0 * B * S * S * N * C * K * K
        name = "conv+norm+relu" if ending else "conv"
        return Case(name, shape, dtype, ours, theirs, work, "FLOP")

    return case


IMAGES = (1024, 64, 32, 32)
CASES: list[tuple[Factory, torch.dtype]] = [
    *((affine(IMAGES, last=last), dtype) for last in (True, False) for dtype in (BF16, FP32)),
    (affine(IMAGES, last=True, residual=True), BF16),
    *((pool("max", IMAGES, 2, last=True), dtype) for dtype in (BF16, FP32)),
    *((pool("max", IMAGES, 2, last=False), dtype) for dtype in (BF16, FP32)),
    (pool("mean", IMAGES, 2, last=True), BF16),
    *((pool("mean", (4096, 512, 7, 7), 0, last=last), BF16) for last in (True, False)),
    *((rows("layer norm", (50000, n)), dtype) for n in (96, 768) for dtype in (BF16, FP32)),
    (rows("softmax", (500000, 10)), FP32),
    (rows("softmax", (50000, 197)), FP32),
    *((attention(64, 12, 197, 64), dtype) for dtype in (BF16, FP32)),
    (attention(8, 16, 1024, 64, causal=True), BF16),
    (attention(8, 8, 1024, 128), BF16),
    *((convolution(*size), BF16) for size in (
        (2048, 64, 64, 32), (4096, 128, 128, 16), (4096, 256, 256, 8), (4096, 512, 512, 4),
        (4096, 3, 64, 32), (4096, 256, 512, 8, 1),
    )),
    *((convolution(*s, ending=True), BF16) for s in ((2048, 64, 64, 32), (4096, 256, 256, 8))),
    *((convolution(*size), FP32) for size in ((1024, 64, 64, 32), (8192, 1, 6, 28, 5))),
]  # fmt: skip


def warm(index: int) -> None:
    """Compile what a case needs; the cache on disk serves the run."""
    factory, dtype = CASES[index]
    factory(dtype).ours()


def run() -> Iterator[str]:
    """Lines of the table, each case checked before it is timed."""
    torch.backends.cudnn.benchmark = True
    for factory, dtype in CASES:
        torch.manual_seed(0)
        case = factory(dtype)
        want = case.theirs().float()
        error = (case.ours().float() - want).abs().max() / want.abs().max()
        # TensorFloat-32 rounds to 11 bits in products.
        eps = 2.0**-11 if case.unit == "FLOP" and dtype == FP32 else torch.finfo(dtype).eps
        gate(float(error), (64 if case.unit == "FLOP" else 4) * eps, f"{case.name} {case.shape}")
        del want
        ours, theirs = (
            1e3 * quantile(measure(call, "cuda", BUDGET_S, "graph").times, 0.5)
            for call in (case.ours, case.theirs)
        )
        rate = case.work / ours * 1e6
        rate_text = f"{rate / 1e9:.0f} GB/s" if case.unit == "B" else f"{rate / 1e12:.0f} TFLOP/s"
        yield (
            f"{case.name:26} {case.shape:26} {str(dtype).removeprefix('torch.'):9} {ours:9.1f} "
            f"{theirs:9.1f} {ours / theirs:6.2f}  {rate_text}"
        )
        del case
        torch.cuda.empty_cache()


def main() -> None:
    """Compile in parallel, then print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.plain needs a CUDA GPU; the CPU engine uses torch's operators")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(12, os.cpu_count() or 1), context) as executor:
        list(executor.map(warm, range(len(CASES))))
    print(_HEAD)
    for line in run():
        print(line, flush=True)


if __name__ == "__main__":
    main()
