"""Standard normals as tiles."""

import triton
import triton.language as tl

from bayes_dc.rng.device import normals4


@triton.jit
def noise_tile(k0, k1, sample, step, row, n4, BM: tl.constexpr, QUADS: tl.constexpr):
    """Normals [BM, 4 · QUADS] of rows [BM], outputs 4 · n4 … on; all but n4 are uint32 words."""
    quad = (n4 + tl.arange(0, QUADS)).to(tl.uint32)[None, :]
    z0, z1, z2, z3 = normals4(k0, k1, row[:, None], quad, sample[:, None], step[:, None])
    return tl.reshape(tl.join(tl.join(z0, z2), tl.join(z1, z3)), [BM, 4 * QUADS])
