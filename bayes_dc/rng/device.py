"""Mask words and normals inside Triton kernels (SPEC.md v1).

Every function takes explicit uint32 counters: ``tl.rand`` and its kin map offsets to counters in
ways that differ between Triton versions. Arguments broadcast; give them the shape of the tile.
"""

import triton
import triton.language as tl


@triton.jit
def philox4x32(k0, k1, c0, c1, c2, c3):
    """Philox4x32-10 on uint32 tensors of one shape; four output words."""
    A: tl.constexpr = 0xD2511F53
    B: tl.constexpr = 0xCD9E8D57
    for _ in tl.static_range(10):
        a = tl.cast(A, tl.uint32)
        b = tl.cast(B, tl.uint32)
        h0 = tl.umulhi(a + c0 * 0, c0)
        h2 = tl.umulhi(b + c2 * 0, c2)
        l0 = a * c0
        l2 = b * c2
        c0 = h2 ^ c1 ^ k0
        c1 = l2
        c2 = h0 ^ c3 ^ k1
        c3 = l0
        k0 = k0 + tl.cast(0x9E3779B9, tl.uint32)
        k1 = k1 + tl.cast(0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def mask_words(k0, k1, k4, n32, sample, step, KEEP: tl.constexpr, BITS: tl.constexpr):
    """Mask words of the four inputs 4·k4 … 4·k4 + 3 and the 32 outputs of word n32.

    The keep probability is KEEP / 2**BITS. ``n32`` and ``sample`` may be scalars; ``k4 + n32 +
    sample`` must have the tile's shape. One Philox call per binary digit.
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
def box_muller(a, b):
    """Two standard normals from two words; |z| < 6.77."""
    u = tl.minimum((a.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    radius = tl.sqrt(-2.0 * tl.log(u))
    angle = b.to(tl.float32) * 1.4629180792671596e-09
    return radius * tl.cos(angle), radius * tl.sin(angle)


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
