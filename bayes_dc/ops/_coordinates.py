"""Coordinates of rows, for the kernels of every op."""

import triton
import triton.language as tl


@triton.jit
def row_coordinates(m, S, R):
    """(pass, sample, row) of flat int32 row ``m`` of a [P, S, R, …] tensor, as int64."""
    g = m // R
    p = g // S
    return p.to(tl.int64), (g - p * S).to(tl.int64), (m - g * R).to(tl.int64)
