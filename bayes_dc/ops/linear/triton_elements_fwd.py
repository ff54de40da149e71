"""The forward from single elements: any strides, any type, in the interpreter too."""

import triton
import triton.language as tl

from bayes_dc.ops.linear.triton_fma import load_quad
from bayes_dc.ops.linear.triton_sums import add_inputs, first_of
from bayes_dc.rng.device import mask_words


@triton.jit
def _load_weights(w, stride_wn, stride_wk, n, k, N, K, ACC: tl.constexpr, GROUPS: tl.constexpr):
    """Quads k … k + 3 of W's rows from n on, the first at ``w``; 0 outside."""
    result = ()
    for j in tl.static_range(8 * GROUPS):
        p = w + j * stride_wn
        row = n + j < N
        result = result + (
            (
                tl.load(p, mask=row & (k < K), other=0).to(ACC),
                tl.load(p + stride_wk, mask=row & (k + 1 < K), other=0).to(ACC),
                tl.load(p + 2 * stride_wk, mask=row & (k + 2 < K), other=0).to(ACC),
                tl.load(p + 3 * stride_wk, mask=row & (k + 3 < K), other=0).to(ACC),
            ),
        )
    return result


@triton.jit
def sum_elements(
    zeros, x, stride_xk, w, stride_wn, stride_wk, k0, k1, pn, n, sample, step, row, N, K,
    ranges, length, extra,
    KEEP: tl.constexpr, BITS: tl.constexpr, ACC: tl.constexpr, GROUPS: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """Sums of all inputs, range by range, each element by a load of its own."""
    stride_xk = tl.cast(stride_xk, tl.int64)
    stride_wk = tl.cast(stride_wk, tl.int64)
    total = zeros
    for number in range(0, ranges):
        acc = zeros
        end = first_of(number + 1, length, extra)
        for k in range(first_of(number, length, extra), tl.minimum(end, K), 4):
            k4 = k // 4 + row * 0
            words = mask_words(k0, k1, k4.to(tl.uint32), pn.to(tl.uint32), sample, step, KEEP, BITS)
            x_quad = load_quad(
                x + k * stride_xk, x, stride_xk, row * 0 + 1, 4 * k4, K, ACC, False, PTX
            )
            w_quads = _load_weights(
                w + k * stride_wk, stride_wn, stride_wk, n, k, N, K, ACC, GROUPS
            )
            acc = add_inputs(acc, words, x_quad, w_quads, GROUPS, PTX)
        total = _add(total, acc, GROUPS)
    return total


@triton.jit
def _add(a, b, GROUPS: tl.constexpr):
    """Sums of GROUPS × 8 tensors."""
    result = ()
    for i in tl.static_range(GROUPS):
        eight = ()
        for j in tl.static_range(8):
            eight = eight + (a[i][j] + b[i][j],)
        result = result + (eight,)
    return result
