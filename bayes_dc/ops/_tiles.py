"""Masks of one group on tiles, and products of tiles, for the tensor-core kernels of every op.

A word of rng/SPEC.md v1 covers 32 outputs of one input; a tile starts at a multiple of 32 outputs
and, but for ``any_words``, of four inputs. The words of a tile are made once,
[outputs / 32, inputs], and spread over it.
"""

import triton
import triton.language as tl

from bayes_dc.rng.device import mask_words


@triton.jit
def tile_words(
    k0,
    k1,
    first_n32,
    first_k4,
    sample,
    step,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Mask words [WORDS, INPUTS] from word ``first_n32`` and input 4 · ``first_k4`` on."""
    zero = tl.zeros([WORDS, INPUTS // 4], tl.int32)
    n32 = tl.arange(0, WORDS)[:, None] + first_n32 + zero
    k4 = tl.arange(0, INPUTS // 4)[None, :] + first_k4 + zero
    d0, d1, d2, d3 = mask_words(
        k0, k1, k4.to(tl.uint32), n32.to(tl.uint32), sample + zero.to(tl.uint32), step, KEEP, BITS
    )
    # join appends a dimension: [..., i, j] of the outer and inner one is word 2 i + j.
    return tl.reshape(tl.join(tl.join(d0, d2), tl.join(d1, d3)), [WORDS, INPUTS])


@triton.jit
def keep_tile(
    k0,
    k1,
    first_n32,
    first_k4,
    sample,
    step,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Whether weight (n, k) of a tile [OUTPUTS, INPUTS] is kept."""
    WORDS: tl.constexpr = OUTPUTS // 32
    words = tile_words(k0, k1, first_n32, first_k4, sample, step, KEEP, BITS, WORDS, INPUTS)
    spread = tl.broadcast_to(words[:, None, :], [WORDS, 32, INPUTS])
    bit = (tl.arange(0, OUTPUTS) % 32)[:, None].to(tl.uint32)
    return ((tl.reshape(spread, [OUTPUTS, INPUTS]) >> bit) & 1) != 0


@triton.jit
def any_words(
    k0,
    k1,
    first_n32,
    first_k,
    sample,
    step,
    KEEP: tl.constexpr,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """``tile_words`` from any input on, at four times its cost."""
    zero = tl.zeros([WORDS, INPUTS], tl.int32)
    n32 = tl.arange(0, WORDS)[:, None] + first_n32 + zero
    k = tl.arange(0, INPUTS)[None, :] + first_k + zero
    d0, d1, d2, d3 = mask_words(
        k0, k1, (k // 4).to(tl.uint32), n32.to(tl.uint32), sample + zero.to(tl.uint32), step,
        KEEP, BITS,
    )  # fmt: skip
    low = tl.where(k % 2 == 0, d0, d1)
    high = tl.where(k % 2 == 0, d2, d3)
    return tl.where(k % 4 < 2, low, high)


@triton.jit
def spread_signs(words, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr):
    """Words [OUTPUTS / 32, INPUTS] as int32 [OUTPUTS, INPUTS], negative where a weight is kept."""
    WORDS: tl.constexpr = OUTPUTS // 32
    all_words = tl.broadcast_to(words[:, None, :], [WORDS, 32, INPUTS])
    shift = (31 - tl.arange(0, OUTPUTS) % 32)[:, None].to(tl.uint32)
    return (tl.reshape(all_words, [OUTPUTS, INPUTS]) << shift).to(tl.int32, bitcast=True)


@triton.jit
def select_kept(w, signs, PTX: tl.constexpr):
    """``w`` where ``signs`` is negative, else 0.

    With PTX, for 16-bit types, two instructions for two weights: the signs of two words are
    copied over a pair (PRMT), and the pair is masked.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 m; prmt.b32 m, $2, $3, 0xffbb; and.b32 $0, $1, m; }",
            "=r,r,r,r",
            [w, signs],
            dtype=w.dtype,
            is_pure=True,
            pack=2,
        )
    return tl.where(signs < 0, w, 0).to(w.dtype)


@triton.jit
def group_ids(g, S, sample_ptr, pass_ptr, stride_sample, stride_pass):
    """Pass and sample index of group ``g`` as int64, and their ids modulo 2**32."""
    p = g // S
    s = g - p * S
    p = p.to(tl.int64)
    s = s.to(tl.int64)
    sample = tl.load(sample_ptr + s * stride_sample).to(tl.uint32)
    step = tl.load(pass_ptr + p * stride_pass).to(tl.uint32)
    return p, s, sample, step


@triton.jit
def round_tf32(v):
    """Float32 to the nearest TensorFloat-32; tensor cores would cut its last 13 bits off.

    The same bits as ``bayes_dc.ops.gaussian.factors.rounded`` gives; NaN would carry into the sign.
    """
    bits = (v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(v == v, bits, 0x7FC00000).to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """Acc + a · b; "widened" for the interpreter, which would multiply the bits of bfloat16."""
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    if PRECISION == "tf32" and a.dtype == tl.float32:
        a = round_tf32(a)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def finish(
    values, factors_ptr, summands_ptr, n, seen, EPILOGUE: tl.constexpr, COLUMNS: tl.constexpr
):
    """``values`` of outputs ``n`` after their epilogue (see ``_epilogue.py``), in their type.

    COLUMNS: the outputs are the second dimension of ``values``, else the first.
    """
    if EPILOGUE & 1:
        factors = tl.load(factors_ptr + n, mask=seen, other=0).to(values.dtype)
        values *= factors[None, :] if COLUMNS else factors[:, None]
    if EPILOGUE & 2:
        summands = tl.load(summands_ptr + n, mask=seen, other=0).to(values.dtype)
        values += summands[None, :] if COLUMNS else summands[:, None]
    if EPILOGUE & 4:
        values = tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return values
