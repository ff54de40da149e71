"""Mask words and normals inside Triton kernels (SPEC.md v1).

Every function takes explicit uint32 counters: ``tl.rand`` and its kin map offsets to counters in
ways that differ between Triton versions. Arguments broadcast; give them the shape of the tile.
"""

import triton
import triton.language as tl


@triton.jit
def _multiply(a, b, nil, LAST: tl.constexpr, PTX: tl.constexpr):
    """Low and high word of a · b.

    With PTX one instruction, but in the last round two: ptxas makes predicates from a word seven
    at a time (R2P), though not from half of a 64-bit product. Adding ``nil``, a zero that it does
    not know, keeps it from joining the two.
    """
    if PTX and LAST:
        low = tl.inline_asm_elementwise(
            "mad.lo.u32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, nil],
            dtype=tl.uint32,
            is_pure=True,
            pack=1,
        )
        return low, tl.umulhi(a, b)
    elif PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .b64 t; mul.wide.u32 t, $2, $3; mov.b64 {$0, $1}, t; }",
            "=r,=r,r,r",
            [a, b],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )
    else:
        return a * b, tl.umulhi(a, b)


@triton.jit
def philox4x32(k0, k1, c0, c1, c2, c3, nil=0, PTX: tl.constexpr = False):
    """Philox4x32-10 on uint32 tensors of one shape; four output words. For ``nil`` see above."""
    A: tl.constexpr = 0xD2511F53
    B: tl.constexpr = 0xCD9E8D57
    for i in tl.static_range(10):
        l0, h0 = _multiply(tl.cast(A, tl.uint32) + c0 * 0, c0, nil, i == 9, PTX)
        l2, h2 = _multiply(tl.cast(B, tl.uint32) + c2 * 0, c2, nil, i == 9, PTX)
        c0 = h2 ^ c1 ^ k0
        c1 = l2
        c2 = h0 ^ c3 ^ k1
        c3 = l0
        k0 = k0 + tl.cast(0x9E3779B9, tl.uint32)
        k1 = k1 + tl.cast(0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def mask_words(
    k0, k1, k4, n32, sample, step,
    KEEP: tl.constexpr, BITS: tl.constexpr, nil=0, PTX: tl.constexpr = False,
):  # fmt: skip
    """Mask words of the four inputs 4·k4 … 4·k4 + 3 and the 32 outputs of word n32.

    The keep probability is KEEP / 2**BITS. ``n32`` and ``sample`` may be scalars; ``k4 + n32 +
    sample`` must have the tile's shape. One Philox call per binary digit. PTX asks for NVIDIA's
    instructions, which want ``nil``, an int32 that is 0 without the compiler knowing.
    """
    zero = (k4 ^ k4) ^ (n32 ^ n32) ^ (sample ^ sample)
    r0 = zero
    r1 = zero
    r2 = zero
    r3 = zero
    for i in tl.static_range(BITS):
        w0, w1, w2, w3 = philox4x32(
            k0 + zero,
            k1 + zero,
            k4 + zero,
            (n32 + zero) | tl.cast((BITS - 1 - i) << 24, tl.uint32),
            sample + zero,
            step + zero,
            nil,
            PTX,
        )
        if (KEEP >> i) & 1:
            r0 = r0 | w0
            r1 = r1 | w1
            r2 = r2 | w2
            r3 = r3 | w3
        else:
            r0 = r0 & w0
            r1 = r1 & w1
            r2 = r2 & w2
            r3 = r3 & w3
    return r0, r1, r2, r3


@triton.jit
def log_below_one(u):
    """Logarithm of u for 2**-33 ≤ u < 1, to two units in the last place."""
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - 0x3F2AAAAB) & -8388608  # THIRDS; the mantissa comes into 2/3 … 4/3
    f = (bits - e).to(tl.float32, bitcast=True) - 1.0
    q = f * -0.130310059 + 0.140869141  # LOG1P of spec.py
    q = q * f - 0.121483095
    q = q * f + 0.139814854
    q = q * f - 0.166846067
    q = q * f + 0.200120345
    q = q * f - 0.249996200
    q = q * f + 0.333331972
    q = q * f - 0.5
    return (e.to(tl.float32) * 1.1920928955078125e-07) * 0.6931471805599453 + (q * (f * f) + f)


@triton.jit
def box_muller(a, b):
    """Two standard normals from two words; |z| < 6.77.

    The functions of Triton's library take twice the instructions: they expect any argument.
    """
    # The odd bit keeps a + 1/2 from rounding to even near 1, where it would show.
    u = tl.minimum(((a | (a >> 31)).to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    radius = tl.sqrt(-2.0 * log_below_one(u)).to(tl.uint32, bitcast=True)
    # θ = t + quarter · π/2 with |t| ≤ π/4; SINE and COSINE of spec.py
    quarter = (b + tl.cast(1 << 29, tl.uint32)) & tl.cast(3 << 30, tl.uint32)
    t = (b - quarter).to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09
    v = t * t
    sine = ((v * -1.9515295891e-4 + 8.3321608736e-3) * v - 1.6666654611e-1) * v * t + t
    cosine = (v * 2.443315711809948e-5 - 1.388731625493765e-3) * v + 4.166664568298827e-2
    cosine = cosine * v * v + (1.0 - 0.5 * v)
    swapped = (quarter & tl.cast(1 << 30, tl.uint32)) != 0
    sign = tl.cast(1 << 31, tl.uint32)
    plus = (radius ^ ((quarter + tl.cast(1 << 30, tl.uint32)) & sign)).to(tl.float32, bitcast=True)
    minus = (radius ^ (quarter & sign)).to(tl.float32, bitcast=True)
    return plus * tl.where(swapped, sine, cosine), minus * tl.where(swapped, cosine, sine)


@triton.jit
def normals4(k0, k1, row, n4, sample, step):
    """Standard normals of the four outputs 4·n4 … 4·n4 + 3 of one row of a group."""
    zero = (row ^ row) ^ (n4 ^ n4) ^ (sample ^ sample)
    a, b, c, d = philox4x32(
        k0 + zero,
        k1 + zero,
        row + zero,
        (n4 + zero) | tl.cast(0xFF << 24, tl.uint32),
        sample + zero,
        step + zero,
    )
    z0, z1 = box_muller(a, b)
    z2, z3 = box_muller(c, d)
    return z0, z1, z2, z3
