"""Tensors of every layout for the kernels of plain layers, and how results are compared."""

import pytest
import torch
from harness import assert_bitwise_equal, device_of, moved
from torch import Tensor

TRITON = [
    pytest.param("interpreter", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
LAYOUTS = ["contiguous", "channels last", "padded", "transposed"]


def numbers(*size: int, dtype: torch.dtype, integers: bool = False, seed: int = 0) -> Tensor:
    """Random numbers; with ``integers`` −2 … 2, so that no sum rounds."""
    generator = torch.Generator().manual_seed(seed + sum(size))
    if integers:
        return torch.randint(-2, 3, size, generator=generator).to(dtype)
    return torch.randn(size, generator=generator).to(dtype)


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The values of ``t`` [B, C, H, W] in another layout of memory."""
    if layout == "channels last":
        return t.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        return t.transpose(0, 3).contiguous().transpose(0, 3)
    if layout == "padded":
        room = t.new_full([size + 3 for size in t.shape], float("nan"))
        view = room[tuple(slice(2, 2 + size) for size in t.shape)]
        view.copy_(t)
        return view
    return t.contiguous()


def room_like(t: Tensor) -> Tensor:
    """Memory with the strides of ``t`` and NaN everywhere."""
    return torch.full_like(moved(t, str(t.device)), float("nan"))


def on(backend: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors where a backend wants them, with their strides."""
    device = device_of(backend)
    return [None if t is None else moved(t, device) for t in tensors]


def equal(got: Tensor, want: Tensor) -> None:
    """Equal values, wherever the tensors are."""
    assert_bitwise_equal(got.detach().cpu(), want.detach().cpu(), "out")


def as_exact_as(got: Tensor, eager: Tensor, want: Tensor, backend: str) -> None:
    """The error against float64 is at most twice that of torch's result in the same type.

    To that error belongs a rounding: of few elements torch may happen to have none.
    """
    if backend == "interpreter" and got.dtype == torch.bfloat16:
        pytest.skip("the interpreter rounds to bfloat16 towards zero; compiled kernels do not")
    rounding = torch.finfo(got.dtype).eps / 2
    got, eager, want = (t.cpu().double() for t in (got, eager, want))
    assert got.isfinite().all()
    assert (got - want).norm() <= 2 * ((eager - want).norm() + rounding * want.norm())
