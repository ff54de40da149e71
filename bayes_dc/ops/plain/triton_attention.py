"""Attention without a matrix of scores: out = softmax(scale · q kᵀ + mask) v, per head.

Shapes      q, out [..., L, D], k [..., S, D], v [..., S, DV], out [..., L, DV], any strides;
            leading dimensions equal, a stride of 0 shares them. mask expands to [..., L, S]: bool,
            true where a key is seen, or numbers that are added. In place: out may be q.
Grid        blocks of BM queries (fastest) · heads; a program walks over the keys once.
Precision   products in the input type (float32: PRECISION), weights rounded to it before the second
            product, sums and softmax in float32 (float64 for float64). A query that sees no key
            gives 0.
Order       keys ascend by blocks of BN in one program: no atomics, no split; repeats bit for bit.
Cost        2 · L · S · (D + DV) operations a head; half of it with CAUSAL.
Limits      D, DV ≤ 256; fewer than 2**31 programs; row offsets are int64.
Source      Dao et al. 2022, NeurIPS (FlashAttention); Milakov & Gimelshein 2018 for the sums.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayes_dc.ops import _device, _launch
from bayes_dc.ops.plain._strided import power_of_two, read_sizes, walk
from bayes_dc.ops.plain.triton_strided import offsets

MOST_FEATURES = 256
_LEAST = 16
_LEAST_OF_16_BITS = 64
"""Features of a tile of 16-bit numbers: narrower ones failed on Hopper with Triton 3.6."""
_LOG2_E = 1.4426950408889634
_TOO_MANY = (
    "attention on the GPU takes at most {most} features in a head; got q {q} and v {v}. "
    "Use more heads."
)


class AttentionConfig(NamedTuple):
    """Launch configuration.

    Attributes:
        queries: Queries per program.
        keys: Keys per step.
        warps: Warps per program.
        stages: Steps whose keys and values are in flight.
    """

    queries: int
    keys: int
    warps: int
    stages: int


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """a · b; "widened" for the interpreter, which would multiply the bits of bfloat16."""
    if PRECISION == "widened":
        return tl.dot(a.to(ACC), b.to(ACC), input_precision="ieee", out_dtype=ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    out_ptr,
    L,
    S,
    D,
    DV,
    blocks,
    sizes,
    q_heads,
    k_heads,
    v_heads,
    m_heads,
    o_heads,
    stride_ql,
    stride_qd,
    stride_ks,
    stride_kd,
    stride_vs,
    stride_vd,
    stride_ml,
    stride_ms,
    stride_ol,
    stride_od,
    FACTOR: tl.constexpr,
    MASK: tl.constexpr,
    WIDE_MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
):
    """BM queries of one head. MASK: "", "bool" or "add"; FACTOR: scale · log2 e."""
    pid = tl.program_id(0)
    head = pid // blocks
    first = (pid - head * blocks) * BM
    row = first + tl.arange(0, BM)
    key = tl.arange(0, BN)
    d = tl.arange(0, BD)
    e = tl.arange(0, BV)
    rows = row.to(tl.int64)[:, None]
    keys = key.to(tl.int64)
    q = q_ptr + offsets(head, sizes, q_heads, True) + rows * stride_ql + d[None, :] * stride_qd
    q = tl.load(q, mask=(row < L)[:, None] & (d < D)[None, :], other=0)
    k = k_ptr + offsets(head, sizes, k_heads, True)
    k += keys[:, None] * stride_ks + d[None, :] * stride_kd
    v = v_ptr + offsets(head, sizes, v_heads, True)
    v += keys[:, None] * stride_vs + e[None, :] * stride_vd
    if MASK != "":
        m = mask_ptr + offsets(head, sizes, m_heads, True)
        # A scalar that moves, and small numbers that stay: pointers of a tile would spill.
        m += tl.cast(first, tl.int64) * stride_ml
        kind: tl.constexpr = tl.int64 if WIDE_MASK else tl.int32
        pairs = tl.arange(0, BM).to(kind)[:, None] * stride_ml + key.to(kind)[None, :] * stride_ms
    step_k = tl.cast(stride_ks, tl.int64) * BN
    step_v = tl.cast(stride_vs, tl.int64) * BN
    step_m = tl.cast(stride_ms, tl.int64) * BN
    LOW: tl.constexpr = -float("inf")
    most = tl.full([BM], LOW, ACC)
    total = tl.zeros([BM], ACC)
    acc = tl.zeros([BM, BV], ACC)
    last = S
    if CAUSAL:
        last = tl.minimum(S, first + BM)
    for start in range(0, last, BN):
        inside = start + key < S
        ks = tl.load(k, mask=inside[:, None] & (d < D)[None, :], other=0)
        scores = _dot(q, tl.trans(ks), PRECISION, ACC) * FACTOR
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (start + key[None, :] <= row[:, None])
        if MASK != "":
            there = inside[None, :] & (row < L)[:, None]
            of_pair = tl.load(m + pairs, mask=there, other=0)
            if MASK == "bool":
                seen = seen & (of_pair != 0)
            else:
                scores += of_pair.to(ACC) * 1.4426950408889634
            m += step_m
        scores = tl.where(seen, scores, LOW)
        now = tl.maximum(most, tl.max(scores, axis=1))
        # A query that has seen no key yet has no maximum to subtract.
        base = tl.where(now == LOW, 0.0, now)
        weights = tl.exp2(scores - base[:, None])
        before = tl.exp2(most - base)
        total = total * before + tl.sum(weights, axis=1)
        vs = tl.load(v, mask=inside[:, None] & (e < DV)[None, :], other=0)
        acc = acc * before[:, None] + _dot(weights.to(vs.dtype), vs, PRECISION, ACC)
        most = now
        k += step_k
        v += step_v
    # Nothing seen: 0 / 1. A NaN among the scores stays one.
    y = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out = out_ptr + offsets(head, sizes, o_heads, True) + rows * stride_ol + e[None, :] * stride_od
    seen = (row < L)[:, None] & (e < DV)[None, :]
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=seen)


def precision(dtype: torch.dtype) -> str:
    """How products are made: TensorFloat-32 where torch's switch allows it, else in three parts."""
    if _launch.INTERPRETED:
        return "widened"
    if dtype == torch.float32 and not _device.tensor_float32():
        return "tf32x3"
    return "tf32"


def config(L: int, D: int, dtype: torch.dtype, *, masked: bool = False) -> AttentionConfig:
    """Tiles for L queries of D features, as large as registers allow without spilling.

    Those of 16 bits and no mask are the fastest of eight measured on an H200.
    """
    if _launch.INTERPRETED:
        return AttentionConfig(16, 16, 1, 1)
    few = max(16, min(64, power_of_two(L)))
    if dtype == torch.float64:
        return AttentionConfig(min(few, 32 if D <= 64 else 16), 16, 8 if D > 128 else 4, 1)
    if dtype == torch.float32:
        if D > 128:
            return AttentionConfig(16, 16, 4, 1)
        return (
            AttentionConfig(few, 32, 4, 2) if D <= 64 else AttentionConfig(min(few, 32), 32, 4, 1)
        )
    if D > 128 or (D > 64 and masked):
        return AttentionConfig(few, 32, 4, 2)
    if D <= 64 and L >= 128 and not masked:
        return AttentionConfig(128, 64, 8, 3)
    return AttentionConfig(few, 64, 4, 3)


def launch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
    tiles: AttentionConfig | None = None,
) -> None:
    """Write ``F.scaled_dot_product_attention`` without dropout into ``out``.

    Args:
        q: Queries ``[..., L, D]``, any strides.
        k: Keys ``[..., S, D]``.
        v: Values ``[..., S, DV]``.
        out: Result ``[..., L, DV]``; may be ``q`` itself, not overlap an operand otherwise.
        scale: Factor of the scores; torch's default is 1 / sqrt(D).
        causal: Whether query i sees the keys 0 … i only.
        mask: Expands to ``[..., L, S]``: bool, true where a key is seen, or numbers to add.
        tiles: Launch configuration, or None for the default.

    Raises:
        ValueError: If a head has more features than the kernel takes.
    """
    (L, D), (S, DV) = q.shape[-2:], v.shape[-2:]
    if max(D, DV) > MOST_FEATURES:
        raise ValueError(_TOO_MANY.format(most=MOST_FEATURES, q=D, v=DV))
    if out.numel() == 0:
        return
    seen = None if mask is None else mask.expand(*q.shape[:-1], S)
    operands = [q if t is None else t for t in (q, k, v, seen, out)]
    heads = walk(tuple(q.shape[:-2]), tuple(t.stride()[:-2] for t in operands))
    narrow = _LEAST if _launch.INTERPRETED or q.element_size() > 2 else _LEAST_OF_16_BITS
    bd, bv = (max(narrow, power_of_two(n)) for n in (D, DV))
    tiles = tiles or config(L, max(bd, bv), q.dtype, masked=mask is not None)
    blocks = triton.cdiv(L, tiles.queries)
    kind = "" if mask is None else "bool" if mask.dtype == torch.bool else "add"
    with _launch.on_device_of(q):
        attention_kernel[(blocks * heads.elements,)](
            *operands,
            L,
            S,
            D,
            DV,
            blocks,
            read_sizes(heads),
            *heads.strides,
            *(step for t in operands for step in t.stride()[-2:]),
            FACTOR=scale * _LOG2_E,
            MASK=kind,
            WIDE_MASK=256 * max(map(abs, operands[3].stride()[-2:])) >= 2**31,
            CAUSAL=causal,
            PRECISION=precision(q.dtype),
            ACC=_launch.accumulator(q.dtype),
            BM=tiles.queries,
            BN=tiles.keys,
            BD=bd,
            BV=bv,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
