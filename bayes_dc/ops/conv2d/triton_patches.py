"""Positions, patches and masked weights of a tile, for every convolution kernel.

A mask group is one sample of one pass; its positions are those of all images that share the mask,
image by image, row by row. Weights of one output are numbered k = (kh · KW + kw) · C + c.
"""

import triton
import triton.language as tl

from bayes_dc.ops._tiles import (
    any_words,
    finish,
    group_ids,
    round_tf32,
    select_kept,
    spread_signs,
    tile_words,
)
from bayes_dc.rng.device import mask_words


@triton.jit
def _divide(r, magic, shift):
    """r // divisor for 0 ≤ r < 2**31, with ``_conv.divisor``'s numbers: three instructions."""
    bits = tl.cast(magic, tl.int32).to(tl.uint32, bitcast=True)
    return (tl.umulhi(r.to(tl.uint32) * 2, bits + r.to(tl.uint32) * 0) >> shift).to(tl.int32)


@triton.jit
def find_group(g, S, key_ptr, sample_ptr, pass_ptr, stride_sample, stride_pass, BITS: tl.constexpr):
    """Pass and sample index of group ``g`` as int64, then what its masks are made of.

    Without masks, BITS = 0, nothing is read.
    """
    if BITS > 0:
        p, s, sample, step = group_ids(g, S, sample_ptr, pass_ptr, stride_sample, stride_pass)
        k0 = tl.load(key_ptr).to(tl.uint32)
        k1 = tl.load(key_ptr + 1).to(tl.uint32)
    else:
        p = (g // S).to(tl.int64)
        s = (g - g // S * S).to(tl.int64)
        k0 = tl.cast(0, tl.uint32)
        k1 = k0
        sample = k0
        step = k0
    return p, s, k0, k1, sample, step


@triton.jit
def find_positions(
    first, images, height, width, magic_h, shift_h, magic_w, shift_w,
    ONE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(image, i, j, whether it exists) of positions ``first`` … of a group, each int32 [ROWS].

    ONE promises that there is one image, ``images`` = 1.
    """
    r = first + tl.arange(0, ROWS)
    line = _divide(r, magic_w, shift_w)
    if ONE:
        image = tl.zeros([ROWS], tl.int32)
    else:
        image = _divide(line, magic_h, shift_h)
    return image, line - image * height, r - line * width, r < images * height * width


@triton.jit
def offset_of(i, j, stride_i, stride_j, WIDE: tl.constexpr):
    """i · stride_i + j · stride_j; WIDE where an image's offsets do not fit into 32 bits."""
    if WIDE:
        return i.to(tl.int64) * stride_i + j.to(tl.int64) * stride_j
    else:
        return i * stride_i + j * stride_j


@triton.jit
def inside(i, j, height, width):
    """Whether (i, j) lies in the image; outside are zeros."""
    return (i >= 0) & (i < height) & (j >= 0) & (j < width)


@triton.jit
def keep_at(k0, k1, n, k, sample, step, KEEP: tl.constexpr, BITS: tl.constexpr):
    """Whether weight (n, k) is kept, for int32 ``n`` and ``k`` of one shape."""
    d0, d1, d2, d3 = mask_words(
        k0, k1, (k // 4).to(tl.uint32), (n // 32).to(tl.uint32), sample + (n * 0).to(tl.uint32),
        step, KEEP, BITS,
    )  # fmt: skip
    low = tl.where(k % 2 == 0, d0, d1)
    high = tl.where(k % 2 == 0, d2, d3)
    return ((tl.where(k % 4 < 2, low, high) >> (n % 32).to(tl.uint32)) & 1) != 0


@triton.jit
def load_patches(
    x, there, i, j, height, width, stride_i, stride_j, k, K,
    DH: tl.constexpr, DW: tl.constexpr, KW: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """x [positions, weights k] where any k may start a new tap; tap (0, 0) lies at (i, j).

    ``x`` [positions] points at the images' first element, ``k`` [weights] is int32.
    """
    tap = k // C
    kh = tap // KW
    down = kh * DH
    right = (tap - kh * KW) * DW
    columns = offset_of(down, right, stride_i, stride_j, WIDE) + (k - tap * C)
    rows = offset_of(i, j, stride_i, stride_j, WIDE)
    seen = inside(i[:, None] + down[None, :], j[:, None] + right[None, :], height, width)
    seen = seen & there[:, None] & (k < K)[None, :]
    return tl.load(x[:, None] + (rows[:, None] + columns[None, :]), mask=seen, other=0)


@triton.jit
def mask_weights(
    w, k0, k1, first_n32, first_k, sample, step,
    KEEP: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr, PAIRS: tl.constexpr,
    QUADS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Weights [OUTPUTS, INPUTS] from word ``first_n32`` and input ``first_k`` on, masked.

    QUADS promises that ``first_k`` is a multiple of 4; BITS = 0 that nothing is dropped. Rounded to
    TensorFloat-32 where they are multiplied in it.
    """
    WORDS: tl.constexpr = OUTPUTS // 32
    if BITS == 0:
        kept = w
    else:
        if QUADS:
            words = tile_words(
                k0, k1, first_n32, first_k // 4, sample, step, KEEP, BITS, WORDS, INPUTS
            )
        else:
            words = any_words(k0, k1, first_n32, first_k, sample, step, KEEP, BITS, WORDS, INPUTS)
        kept = select_kept(w, spread_signs(words, OUTPUTS, INPUTS), PAIRS)
    if PRECISION == "tf32" and w.dtype == tl.float32:
        kept = round_tf32(kept)
    return kept


@triton.jit
def multiply(a, b, acc, PRECISION: tl.constexpr):
    """acc + a · b; "widened" for the interpreter, which would multiply the bits of bfloat16."""
    if PRECISION == "widened":
        a = a.to(acc.dtype)
        b = b.to(acc.dtype)
        return tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)
    if PRECISION == "ieee":
        # Short chains: one product of tiles, then a sum of those. The compiler would merge an
        # addition, though not a subtraction, into the product, a chain of all terms.
        return acc - tl.dot(-a, b, input_precision="ieee", out_dtype=acc.dtype)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def multiply_tiles(weights, rows, acc, PRECISION: tl.constexpr, ROWS_FIRST: tl.constexpr):
    """Weights [n, k] times rows [r, k]: acc [r, n] with ROWS_FIRST, else [n, r]."""
    if ROWS_FIRST:
        return multiply(rows, tl.trans(weights), acc, PRECISION)
    else:
        return multiply(weights, tl.trans(rows), acc, PRECISION)


@triton.jit
def first_tap(
    phase, PAD: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    STEP: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """First tap that meets inputs ``phase``, phase + STRIDE, …; TAPS if none does.

    Tap t meets them if STRIDE divides phase + PAD − t · DILATION; so does every STEP-th from it.
    """
    first = tl.cast(phase, tl.int32) * 0 + TAPS
    for i in tl.static_range(STEP):
        meets = (phase + PAD - (STEP - 1 - i) * DILATION) % STRIDE == 0
        first = tl.where(meets, STEP - 1 - i, first)
    return tl.minimum(first, TAPS)


@triton.jit
def store_tile(
    out_ptr, acc, image, pixel, there, n, of_group, b_ptr, stride_b, N, area,
    factors_ptr, summands_ptr, SCALE: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS_FIRST: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Scale ``acc``, add the bias, finish and write; ``image`` counts those of the whole output."""
    values = acc * SCALE
    if HAS_BIAS:
        bias = tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=of_group, other=0).to(acc.dtype)
        values += bias[None, :] if ROWS_FIRST else bias[:, None]
    values = finish(values, factors_ptr, summands_ptr, n, of_group, EPILOGUE, ROWS_FIRST)
    if not ROWS_FIRST:
        values = tl.trans(values)
    rows = out_ptr + (image * area + pixel) * N
    seen = there[:, None] & of_group[None, :]
    tl.store(rows[:, None] + n[None, :], values.to(out_ptr.dtype.element_ty), mask=seen)
