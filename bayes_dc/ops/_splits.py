"""The sum of the runs of rows or groups that a weight gradient was split into."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit(do_not_specialize=["N", "K", "splits", "stride_on", "stride_ok"])
def sum_splits_kernel(
    partial_ptr, out_ptr, N, K, splits, stride_on, stride_ok, BLOCK: tl.constexpr
):
    """out[n, k] = Σ_z partial[z, n, k], z ascending; partial is contiguous."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.cast(N, tl.int64) * K
    inside = index < size
    total = tl.zeros([BLOCK], partial_ptr.dtype.element_ty)
    for z in range(splits):
        total += tl.load(partial_ptr + z * size + index, mask=inside, other=0)
    n = index // K
    out = out_ptr + n * stride_on + (index - n * K) * stride_ok
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=inside)


def launch_sum_splits(partial: Tensor, out: Tensor) -> None:
    """Write Σ_z partial[z] into ``out`` [N, K], in the type of ``partial``, rounded once."""
    splits, N, K = partial.shape
    sum_splits_kernel[(triton.cdiv(N * K, _BLOCK),)](
        partial, out, N, K, splits, *out.stride(), BLOCK=_BLOCK
    )
