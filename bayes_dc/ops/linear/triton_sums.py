"""Sums of masked products of the forward: the order of ranges, words, tiles in shared memory.

Inputs fall into ranges of whole tiles of 16, each with a sum of its own; the sums are added in
order. Who makes a range, one warp all of them or several parts one each, changes no bit.
"""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_fma import fma_if8
from bayes_dc.ops.linear.triton_stage import read_quad, take_quad, words_below, write_quad
from bayes_dc.rng.device import mask_words


@triton.jit
def first_of(number, length, extra):
    """First input of a range: ``length`` in each, 16 more in the first ``extra``."""
    return number * length + tl.minimum(number, extra) * 16


@triton.jit
def add_inputs(acc, words, x, w, GROUPS: tl.constexpr, PTX: tl.constexpr):
    """Add four inputs to 8·GROUPS outputs; ``w`` holds the quads of W of the outputs."""
    result = ()
    for part in tl.static_range(GROUPS):
        one = acc[part]
        for i in tl.static_range(4):
            column = ()
            for j in tl.static_range(8):
                column = column + (w[8 * part + j][i],)
            one = fma_if8(one, words[i], 1 << (8 * part), x[i], column, PTX)
        result = result + (one,)
    return result


@triton.constexpr_function
def _fma_if(count):
    """PTX of ``fma_if``: sums, products of the same and operands, as in ``triton_fma``."""
    word, bit, x = (f"${2 * count + i}" for i in range(3))
    text = "{ .reg .pred p; .reg .b32 t, c; "
    text += "".join(f".reg .f32 f{i}; mov.f32 f{i}, ${count + i}; " for i in range(count))
    for i in range(count):
        text += f"shl.b32 c, {bit}, {i}; and.b32 t, {word}, c; setp.ne.s32 p, t, 0; "
        text += f"@p fma.rn.f32 f{i}, {x}, ${2 * count + 3 + i}, f{i}; "
    return text + "".join(f"mov.f32 ${i}, f{i}; " for i in range(count)) + "}"


@triton.constexpr_function
def _fma_operands(count):
    return ",".join(["=&f"] * count + ["f"] * count + ["r", "r", "f"] + ["f"] * count)


@triton.jit
def fma_if(a, word, bit, x, w, COUNT: tl.constexpr):
    """a[i] + x · w[i] where ``word`` has the bit ``bit << i``, for i = 0 … COUNT − 1 of at most 7.

    ``a`` and ``w`` are tuples; all predicates come from one R2P if ``bit`` is a constant that
    begins a byte or comes after such ones in it.
    """
    return tl.inline_asm_elementwise(
        _fma_if(COUNT),
        _fma_operands(COUNT),
        a + (word, bit, x) + w,
        dtype=(tl.float32,) * COUNT,
        is_pure=True,
        pack=1,
    )


@triton.jit
def add_sevens(acc, words, x, w, GROUPS: tl.constexpr):
    """Add four inputs to 8·GROUPS outputs, seven of each byte of a word and then the eighths.

    The eighth bits of a word are gathered into its lowest four, so that one R2P makes their
    predicates, too. Each by itself would wait for its own, with all others overwritten meanwhile.
    """
    sevens = ()
    eighths = ()
    for part in tl.static_range(GROUPS):
        one = acc[part][:7]
        eighths = (acc[part][7],) + eighths
        for i in tl.static_range(4):
            column = ()
            for j in tl.static_range(7):
                column = column + (w[8 * part + j][i],)
            one = fma_if(one, words[i], 1 << (8 * part), x[i], column, 7)
        sevens = sevens + (one,)
    for i in tl.static_range(4):
        # Bits 31, 23, 15, 7 times 2 to the power of 1, 10, 19, 28: 0 … 3 of the upper half.
        top = words[i] & tl.cast(0x80808080, tl.uint32)
        gathered = tl.umulhi(top, top * 0 + tl.cast(0x10080402, tl.uint32))
        column = ()
        for part in tl.static_range(GROUPS):
            column = (w[8 * part + 7][i],) + column
        eighths = fma_if(eighths, gathered, 1 << (4 - GROUPS), x[i], column, GROUPS)
    result = ()
    for part in tl.static_range(GROUPS):
        result = result + (sevens[part] + (eighths[GROUPS - 1 - part],),)
    return result


@triton.jit
def dot_words(a, words, bit, x, w):
    """a + Σ_i x[i] · w[i] over those i = 0 … 3 whose word has the bit, in this order."""
    return tl.inline_asm_elementwise(
        """{ .reg .pred p; .reg .b32 t; .reg .f32 f; mov.f32 f, $1;
        and.b32 t, $2, $6; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $7, $11, f;
        and.b32 t, $3, $6; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $8, $12, f;
        and.b32 t, $4, $6; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $9, $13, f;
        and.b32 t, $5, $6; setp.ne.s32 p, t, 0; @p fma.rn.f32 f, $10, $14, f;
        mov.f32 $0, f; }""",
        "=&f,f,r,r,r,r,r,f,f,f,f,f,f,f,f",
        (a,) + words + (bit,) + x + w,
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def words_of(
    k, k0, k1, pn, sample, step, row, end, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Mask words of the inputs k … k + 3; no bit from ``end`` on, unless EVEN."""
    k4 = k // 4 + row * 0
    words = mask_words(k0, k1, k4.to(tl.uint32), pn, sample, step, KEEP, BITS, nil, True)
    if not EVEN:
        words = words_below(words, 4 * k4, end)
    return words


@triton.jit
def widen(at, wide, lane, ELEMENT: tl.constexpr, COUNT: tl.constexpr):
    """Write W's tile of a 16-bit type as float32; returns where."""
    for i in tl.static_range(COUNT):
        place = lane + 32 * i
        v0, v1, v2, v3 = read_quad(at + place * 8, ELEMENT)
        write_quad(wide + place * 16, v0, v1, v2, v3)
    return wide


@triton.jit
def read_row(at, swap, ELEMENT: tl.constexpr, QUADS: tl.constexpr):
    """The quads of a lane's row."""
    result = ()
    for q in tl.static_range(QUADS):
        quad = take_quad(at + (q ^ swap) * (ELEMENT.primitive_bitwidth // 2), ELEMENT)
        result = result + (quad,)
    return result


@triton.jit
def add_tile(
    acc, words, x, w_at, k, end, k0, k1, pn, sample, step, row, nil,
    KEEP: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    QUADS: tl.constexpr, GROUPS: tl.constexpr, SEVENS: tl.constexpr,
):  # fmt: skip
    """Add the 4·QUADS inputs of a tile from ``k`` on; ``words`` are of its first four.

    Returns the sums and the words of the four inputs behind the tile: made early, their chain of
    products runs beside the sums. SEVENS: by ``add_sevens``.
    """
    for q in tl.static_range(QUADS):
        after = words_of(k + 4 * (q + 1), k0, k1, pn, sample, step, row, end, nil, KEEP, BITS, EVEN)
        w = ()
        for j in tl.static_range(8 * GROUPS):
            w = w + (read_quad(w_at + (j * QUADS + q) * 16, tl.float32),)
        if SEVENS:
            acc = add_sevens(acc, words, x[q], w, GROUPS)
        else:
            acc = add_inputs(acc, words, x[q], w, GROUPS, True)
        words = after
    return acc, words
