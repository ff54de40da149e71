"""Masked copies of W by a kernel, for a batched product after it: the best plain two-step way.

    out[g, i] = 2 · D[g, i] · w[i]        i counts the N·K weights

Shapes      w [N, K] contiguous, out [G, N, K].
Mask        128 bits for each Philox call: bit i mod 32 of word i div 32 mod 4 of call i div 128.
Grid        (cdiv(N·K, BLOCK), G); a program masks one run of weights for one group.
Cost        reads W, writes G·N·K weights, which the product reads again.
Limits      p = 0.5 only; N·K below 2**31, less a block; at most 65535 groups.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 4
MOST_WEIGHTS, MOST_GROUPS = 2**31 - BLOCK, 65535

_STRIDED = "w must be contiguous; got shape {shape} with strides {stride}. Pass w.contiguous()."
_LARGE = (
    "w must have fewer than 2**31 - 4096 weights, for at most {most} groups; got {size} weights "
    "for {groups} groups. Make the copies in several calls."
)


@triton.jit
def masked_copies_kernel(w_ptr, out_ptr, seed, SIZE, BLOCK: tl.constexpr):
    """One run of BLOCK weights of one group."""
    first = tl.program_id(0)
    group = tl.program_id(1)
    call = first * (BLOCK // 128) + tl.arange(0, BLOCK // 128)
    # Calls of a group are counted in the low word of the counter, groups in the high one.
    a, b, c, d = tl.randint4x(seed, (group.to(tl.int64) << 32) + call)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK // 32])  # a, b, c, d in turn
    bits = (words[:, None] >> tl.arange(0, 32)[None, :]) & 1  # [BLOCK // 32, 32]
    index = first * BLOCK + tl.arange(0, BLOCK)
    kept = tl.reshape(bits, [BLOCK]) != 0
    w = tl.load(w_ptr + index, mask=index < SIZE, other=0)
    out = out_ptr + group.to(tl.int64) * SIZE + index
    doubled = tl.where(kept, 2.0 * w.to(tl.float32), 0.0)
    tl.store(out, doubled.to(out_ptr.dtype.element_ty), mask=index < SIZE)


def masked_copies(w: Tensor, groups: int, seed: int) -> Tensor:
    """Masked and scaled copies [groups, N, K] of w [N, K]."""
    if not w.is_contiguous():
        raise ValueError(_STRIDED.format(shape=tuple(w.shape), stride=w.stride()))
    if w.numel() >= MOST_WEIGHTS or groups > MOST_GROUPS:
        raise ValueError(_LARGE.format(size=w.numel(), groups=groups, most=MOST_GROUPS))
    out = w.new_empty(groups, *w.shape)
    grid = (triton.cdiv(w.numel(), BLOCK), groups)
    masked_copies_kernel[grid](w, out, seed, w.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return out


def forward(x: Tensor, w: Tensor, seed: int) -> Tensor:
    """Return y [G, R, N] of x [G, R, K]."""
    return torch.bmm(x, masked_copies(w, len(x), seed).transpose(1, 2))


def grad_input(gy: Tensor, w: Tensor, seed: int) -> Tensor:
    """Return dx [G, R, K] of dy [G, R, N]."""
    return torch.bmm(gy, masked_copies(w, len(gy), seed))
