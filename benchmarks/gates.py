"""Is it right? Asked before anything is timed.

Exact      integers against explicit masks, no difference allowed.
Moments    rows are independent draws: mean and variance of each output against
           E[y] = W x and Var[y] = p / (1 − p) · Σ (w x)², within the quantile of the normal
           distribution that a right implementation leaves once in 10⁶ runs, over all outputs.

Compiled baselines are their eager forms given to torch.compile, and not asked again.
"""

from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bayes_dc
from bayes_dc.rng import keep_digits, layer_key, masks
from benchmarks.baselines import Function
from benchmarks.cases import precision, torch_dtype
from benchmarks.harness import gate

ONCE_IN = 1e6
SEED, DRAWS = 3, 4096


def exact_masks(groups: int, N: int, K: int, p: float) -> Tensor:
    """Masks [groups, N, K] of samples 0, 1, … in pass 0, from the NumPy reference."""
    samples = torch.arange(groups).numpy()
    found = masks(layer_key(SEED, 0), samples, 0 * samples, N, K, keep_digits(p))
    return torch.from_numpy(found).double()


def integers(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Small integers, whose sums do not round."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(-2, 3, shape, generator=generator).double() for shape in shapes]


def linear_is_exact(device: str, dtype: str, rows: int, p: float) -> None:
    """Forward, dx and dw of ``dropconnect_linear`` with ``rows`` rows for each mask."""
    S, N, K = 3 if rows > 1 else 70, 97, 133
    x, w, gy = integers((S, rows, K), (N, K), (S, rows, N))
    mask = exact_masks(S, N, K, p)
    moved = [t.to(device, torch_dtype(dtype)).requires_grad_() for t in (x, w)]
    with precision(dtype):
        y = bayes_dc.dropconnect_linear(
            *moved, p=p, key=bayes_dc.MaskKey(SEED), scope="sample", scale="none"
        )
        dx, dw = torch.autograd.grad(y, moved, gy.to(device, y.dtype))
    want = exact_products(x, w, gy, mask)
    what = f"p = {p}, {rows} rows for each mask, {dtype}"
    compare(f"bayes_dc, {what}", (y, dx, dw), want)


def conv_is_exact(device: str, dtype: str, C: int, N: int, stride: int) -> None:
    """Forward, dx and dw of ``dropconnect_conv2d``, 3 × 3, on 5 images of 8 × 6 pixels."""
    B, H, W, K = 5, 8, 6, 9 * C
    at = {"kernel_size": 3, "padding": 1, "stride": stride}
    size = (-(-H // stride), -(-W // stride))
    x, w, gy = integers((B, C, H, W), (N, C, 3, 3), (B, N, *size))
    mask = exact_masks(B, N, K, 0.5)
    dtype_here = torch_dtype(dtype)
    moved_x, moved_w = (t.to(device, dtype_here).requires_grad_() for t in (x, w))
    key = bayes_dc.MaskKey(SEED)
    y = bayes_dc.dropconnect_conv2d(
        moved_x, moved_w, padding=1, stride=stride, p=0.5, key=key, scale="none"
    )
    dx, dw = torch.autograd.grad(y, (moved_x, moved_w), gy.to(device, dtype_here))
    # unfold orders weights by (c, tap), the masks by (tap, c).
    patches = F.unfold(x, **at).view(B, C, 9, -1).permute(0, 3, 2, 1).flatten(2)
    want = exact_products(patches, w.flatten(2).transpose(1, 2).flatten(1), gy.flatten(2).mT, mask)
    wanted_dx = want[1].view(B, -1, 9, C).permute(0, 3, 2, 1).flatten(1, 2)
    want = (
        want[0].mT.reshape(y.shape),
        F.fold(wanted_dx, (H, W), **at),
        want[2].view(N, 9, C).mT.reshape(w.shape),
    )
    compare(f"bayes_dc, convolution {C} → {N}, stride {stride}, {dtype}", (y, dx, dw), want)


def exact_products(x: Tensor, w: Tensor, gy: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Forward, dx and dw of x [S, R, K], w [N, K], gy [S, R, N] under mask [S, N, K]."""
    return (
        torch.einsum("srk,snk,nk->srn", x, mask, w),
        torch.einsum("srn,snk,nk->srk", gy, mask, w),
        torch.einsum("srn,snk,srk->nk", gy, mask, x),
    )


def compare(what: str, got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    """Equal after the one rounding to the dtype of ``got``."""
    for name, found, exact in zip(("forward", "dx", "dw"), got, want, strict=True):
        rounded = exact.to(found.dtype).double()
        error = (found.detach().cpu().double() - rounded).abs().max()
        gate(float(error), 0.0, f"{what}: {name}")


def published_is_exact(device: str) -> None:
    """The three kernels of ``published.py`` against the masks that they name."""
    from benchmarks import published

    M, N, K = 9, 21, 70
    x, w, gy = (t.float().to(device) for t in integers((M, K), (N, K), (M, N)))
    mask = published.explicit_masks(SEED, M, N, K, device).cpu().double()
    got = (
        published.forward(x, w, SEED),
        published.grad_input(gy, w, SEED),
        published.grad_weight(gy, x, SEED),
    )
    x, w, gy = (t.cpu().double() for t in (x[:, None], w, gy[:, None]))
    y, dx, dw = exact_products(x, w, gy, mask)
    compare("published style", got, (2 * y[:, 0], 2 * dx[:, 0], 2 * dw))


def moments_are_right(draw: Function, device: str, what: str, draws: int = DRAWS) -> None:
    """``draw(x, w)`` gives independent rows [draws, N] of one x at p = 0.5; float32."""
    N, K = 24, 48
    torch.manual_seed(1)
    w, x = (torch.randn(*shape, device=device) for shape in ((N, K), (K,)))
    y = draw(x.expand(draws, K).contiguous(), w).double()
    mean, variance = w.double() @ x.double(), (w.double() * x.double()).square().sum(dim=1)
    bound = z_bound(2 * N)
    z = (y.mean(dim=0) - mean) / (variance / draws).sqrt()
    gate(float(z.abs().max()), bound, f"{what}: mean, in standard errors,")
    # The sum of K terms has no heavier tails than the normal, so its variance varies no more.
    z = (y.var(dim=0) / variance - 1) / (2 / (draws - 1)) ** 0.5
    gate(float(z.abs().max()), bound, f"{what}: variance, in standard errors,")


def groups_as_rows(function: Function) -> Function:
    """A function of x [G, R, K] with a mask for each group as one of rows [G, K]."""
    return lambda x, w: function(x[:, None].expand(-1, 2, -1).contiguous(), w)[:, 0]


def pixels_as_rows(function: Function) -> Function:
    """A convolution with a mask for each image as a function of rows [B, K], images of a pixel."""
    return lambda x, w: function(x[:, :, None, None], w[:, :, None, None])[:, :, 0, 0]


def same_prediction(found: Any, want: Any, passes: int, what: str) -> None:
    """Two predictions of ``passes`` passes each: their means [B, C] differ by no more than chance.

    Either may be a ``bayes_dc.Prediction`` or ``baselines.Statistics``.
    """
    difference = found.mean.double() - want.mean.double()
    error = ((found.variance.double() + want.variance.double()) / passes).sqrt()
    bound = z_bound(difference.numel())
    z = float((difference / error).abs().max())
    gate(z, bound, f"{what}: mean probability, in standard errors,")


def z_bound(comparisons: int) -> float:
    """Largest of ``comparisons`` absolute normal values, exceeded once in ``ONCE_IN`` runs."""
    return NormalDist().inv_cdf(1 - 1 / (2 * ONCE_IN * comparisons))
