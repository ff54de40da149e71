"""Products of wgmma added to sums where a mask keeps the weight, in registers.

The products are transposed, channels × outputs: then a thread holds eight outputs of a mask word
for each of its channels, whose bits are constants of the code once the word has been turned by an
amount of the lane's.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from bayes_dc.ops._wgmma import doublings, shape_of


@gluon.constexpr_function
def spread_layout(BN, WARPS):
    """Layout of a result [64, BN] with the axis of outputs split into words.

    The 32 registers of a thread: two neighbouring outputs, channels 0 and 8, outputs + 8 · byte of
    a word, two words.
    """
    width = BN * 4 // WARPS
    registers = [(0, 1), (8, 0)] + [(0, n) for n in doublings(8, width)]
    lanes = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]
    warps = [(16, 0), (32, 0)] + [(0, n) for n in doublings(width, BN)]
    bases = [[[c, n // 32, n % 32] for c, n in axis] for axis in (registers, lanes, warps)]
    return gl.DistributedLinearLayout(*bases, [], [64, BN // 32, 32])


@gluon.constexpr_function
def gather_text():
    """PTX of ``gather_bits``: from four words (channel, 32 outputs) to one.

    Of each byte of a word a thread needs the bits 2·q and 2·q + 1, q = lane mod 4. Turned right by
    2·q − 2·i those of word i come to 2·i and 2·i + 1, and a byte has all that belong to it.
    """
    lines = ["{ .reg .b32 s, v0, v1, v2, v3;"]
    for i, register in enumerate((0, 2, 16, 18)):
        word = f"${32 + register}"
        lines.append(f"sub.u32 s, $64, {2 * i}; shf.r.wrap.b32 v{i}, {word}, {word}, s;")
    lines += [
        "lop3.b32 v0, v0, v1, 0x33333333, 0xE4; lop3.b32 v2, v2, v3, 0x33333333, 0xE4;",
        "lop3.b32 v0, v0, v2, 0x0f0f0f0f, 0xE4; and.b32 v0, v0, $96;",
        *(f"mov.b32 ${i}, v0;" for i in range(32)),
    ]
    return "\n".join(lines) + " }"


@gluon.constexpr_function
def add_kept_text():
    """PTX of ``add_kept``, seven adjacent additions for each byte: ptxas tests them by one R2P.

    The eighth bits are brought together first.
    """
    lines = ["{ .reg .pred p; .reg .b32 t, v;"]
    lines += [f"mov.f32 ${i}, ${32 + i};" for i in range(32)]
    bits = [(byte, bit, "$96", 8 * byte + bit) for byte in range(4) for bit in range(7)]
    for byte, bit, word, place in bits + [(byte, 7, "v", 24 + byte) for byte in range(4)]:
        if word == "v" and byte == 0:
            lines.append("shr.u32 v, $96, 7; and.b32 v, v, 0x01010101;")
            lines.append("mul.lo.u32 v, v, 0x01020408;")
        i = bit % 2 + 2 * (bit // 2 % 2) + 4 * byte + 16 * (bit // 4)
        lines.append(
            f"and.b32 t, {word}, {1 << place}; setp.ne.s32 p, t, 0; "
            f"@p add.rn.f32 ${i}, ${i}, ${64 + i};"
        )
    return "\n".join(lines) + " }"


@gluon.constexpr_function
def operands(kinds):
    """Constraints of inline assembly on 32 registers of each operand."""
    return ",".join(kind for kind in kinds.split() for _ in range(32))


@gluon.jit
def gather_bits(words, shift, every, SPREAD: gl.constexpr):
    """What ``add_kept`` takes of ``words`` [BN / 32, 64], or nothing where ``every`` is 0, not −1.

    ``shift``: 2·q in the layout of the sums.
    """
    word = words.permute((1, 0)).load(gl.SliceLayout(2, SPREAD))[:, :, None]
    word, _ = gl.broadcast(word, gl.zeros(shape_of(SPREAD), gl.uint32, SPREAD))
    FLAT: gl.constexpr = [word.shape[0], word.shape[1] * 32]
    word = gl.convert_layout(gl.reshape(word, FLAT), shift.type.layout, assert_trivial=True)
    word, shift = gl.broadcast(word, shift)
    return gl.inline_asm_elementwise(
        gather_text(),
        operands("=r r r r"),
        [word, shift, shift * 0 + every.to(gl.uint32)],
        dtype=gl.uint32,
        is_pure=True,
        pack=32,
    )


@gluon.jit
def add_kept(acc, products, kept):
    """acc + products where the mask keeps the weight."""
    return gl.inline_asm_elementwise(
        add_kept_text(),
        operands("=&f f f r"),
        [acc, products, kept],
        dtype=gl.float32,
        is_pure=True,
        pack=32,
    )
