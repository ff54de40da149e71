"""The implementations of the DropConnect linear behind one interface, and exact comparisons."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bayes_dc.ops.linear import reference
from bayes_dc.rng import KeepDigits, keep_digits, layer_key

BACKENDS = [
    pytest.param("cpu"),
    pytest.param("interpreter", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
TRITON = BACKENDS[1:]
GROUPED = [
    pytest.param("grouped-interpreter", marks=pytest.mark.interpreter),
    pytest.param("grouped-cuda", marks=pytest.mark.gpu),
]
KEY = layer_key(5, 1)


class Shape(NamedTuple):
    """Passes, samples, rows sharing a mask, outputs, inputs."""

    P: int
    S: int
    R: int
    N: int
    K: int


def shape_id(value: Any) -> str | None:
    """Readable test ids."""
    if isinstance(value, Shape):
        return "P{}-S{}-R{}-N{}-K{}".format(*value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def device_of(backend: str) -> str:
    """Where a backend's tensors lie."""
    return "cuda" if backend.endswith("cuda") else "cpu"


def moved(t: Tensor, device: str) -> Tensor:
    """``t`` on a device, at the same place of a copied storage: ``to`` would make it contiguous."""
    whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
    view = whole.to(device).as_strided(t.shape, t.stride(), t.storage_offset())
    assert view.stride() == t.stride()
    return view


def launchers(backend: str) -> tuple[Callable[..., None], ...]:
    """launch_fwd, launch_dx, launch_dw of a backend."""
    if backend == "cpu":
        from bayes_dc.ops.linear import cpu

        return cpu.launch_fwd, cpu.launch_dx, cpu.launch_dw
    if backend.startswith("grouped"):
        from bayes_dc.ops import _grouped
        from bayes_dc.ops.linear import op, triton_grouped_dw, triton_grouped_dx, triton_grouped_fwd

        def launch_dw(gy: Tensor, x: Tensor, *args: Any, **options: Any) -> None:
            if _grouped.reads_along_rows(gy):
                gy, x = op._along_rows(gy), op._along_rows(x)
            triton_grouped_dw.launch_dw(gy, x, *args, **options)

        return triton_grouped_fwd.launch_fwd, triton_grouped_dx.launch_dx, launch_dw
    from bayes_dc.ops.linear import triton_dw, triton_dx, triton_fwd

    return triton_fwd.launch_fwd, triton_dx.launch_dx, triton_dw.launch_dw


@dataclass
class Case:
    """Inputs of the three launchers, their masks and their scale."""

    shape: Shape
    x: Tensor
    w: Tensor
    b: Tensor | None
    gy: Tensor
    sample_ids: Tensor
    pass_ids: Tensor
    digits: KeepDigits
    scale: float = 1.0

    @property
    def mask(self) -> Tensor:
        """Reference masks [P, S, N, K]."""
        P, S, _, N, K = self.shape
        assert (self.pass_ids.numel(), self.sample_ids.numel()) == (P, S)
        return reference.explicit_masks(KEY, self.sample_ids, self.pass_ids, N, K, self.digits)

    def run(
        self, backend: str, *, only: str = "y dx dw", splits: int = 1, config: Any = None
    ) -> dict[str, Tensor]:
        """y, dx and dw of a backend, on the CPU; outputs are poisoned with NaN first."""
        device = device_of(backend)
        fwd, dx, dw = launchers(backend)
        x, w, gy = (moved(t, device) for t in (self.x, self.w, self.gy))
        b = None if self.b is None else moved(self.b, device)
        at = (
            torch.tensor(KEY, device=device),
            moved(self.sample_ids, device),
            moved(self.pass_ids, device),
        )
        options: dict[str, Any] = {
            "keep": self.digits.keep,
            "bits": self.digits.bits,
            "scale": self.scale,
        }
        if config is not None:
            options["config"] = config
        P, S, R, N, K = self.shape

        def poisoned(*size: int, dtype: torch.dtype = self.x.dtype) -> Tensor:
            return torch.full(size, float("nan"), dtype=dtype, device=device)

        out = {
            "y": poisoned(P, S, R, N),
            "dx": poisoned(P, S, R, K),
            "dw": poisoned(N, K),
        }
        if "y" in only:
            fwd(x, w, b, *at, out["y"], **options)
        if "dx" in only:
            dx(gy, w, *at, out["dx"], **options)
        if splits > 1:
            accumulator = torch.float64 if self.x.dtype == torch.float64 else torch.float32
            options["partial"] = poisoned(splits, N, K, dtype=accumulator)
        if "dw" in only:
            dw(gy, x, *at, out["dw"], **options)
        return {name: t.cpu() for name, t in out.items() if name in only.split()}

    def expected(
        self, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """The reference in ``dtype``, computed on ``device``."""
        x, w, gy, mask = (
            t.to(device, None if t.dtype == torch.bool else dtype)
            for t in (self.x, self.w, self.gy, self.mask)
        )
        b = None if self.b is None else self.b.to(device, dtype)
        out = {
            "y": reference.forward(x, w, b, mask, self.scale),
            "dx": reference.grad_input(gy, w, mask, self.scale),
            "dw": reference.grad_weight(gy, x, mask, self.scale),
        }
        return {name: t.cpu() for name, t in out.items()}


def make_case(
    shape: Shape,
    p: float = 0.5,
    dtype: torch.dtype = torch.float32,
    *,
    integers: bool = False,
    bias: bool = True,
    seed: int = 0,
    scale: float = 1.0,
) -> Case:
    """Random inputs; with ``integers`` −2 … 2, so that no sum rounds."""
    P, S, R, N, K = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        if integers:
            return torch.randint(-2, 3, size, generator=generator).to(dtype)
        return torch.randn(size, generator=generator).to(dtype)

    return Case(
        shape=shape,
        x=draw(P, S, R, K),
        w=draw(N, K),
        b=draw(N) if bias else None,
        gy=draw(P, S, R, N),
        sample_ids=torch.arange(S) + 3,
        pass_ids=torch.arange(P) + 7,
        digits=keep_digits(p),
        scale=scale,
    )


def assert_bitwise_equal(got: Tensor, want: Tensor, name: str) -> None:
    """Equal values everywhere; the message shows how many differ and where the first is."""
    want = want.to(got.dtype)
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    different = ~((got == want) | (got.isnan() & want.isnan()))
    count = int(different.sum())
    if count:
        at = tuple(int(i) for i in np.argwhere(different.numpy())[0])
        raise AssertionError(
            f"{name}: {count} of {got.numel()} differ, first at {at}: "
            f"got {got[at].item()}, wanted {want[at].item()}"
        )


def relative_error(got: Tensor, want: Tensor) -> float:
    """‖got − want‖ / ‖want‖ in float64."""
    return float((got.double() - want.double()).norm() / want.double().norm())
