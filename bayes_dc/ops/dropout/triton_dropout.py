"""Keyed dropout: y = scale · x where the mask keeps a unit, 0 elsewhere.

Shapes      x, out [P, S, U, V]; a unit is an element (number u · V + v) or a channel u
Mask        rng/SPEC.md (Dropout), made in registers; never stored
Grid        P·S rows × blocks of a row. ``keyed_dropout_row_kernel``: elements of contiguous rows;
            a call of the generator serves 128 of them. ``keyed_dropout_unit_kernel``: channels, and
            elements whose channels are neighbours in memory; a call for each element
Precision   one product in float32 (float64 for float64), rounded once to the type of ``out``
Order       nothing is added: equal bits for every block
Cost        reads x and writes out once; a call is about 100 instructions for each digit of p
Limits      fewer than 2**31 units in a sample; offsets are int64, and so are numbers in samples
            of 2**30 elements or more
"""

import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _launch
from bayes_dc.rng.device import mask_words

_BLOCK = 4096
"""Most elements of a program: a call's 128 are then made by few threads more than once."""
_UNIT_BLOCK = 1024
_RUNTIME = ("S", "blocks", "U", "V")


@triton.jit
def _row(row, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass):
    """Pass and sample index of a row (int64), and the key words and ids of its masks."""
    p = (row // S).to(tl.int64)
    s = (row - row // S * S).to(tl.int64)
    k0 = tl.load(key_ptr).to(tl.uint32)
    k1 = tl.load(key_ptr + 1).to(tl.uint32)
    sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
    step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
    return p, s, k0, k1, sample, step


@triton.jit(do_not_specialize=_RUNTIME)
def keyed_dropout_row_kernel(
    x_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    E,
    blocks,
    stride_xp,
    stride_xs,
    stride_op,
    stride_os,
    stride_sample,
    stride_pass,
    SCALE: tl.constexpr,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    ACC: tl.constexpr,
    CALLS: tl.constexpr,
):
    """128 · CALLS consecutive elements of a row."""
    row = tl.program_id(0) // blocks
    block = tl.program_id(0) - row * blocks
    p, s, k0, k1, sample, step = _row(
        row, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass
    )
    n32 = (block * CALLS + tl.arange(0, CALLS)).to(tl.uint32)
    w0, w1, w2, w3 = mask_words(k0, k1, n32 ^ n32, n32, sample, step, KEEP, BITS)
    # join appends a dimension: [..., i, j] of the outer and inner one is word 2 i + j.
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [CALLS, 1, 4])
    words = tl.reshape(tl.broadcast_to(words, [CALLS, 32, 4]), [128 * CALLS])
    within = tl.arange(0, 128 * CALLS)
    kept = ((words >> (within // 4 % 32).to(tl.uint32)) & 1) != 0
    e = block.to(tl.int64) * (128 * CALLS) + within
    x = tl.load(x_ptr + p * stride_xp + s * stride_xs + e, mask=e < E, other=0.0)
    y = tl.where(kept, x.to(ACC) * SCALE, 0.0)
    at = out_ptr + p * stride_op + s * stride_os + e
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=e < E)


@triton.jit(do_not_specialize=_RUNTIME)
def keyed_dropout_unit_kernel(
    x_ptr,
    key_ptr,
    sample_ptr,
    pass_ptr,
    out_ptr,
    S,
    E,
    blocks,
    U,
    V,
    stride_xp,
    stride_xs,
    stride_xu,
    stride_xv,
    stride_op,
    stride_os,
    stride_ou,
    stride_ov,
    stride_sample,
    stride_pass,
    SCALE: tl.constexpr,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    ACC: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK elements of a row, neighbours in memory."""
    row = tl.program_id(0) // blocks
    block = tl.program_id(0) - row * blocks
    p, s, k0, k1, sample, step = _row(
        row, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass
    )
    if WIDE:
        block = block.to(tl.int64)
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = i < E
    i = tl.minimum(i, E - 1)
    if CHANNELS_LAST:
        v = i // U
        u = i - v * U
    else:
        u = i // V
        v = i - u * V
    e = u if BY_CHANNEL else u * V + v
    n32 = (e // 128).to(tl.uint32)
    w0, w1, w2, w3 = mask_words(k0, k1, n32 ^ n32, n32, sample, step, KEEP, BITS)
    low = tl.where(e % 2 == 0, w0, w1)
    high = tl.where(e % 2 == 0, w2, w3)
    word = tl.where(e % 4 < 2, low, high)
    kept = ((word >> (e // 4 % 32).to(tl.uint32)) & 1) != 0
    u = u.to(tl.int64)
    v = v.to(tl.int64)
    at = x_ptr + p * stride_xp + s * stride_xs + u * stride_xu + v * stride_xv
    x = tl.load(at, mask=inside, other=0.0)
    y = tl.where(kept, x.to(ACC) * SCALE, 0.0)
    into = out_ptr + p * stride_op + s * stride_os + u * stride_ou + v * stride_ov
    tl.store(into, y.to(out_ptr.dtype.element_ty), mask=inside)


def launch_dropout(
    x: Tensor,
    key: Tensor,
    sample_ids: Tensor,
    pass_ids: Tensor,
    out: Tensor,
    *,
    keep: int,
    bits: int,
    scale: float,
    by_channel: bool,
) -> None:
    """Write into ``out``; see ``bayes_dc.ops.dropout.reference.forward``."""
    P, S, U, V = x.shape
    E = U * V
    if x.numel() == 0:
        return
    options = {"SCALE": scale, "KEEP": keep, "BITS": bits, "ACC": _launch.accumulator(x.dtype)}
    ids = (sample_ids.stride(0), pass_ids.stride(0))
    rows = U == 1 and not by_channel and x.stride(3) == 1 and out.stride(3) == 1
    most = _BLOCK if rows else _UNIT_BLOCK
    block = max(128, min(most, triton.next_power_of_2(E)))
    blocks = triton.cdiv(E, block)
    first = (x, key, sample_ids, pass_ids, out, S, E, blocks)
    with _launch.on_device_of(out):
        if rows:
            strides = (*x.stride()[:2], *out.stride()[:2], *ids)
            keyed_dropout_row_kernel[P * S * blocks,](
                *first, *strides, **options, CALLS=block // 128, num_warps=max(1, block // 1024)
            )
            return
        keyed_dropout_unit_kernel[P * S * blocks,](
            *first,
            U,
            V,
            *x.stride(),
            *out.stride(),
            *ids,
            **options,
            BY_CHANNEL=by_channel,
            CHANNELS_LAST=x.stride(2) < x.stride(3),
            WIDE=E >= 1 << 30,
            BLOCK=block,
            num_warps=max(1, block // 256),
        )
