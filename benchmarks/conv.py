"""A mask for every image of a convolution, beside the convolution without masks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key
from benchmarks import baselines, gates
from benchmarks.cases import ALL, DENSE, OURS, Case, Sizes, torch_dtype
from benchmarks.row_masks import Calls, drawn_calls

GROUPED, UNFOLDED = "dropout, grouped conv, eager", "dropout, unfold, bmm, eager"
P, SEED = 0.5, 0


@dataclass(frozen=True)
class Shape:
    """An entry of ``conv`` in shapes.yaml: B images of ``size`` × ``size``, C to N channels.

    The kernel is ``kernel`` × ``kernel``, padded by half of it. ``copies``: also what needs a copy
    of the weights for every image, 9·B·N·kernel²·C bytes and more in 16 bits.
    """

    B: int
    C: int
    N: int
    size: int
    kernel: int = 3
    stride: int = 1
    dtypes: tuple[str, ...] = ("float32",)
    copies: bool = False
    quick: bool = False

    @property
    def padding(self) -> int:
        """Zeros on every side."""
        return self.kernel // 2

    @property
    def out(self) -> int:
        """Height and width of the output."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1


def conv(shape: Shape, device: str) -> Iterator[Case]:
    """Forward, dx, dw and all of them, channels last; what copies weights, in what it takes."""
    for dtype in shape.dtypes:
        torch.manual_seed(0)
        sizes = (
            (shape.B, shape.C, shape.size, shape.size),
            (shape.N, shape.C, shape.kernel, shape.kernel),
            (shape.B, shape.N, shape.out, shape.out),
        )
        x, w, gy = (
            torch.randn(s, device=device, dtype=torch_dtype(dtype)).to(
                memory_format=torch.channels_last
            )
            for s in sizes
        )
        yield from cases(DENSE, dense_calls(x, w, gy, shape), shape, dtype, p=0.0)
        yield from cases(OURS, our_calls(x, w, gy, shape), shape, dtype)
        if shape.copies:
            x, w, gy = x.contiguous(), w.contiguous(), gy.contiguous()
            for name, function in COPYING.items():
                here = partial(function, stride=shape.stride)
                calls = drawn_calls(here, x, w, gy)
                yield from cases(name, {op: calls[op] for op in ("fwd", ALL)}, shape, dtype)


def cases(name: str, calls: Calls, shape: Shape, dtype: str, p: float = P) -> Iterator[Case]:
    """One case for each operation."""
    positions = shape.out**2
    sizes = Sizes(shape.B * positions, shape.N, shape.kernel**2 * shape.C, positions)
    for op, call in calls.items():
        work = sizes.M * sizes.N * sizes.K * (3 if op == ALL else 1)
        yield Case("conv", op, name, sizes, dtype, call, work, DENSE, p)


def dense_calls(x: Tensor, w: Tensor, gy: Tensor, shape: Shape) -> Calls:
    """Without masks; on cuda by the fastest algorithm that cuDNN finds."""
    stride, padding = shape.stride, shape.padding
    both = baselines.with_backward(partial(F.conv2d, stride=stride, padding=padding))

    def backward(of_input: bool) -> Callable[[], object]:
        geometry = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
        wanted = [of_input, not of_input, False]
        return lambda: torch.ops.aten.convolution_backward(gy, x, w, None, *geometry, wanted)

    calls = {
        "fwd": lambda: F.conv2d(x, w, stride=stride, padding=padding),
        "dx": backward(True),
        "dw": backward(False),
        ALL: lambda: both(x, w, gy),
    }
    return {op: partial(searched, call) for op, call in calls.items()}


def searched(call: Callable[[], object]) -> object:
    """``call`` with cuDNN's search for the fastest algorithm, which runs with the first."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return call()


def our_calls(x: Tensor, w: Tensor, gy: Tensor, shape: Shape) -> Calls:
    """The three operators on [1, B, H, W, C] tensors, and with autograd."""
    digits = keep_digits(P)
    key = torch.tensor(layer_key(SEED, 0), device=x.device)
    ids = torch.arange(len(x), device=x.device)
    geometry = (*[shape.stride] * 2, *[shape.padding] * 2, 1, 1, 1)
    scale = 1.0 / digits.keep_probability
    at = (key, ids, ids[:1], digits.keep, digits.bits, scale, *geometry)
    images, grad = (t.permute(0, 2, 3, 1)[None] for t in (x, gy))
    taps, ops = w.permute(0, 2, 3, 1), torch.ops.bayes_dc

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return bayes_dc.dropconnect_conv2d(
            x, w, stride=shape.stride, padding=shape.padding, p=P, key=key
        )

    both = baselines.with_backward(layer)
    return {
        "fwd": lambda: ops.conv2d(images, taps, None, *at),
        "dx": lambda: ops.conv2d_dx(grad, taps, *at, *x.shape[2:]),
        "dw": lambda: ops.conv2d_dw(grad, images, *at, *w.shape[2:]),
        ALL: lambda: both(x, w, gy),
    }


def check(device: str) -> None:
    """Ours on integers, what draws with torch's generator by its moments."""
    for dtype in ("bfloat16", "float32") if device == "cuda" else ("float32",):
        for C, N, stride in ((3, 40, 1), (64, 72, 1), (64, 72, 2)):
            gates.conv_is_exact(device, dtype, C, N, stride)
    for name, function in COPYING.items():
        gates.moments_are_right(gates.pixels_as_rows(function), device, name)


COPYING = {GROUPED: baselines.grouped_convolution, UNFOLDED: baselines.unfolded_convolution}
