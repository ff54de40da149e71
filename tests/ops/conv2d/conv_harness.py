"""The implementations of the DropConnect convolution behind one interface."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from harness import assert_bitwise_equal, device_of, moved
from hypothesis import strategies as st
from torch import Tensor

from bayes_dc.ops.conv2d import op, reference
from bayes_dc.ops.conv2d.reference import Geometry
from bayes_dc.rng import KeepDigits, keep_digits, layer_key

BACKENDS = [
    pytest.param("cpu"),
    pytest.param("interpreter", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
TRITON = BACKENDS[1:]
THOROUGH = [  # the interpreter takes seconds for each; test_conv_kernels.py is written for it
    BACKENDS[0],
    pytest.param("interpreter", marks=[pytest.mark.interpreter, pytest.mark.slow]),
    BACKENDS[2],
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
KEY = layer_key(5, 1)
PLAIN = Geometry()


class Shape(NamedTuple):
    """Passes, images of a pass, input, outputs, kernel; C and N count all groups of channels."""

    P: int = 1
    B: int = 2
    H: int = 5
    W: int = 5
    C: int = 3
    N: int = 4
    KH: int = 3
    KW: int = 3


def conv_id(value: Any) -> str | None:
    """Readable test ids."""
    if isinstance(value, Shape):
        return "P{}-B{}-{}x{}-C{}-N{}-k{}x{}".format(*value)
    if isinstance(value, Geometry):
        pairs = ("{}x{}".format(*pair) for pair in value[:3])
        return "s{}-p{}-d{}-g{}".format(*pairs, value.groups)
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def launchers(backend: str) -> tuple[Callable[..., None], ...]:
    """launch_fwd, launch_dx, launch_dw of a backend."""
    if backend == "cpu":
        from bayes_dc.ops.conv2d import cpu

        return cpu.launch_fwd, cpu.launch_dx, cpu.launch_dw
    from bayes_dc.ops.conv2d import triton_dw, triton_dx, triton_fwd

    return triton_fwd.launch_fwd, triton_dx.launch_dx, triton_dw.launch_dw


@dataclass
class Case:
    """Inputs of the three launchers, their masks and their scale."""

    shape: Shape
    at: Geometry
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
        N, K = self.w.shape[0], self.w[0].numel()
        return reference.explicit_masks(KEY, self.sample_ids, self.pass_ids, N, K, self.digits)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the launchers."""
        numbers = {"keep": self.digits.keep, "bits": self.digits.bits, "scale": self.scale}
        return {**self.at._asdict(), **numbers}

    def run(
        self, backend: str, *, only: str = "y dx dw", splits: int = 1, config: Any = None
    ) -> dict[str, Tensor]:
        """y, dx and dw of a backend, on the CPU; outputs are poisoned with NaN first.

        The Triton launchers get what the operator gives them: channels last, contiguous weights.
        """
        device = device_of(backend)
        fwd, dx, dw = launchers(backend)
        x, w, gy = (moved(t, device) for t in (self.x, self.w, self.gy))
        if backend != "cpu":
            x, w, gy = op._channels_last(x), w.contiguous(), op._channels_last(gy)
        b = None if self.b is None else moved(self.b, device)
        at = (
            torch.tensor(KEY, device=device),
            moved(self.sample_ids, device),
            moved(self.pass_ids, device),
        )
        options = self.options
        if config is not None:
            options["config"] = config

        def poisoned(*size: int, dtype: torch.dtype = self.x.dtype) -> Tensor:
            return torch.full(size, float("nan"), dtype=dtype, device=device)

        out = {"y": poisoned(*gy.shape), "dx": poisoned(*x.shape), "dw": poisoned(*w.shape)}
        if "y" in only:
            fwd(x, w, b, *at, out["y"], **options)
        if "dx" in only:
            dx(gy, w, *at, out["dx"], **options)
        if splits > 1:
            accumulator = torch.float64 if self.x.dtype == torch.float64 else torch.float32
            options["partial"] = poisoned(splits, *w.shape, dtype=accumulator)
        if "dw" in only:
            dw(gy, x, *at, out["dw"], **options)
        return {name: t.cpu() for name, t in out.items() if name in only.split()}

    def expected(
        self, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """The reference in ``dtype``, computed on ``device``."""
        x, w, gy = (t.to(device, dtype) for t in (self.x, self.w, self.gy))
        b = None if self.b is None else self.b.to(device, dtype)
        mask = self.mask.to(device)
        size, kernel = self.shape[2:4], self.shape[6:]
        out = {
            "y": reference.forward(x, w, b, mask, self.scale, self.at),
            "dx": reference.grad_input(gy, w, mask, self.scale, self.at, size),
            "dw": reference.grad_weight(gy, x, mask, self.scale, self.at, kernel),
        }
        return {name: t.cpu() for name, t in out.items()}

    def part(self, chosen: Tensor | slice) -> "Case":
        """Some of the images; with a mask of their own only."""
        return replace(
            self,
            x=self.x[:, chosen],
            gy=self.gy[:, chosen],
            sample_ids=self.sample_ids[chosen],
        )


def make_case(
    shape: Shape,
    at: Geometry = PLAIN,
    p: float = 0.5,
    dtype: torch.dtype = torch.float32,
    *,
    shared: bool = False,
    integers: bool = False,
    bias: bool = True,
    seed: int = 0,
    scale: float = 1.0,
) -> Case:
    """Random inputs; ``shared``: one mask for a pass; ``integers``: −2 … 2, so no sum rounds."""
    P, B, H, W, C, N, KH, KW = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        if integers:
            return torch.randint(-2, 3, size, generator=generator).to(dtype)
        return torch.randn(size, generator=generator).to(dtype)

    return Case(
        shape=shape,
        at=at,
        x=draw(P, B, H, W, C),
        w=draw(N, KH, KW, C // at.groups),
        b=draw(N) if bias else None,
        gy=draw(P, B, *at.out_size((H, W), (KH, KW)), N),
        sample_ids=torch.arange(1 if shared else B) + 3,
        pass_ids=torch.arange(P) + 7,
        digits=keep_digits(p),
        scale=scale,
    )


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Equal values of all results of ``got``."""
    for name in got:
        assert_bitwise_equal(got[name], want[name], name)


def layouts(t: Tensor) -> st.SearchStrategy[Tensor]:
    """The same values channels last, channels first, with room between, or dimensions reversed."""
    room = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)[..., 1::2]
    orders = [(0, 1, 4, 2, 3), tuple(reversed(range(t.ndim)))] if t.ndim == 5 else [(0, 3, 1, 2)]
    turned = [t.permute(o).contiguous().permute(tuple(_inverse(o))) for o in orders]
    return st.sampled_from([t, room.copy_(t), *turned])


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


@st.composite
def cases(draw: st.DrawFn, channels: int, pixels: int = 9, dtypes: list[Any] = DTYPES) -> Case:
    """All arguments of the operator, small integers, tensors laid out in some way."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 5]))
    depthwise = draw(st.integers(0, 5)) == 0
    if depthwise:
        groups = draw(st.integers(1, channels))
    per_group = 1 if depthwise else max(1, channels // groups)
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, dilation = draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    least = [
        max(1, gap * (k - 1) + 1 - 2 * pad)
        for gap, k, pad in zip(dilation, kernel, padding, strict=True)
    ]
    shape = Shape(
        P=draw(st.integers(0, 2)),
        B=draw(st.integers(0, 3)),
        H=draw(st.integers(least[0], max(least[0], pixels))),
        W=draw(st.integers(least[1], max(least[1], pixels))),
        C=groups * draw(st.integers(1, per_group)),
        N=groups * draw(st.integers(1, 3 if depthwise else per_group)),
        KH=kernel[0],
        KW=kernel[1],
    )
    case = make_case(
        shape,
        Geometry(draw(pair), padding, dilation, groups),
        draw(st.sampled_from([0.5, 0.25, 0.75, 0.3, 0.9]) | st.floats(0.002, 0.998)),
        draw(st.sampled_from(dtypes)),
        shared=draw(st.booleans()),
        integers=True,
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
    case.x, case.gy, case.w = (draw(layouts(t)) for t in (case.x, case.gy, case.w))
    if draw(st.booleans()) and shape.P:
        case.x = case.x[:1].expand(case.x.shape)  # images that all passes share
    case.sample_ids = case.sample_ids + draw(st.integers(0, 2**33))
    case.pass_ids = case.pass_ids * draw(st.integers(1, 2**31))
    return case
