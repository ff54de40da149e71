"""The implementations of the Gaussian sampler behind one interface."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from harness import KEY, Shape, device_of, moved
from torch import Tensor

from bayes_dc.ops.gaussian import reference
from bayes_dc.rng import KeepDigits, keep_digits

EPS32 = 2.0**-24
"""Half a unit in the last place of float32, relative."""


def normal_bound(z: torch.Tensor) -> torch.Tensor:
    """Six half units in the last place of each pair's radius.

    Two of the GPU's square root, two of sine or cosine, one of half the logarithm, one of products.
    """
    pairs = torch.nn.functional.pad(z, (0, z.shape[-1] % 2)).unflatten(-1, (-1, 2))
    return 6 * EPS32 * pairs.norm(dim=-1).repeat_interleave(2, dim=-1)[..., : z.shape[-1]]


def launchers(backend: str) -> tuple[Any, Any]:
    """launch_draw and launch_draw_dvar of a backend."""
    if backend == "cpu":
        from bayes_dc.ops.gaussian import cpu

        return cpu.launch_draw, cpu.launch_draw_dvar
    from bayes_dc.ops.gaussian import triton_draw

    return triton_draw.launch_draw, triton_draw.launch_draw_dvar


@contextlib.contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Torch's switch for float32 products on tensor cores."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def poisoned(*size: int, dtype: torch.dtype, device: str) -> Tensor:
    """NaN everywhere: what is not written shows."""
    return torch.full(size, float("nan"), dtype=dtype, device=device)


@dataclass
class Case:
    """Inputs of the launchers; ``shared`` gives every pass the same rows of x."""

    shape: Shape
    x: Tensor
    w: Tensor
    b: Tensor | None
    sample_ids: Tensor
    pass_ids: Tensor
    digits: KeepDigits
    scale: float

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the launchers."""
        return {"keep": self.digits.keep, "bits": self.digits.bits, "scale": self.scale}

    def at(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Key and ids."""
        key = torch.tensor(KEY)
        return tuple(moved(t, device) for t in (key, self.sample_ids, self.pass_ids))

    def on(self, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, w and b on a device, with the same strides."""
        b = None if self.b is None else moved(self.b, device)
        return moved(self.x, device), moved(self.w, device), b

    def run(self, backend: str, *, config: Any = None, out: Tensor | None = None) -> Tensor:
        """Draws of the fused kernel, on the CPU; ``out`` gives the strides of the result."""
        device = device_of(backend)
        P, S, R, N, _ = self.shape
        x, w, b = self.on(device)
        if out is None:
            out = poisoned(P, S, R, N, dtype=self.x.dtype, device=device)
        if backend == "cpu":
            from bayes_dc.ops.gaussian import cpu

            cpu.launch_linear(x, w, b, *self.at(device), out, **self.options)
            return out
        from bayes_dc.ops.gaussian import op, triton_moments

        options = self.options | {"squares": op._squares(w), "config": config}
        if x.shape[0] == P:
            triton_moments.launch_linear(x, op._rounded(w), b, *self.at(device), out, **options)
        else:
            mean, var = self.moments(backend, config=config)
            launch_draw, _ = launchers(backend)
            launch_draw(mean.to(device), var.to(device), *self.at(device), out)
        return out.cpu()

    def moments(self, backend: str, *, config: Any = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of the Triton kernel, on the CPU."""
        from bayes_dc.ops.gaussian import op, triton_moments

        device = device_of(backend)
        x, w, b = self.on(device)
        size = (*x.shape[:3], w.shape[0])
        mean, var = (poisoned(*size, dtype=torch.float32, device=device) for _ in range(2))
        options = self.options | {"squares": op._squares(w), "config": config}
        triton_moments.launch_moments(x, op._rounded(w), b, mean, var, **options)
        return mean.cpu(), var.cpu()

    def expected_moments(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Moments of the reference."""
        x, w = self.x.to(dtype), self.w.to(dtype)
        b = None if self.b is None else self.b.to(dtype)
        return reference.moments(x, w, b, self.digits.keep_probability, self.scale)

    @property
    def z(self) -> Tensor:
        """Normals of the reference, float64."""
        return reference.explicit_normals(
            KEY, self.sample_ids, self.pass_ids, self.shape.R, self.shape.N
        )

    def expected(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
        """Draws of the reference in ``dtype``, computed on ``device``."""
        x, w, b = (None if t is None else t.to(dtype) for t in self.on(device))
        mean, var = reference.moments(x, w, b, self.digits.keep_probability, self.scale)
        return reference.draw(mean, var, self.z.to(device)).cpu()


def make_case(
    shape: Shape,
    p: float = 0.5,
    dtype: torch.dtype = torch.float32,
    *,
    integers: bool = False,
    bias: bool = True,
    shared: bool = False,
) -> Case:
    """Random inputs; with ``integers`` −2 … 2, so that no sum rounds."""
    P, S, R, N, K = shape
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        if integers:
            return torch.randint(-2, 3, size, generator=generator).to(dtype)
        return torch.randn(size, generator=generator).to(dtype)

    digits = keep_digits(p)
    return Case(
        shape=shape,
        x=draw(1 if shared else P, S, R, K),
        w=draw(N, K),
        b=draw(N) if bias else None,
        sample_ids=torch.arange(S) + 3,
        pass_ids=torch.arange(P) + 7,
        digits=digits,
        scale=1 / digits.keep_probability,
    )
